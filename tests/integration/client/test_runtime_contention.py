"""Fifty writers and one entity, on a quiet server and on one that is killed again and again."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.client import AsyncClient, AsyncRuntime, Client, ClientSettings, CommitBackpressure
from penstock.client.runtime.feed import change_of
from penstock.testing import seeded, seeds
from tests.conformance.servers import ServerProcess
from tests.integration.client.runtime_served import DEADLINE_S, settings_of
from tests.waiting import until

WRITERS = 50
TIMES = 20
KILLS = 3
LIMIT_S = 5 * DEADLINE_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = ServerProcess(tmp_path, PORT=port)
    try:
        yield process.start()
    finally:
        process.close()


def increment(tx: Any, event: Any) -> None:
    """The count, and by whom it was last raised to what: so that the history can be checked."""
    found = tx.get("count", default={"value": 0, "by": None})
    tx.set("count", {"value": found["value"] + 1, "by": event.id})


class Contention:
    """Writers that all want the same entity."""

    def __init__(self, settings: ClientSettings, random: Random) -> None:
        self.settings = settings
        self.random = random
        self.failures: list[Any] = []
        self.reports: list[Any] = []
        self.done = 0

    async def run(self, beside: Any = None) -> None:
        async with AsyncClient(self.settings) as client:
            runtimes = [
                AsyncRuntime(
                    client if number % 2 else self.settings,
                    "main",
                    policy=CommitBackpressure(window_ms=LIMIT_S * 1_000),
                    random=Random(self.random.getrandbits(32)),
                )
                for number in range(WRITERS)
            ]
            for runtime in runtimes:
                runtime.register("increment", increment)
                runtime.on_error(self.failures.append)
                runtime.on_commit(self.reports.append)
            await asyncio.gather(*(runtime.start() for runtime in runtimes))
            writing = [asyncio.create_task(self.write(runtime)) for runtime in runtimes]
            if beside is not None:
                await beside(self)
            try:
                await asyncio.gather(*writing)
            except BaseException:
                stuck = [runtime.status() for runtime in runtimes if runtime.status().pending]
                print(f"{self.done} done, {len(stuck)} stuck:", *stuck, sep="\n")
                raise
            await asyncio.gather(*(runtime.aclose() for runtime in runtimes))

    async def write(self, runtime: AsyncRuntime) -> None:
        for _ in range(TIMES):
            await runtime.send("increment")
            self.done += 1


def check_history(settings: ClientSettings, contention: Contention) -> None:
    """One line of commits, each made from the one before it; each event has its place once."""
    assert contention.failures == []
    with Client(settings) as client:
        changes = [change_of(record) for page in client.read("main") for record in page.records]
    docs = [change.writes[0].set for change in changes]
    assert [doc["value"] for doc in docs] == list(range(1, WRITERS * TIMES + 1))
    assert len({doc["by"] for doc in docs}) == WRITERS * TIMES
    assert set(Counter(change.session for change in changes).values()) == {TIMES}
    accepted = [report for report in contention.reports if report.outcome == "accepted"]
    assert {report.event_id for report in accepted} == {doc["by"] for doc in docs}


def test_fifty_writers_raise_one_count_to_exactly_a_thousand(server):
    settings = settings_of(server.address.url)
    with seeded(seeds(1)[0]) as random:
        contention = Contention(settings, random)
        asyncio.run(asyncio.wait_for(contention.run(), LIMIT_S))
        check_history(settings, contention)
        assert any(report.outcome == "conflict" for report in contention.reports)


@pytest.mark.slow
def test_a_server_that_is_killed_changes_nothing_about_that(server):
    settings = settings_of(server.address.url)
    with seeded(seeds(1)[0]) as random:
        marks = sorted(random.sample(range(20, WRITERS * TIMES - 200), KILLS))

        async def kill(contention: Contention) -> None:
            for mark in marks:
                await until(lambda at=mark: contention.done >= at, f"{mark} commits")
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)

        contention = Contention(settings, random)
        asyncio.run(asyncio.wait_for(contention.run(kill), LIMIT_S))
        check_history(settings, contention)
