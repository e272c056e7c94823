"""Fifty writers and one entity: commits that land, with back-off and without"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench import servers
from bench.load import pin
from bench.report import Report
from penstock.client import AsyncClient, AsyncRuntime, ClientSettings, CommitBackpressure
from penstock.client.calls import ApiCall
from penstock.client.space_calls import commit_once
from penstock.client.wire import HttpRequest
from penstock.protocol.commits import Commit, CommitRead, CommitWrite
from penstock.protocol.errors import CommitConflict

WRITERS = 50
SECONDS = 5.0
WARM_UP_S = 2.0
ROUNDS = 3
TINY = {"WRITERS": 3, "SECONDS": 1.0, "WARM_UP_S": 0.1, "ROUNDS": 1}
AT_ONCE = "retry at once"
NO_DELAY = "runtime, all delays 0"
RUNTIME = "runtime"


@dataclass
class Tally:
    """What writers came to while they were counted."""

    commits: int = 0
    attempts: int = 0
    took_ms: list[float] = field(default_factory=list)
    from_s: float = 0.0
    until_s: float = 0.0

    def landed(self, began_s: float) -> bool:
        """An increment is in; it was wanted since then. Whether to go on.

        Those that were wanted when time was over are still seen in, however long that takes, else
        the slowest would not be counted.
        """
        now_s = time.perf_counter()
        if now_s >= self.from_s:
            self.took_ms.append((now_s - began_s) * 1_000)
            self.commits += now_s < self.until_s
        return now_s < self.until_s

    def tried(self) -> None:
        """A commit was sent."""
        self.attempts += self.from_s <= time.perf_counter() < self.until_s

    @property
    def a_second(self) -> float:
        """Commits that landed."""
        return self.commits / (self.until_s - self.from_s)

    def p_ms(self, share: float) -> float:
        """How long a share of the increments took at most, from wanting it to having it."""
        took = sorted(self.took_ms)
        return took[min(len(took) - 1, int(len(took) * share))]

    @property
    def tries(self) -> float:
        """Commits sent for each that landed."""
        return self.attempts / self.commits


def run(report: Report) -> None:
    pin(1)
    found: dict[str, list[Tally]] = {}
    for _ in range(ROUNDS):  # they take turns, as the machine is shared
        for name, write in WAYS.items():
            with servers.penstock() as port:
                found.setdefault(name, []).append(asyncio.run(contend(port, write)))
    best = {name: max(each, key=lambda tally: tally.a_second) for name, each in found.items()}
    ours, hasty = best[RUNTIME], best[AT_ONCE]
    for name in (AT_ONCE, NO_DELAY):
        report.row(name, best[name].a_second, "commits/s")
    ratio = ours.a_second / hasty.a_second
    report.row(RUNTIME, ours.a_second, "commits/s", ratio=ratio, against=AT_ONCE,
               goal="at least 3×", met=ratio >= 3)  # fmt: skip
    ratio = ours.a_second / best[NO_DELAY].a_second
    report.row("runtime with back-off", ours.a_second, "commits/s", ratio=ratio, against=NO_DELAY)
    for name, tally in best.items():
        report.row(f"{name}: commits sent for each that lands", tally.tries, "commits")
        report.row(f"{name}: half converge within", tally.p_ms(0.5), "ms")
        report.row(f"{name}: 99 % converge within", tally.p_ms(0.99), "ms")


Write50 = Callable[[ClientSettings, Tally], Awaitable[None]]


async def contend(port: int, write: Write50) -> Tally:
    """Let all writers go at one entity for a while, and count."""
    settings = ClientSettings(
        f"http://127.0.0.1:{port}", connections_max=WRITERS, streams_max=WRITERS
    )
    async with AsyncClient(settings) as client:
        first = Commit("first", 1, (CommitWrite("count", set=0),))
        await client._runner.run(commit_once("bench", first))
    now_s = time.perf_counter()
    tally = Tally(from_s=now_s + WARM_UP_S, until_s=now_s + WARM_UP_S + SECONDS)
    await write(settings, tally)
    return tally


def with_runtimes(policy: CommitBackpressure) -> Write50:
    """Each writer is a runtime."""

    async def write(settings: ClientSettings, tally: Tally) -> None:
        async with AsyncClient(settings) as client:
            runtimes = [AsyncRuntime(client, "bench", policy=policy) for _ in range(WRITERS)]
            for runtime in runtimes:
                runtime.register("increment", increment)
                runtime.on_commit(lambda _: tally.tried())
            await asyncio.gather(*(runtime.start() for runtime in runtimes))
            await asyncio.gather(*(_send(runtime, tally) for runtime in runtimes))
            await asyncio.gather(*(runtime.aclose() for runtime in runtimes))

    return write


async def _send(runtime: AsyncRuntime, tally: Tally) -> None:
    going = True
    while going:
        began_s = time.perf_counter()
        await runtime.send("increment")
        going = tally.landed(began_s)


def increment(tx: Any, _event: Any) -> None:
    tx.set("count", tx.get("count", default=0) + 1)


async def at_once(settings: ClientSettings, tally: Tally) -> None:
    """Each writer reads the entity and commits; after a conflict it does so again, at once."""
    async with AsyncClient(settings) as client:
        await asyncio.gather(*(_retry(client, f"w{each}", tally) for each in range(WRITERS)))


async def _retry(client: AsyncClient, session: str, tally: Tally) -> None:
    number = 0
    going = True
    while going:
        began_s = time.perf_counter()
        number = await _until_it_lands(client, session, number, tally)
        going = tally.landed(began_s)


async def _until_it_lands(client: AsyncClient, session: str, number: int, tally: Tally) -> int:
    while True:
        number += 1
        page = await client._runner.run(_LOOK)
        writes = (CommitWrite("count", set=page["entities"][0]["doc"] + 1),)
        commit = Commit(session, number, writes, (CommitRead("count", page["head"]),))
        tally.tried()
        try:
            await client._runner.run(commit_once("bench", commit))
        except CommitConflict:
            continue
        return number


_LOOK: ApiCall[dict[str, Any]] = ApiCall(
    HttpRequest("GET", "/v0/spaces/bench/entities"), lambda answer: _decode(answer.body)
)


def _decode(body: bytes) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.json.decode(body)
    return found


WAYS: dict[str, Write50] = {
    AT_ONCE: at_once,
    NO_DELAY: with_runtimes(CommitBackpressure(base_ms=0, cap_ms=0, window_ms=600_000)),
    RUNTIME: with_runtimes(CommitBackpressure()),
}
