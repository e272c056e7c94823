"""Load on a cluster while nodes fail, and what must hold afterwards.

Writers send batches with keys until each is answered, through clients that know all nodes; each
says how many records were acknowledged. Watchers and readers say which seqs they saw.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from penstock.client import AsyncClient, Client, ClientSettings, Position
from penstock.client.retry import RetryPolicy
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Conflict, Gone, Rejected
from penstock.protocol.errors import CallError
from penstock.protocol.events import Records, Tombstone, TopicDeleted
from tests.integration.cluster.processes import Process, Processes
from tests.waiting import wait_until

PATIENT_S = 180.0
"""No call may remain without an answer for this long."""
PACE_S = 0.03
"""How long a watcher that moves stays where it is at least: the nodes need the processor."""


def settings(urls: str, first: int = 0, **facts: Any) -> ClientSettings:
    """Of a client that begins with one of the nodes and is quick to go on."""
    nodes = urls.split(",")
    at = first % len(nodes)
    given: dict[str, Any] = {
        "connect_timeout_s": 2.0,
        "read_timeout_s": 2.0,
        "timeout_s": 60.0,
        "retry": RetryPolicy(cap_ms=200),
        "reconnect": Backoff(base_ms=50, cap_ms=500, jitter=0.5, window_ms=120_000),
    }
    return ClientSettings(",".join(nodes[at:] + nodes[:at]), **(given | facts))


class Writer(threading.Thread):
    """Writes numbered records to a topic, batch after batch, each until it is acknowledged."""

    def __init__(
        self, urls: str, topic: str, name: str, *, batch: int, first: int = 0, pause_s: float = 0.0
    ) -> None:
        super().__init__(name=f"writer {name}", daemon=True)
        self.topic, self.batch = topic, batch
        self.sent = self.tries_failed = 0
        self.answered_s: list[float] = []
        self.error: Exception | None = None
        self._name, self._pause_s = name, pause_s
        self._client = Client(settings(urls, first))
        self._ends = threading.Event()

    @property
    def acknowledged(self) -> int:
        return len(self.answered_s) * self.batch

    def run(self) -> None:
        try:
            with self._client:
                while not self._ends.is_set():
                    self._write()
                    self._ends.wait(self._pause_s)
        except Exception as error:
            self.error = error

    def _write(self) -> None:
        values = [f"{self._name}:{self.sent + number}" for number in range(self.batch)]
        self.sent += self.batch
        key, until_s = f"{self._name}-{self.sent}", time.monotonic() + PATIENT_S
        while True:
            try:
                self._client.write(self.topic, values, idempotency_key=key, return_seqs=False)
            except CallError as error:
                self.tries_failed += 1
                if isinstance(error, Rejected | Conflict | Gone) or time.monotonic() > until_s:
                    raise
            else:
                self.answered_s.append(time.monotonic())
                return

    def end(self) -> None:
        """Finish the batch that is under way, and check that nothing failed."""
        self._ends.set()
        self.join(PATIENT_S + 60)
        assert not self.is_alive(), self.name
        if self.error is not None:
            raise self.error
        assert self.acknowledged == self.sent


class Following:
    """What one watcher saw of a topic: every seq, once and in order, or it says what is wrong."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq = self.moves = 0
        self.epoch: int | None = None
        self.problems: list[str] = []

    def take(self, event: object) -> None:
        if isinstance(event, Tombstone | TopicDeleted):
            self.problems.append(f"{self.name} at {self.seq}: {event}")
        elif isinstance(event, Records):
            self.epoch = event.epoch if event.epoch is not None else self.epoch
            self.take_seqs([record.seq for record in event.records])

    def take_seqs(self, seqs: list[int]) -> None:
        if not seqs:
            return
        if seqs[0] != self.seq + 1 or any(b != a + 1 for a, b in pairwise(seqs)):
            self.problems.append(f"{self.name} at {self.seq} got {seqs[:3]}…{seqs[-1]}")
        self.seq = seqs[-1]


class Watchers(threading.Thread):
    """Watchers of a topic on one loop: some stay while their node does, some move all the time.

    `stay` watch with all addresses; `move` go to another node after each few events, with their
    cursor; `page` ask another node for each page.
    """

    def __init__(self, urls: str, topic: str, *, stay: int, move: int, page: int) -> None:
        super().__init__(name="watchers", daemon=True)
        self._urls, self._topic = urls, topic
        self._kinds = {"stays": stay, "moves": move, "pages": page}
        self.all: list[Following] = []
        self.error: BaseException | None = None
        self._ends = False

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error

    async def _run(self) -> None:
        verbs = {"stays": self._stay, "moves": self._move, "pages": self._page}
        tasks = []
        for kind, count in self._kinds.items():
            for number in range(count):
                following = Following(f"{kind} {number}")
                self.all.append(following)
                tasks.append(asyncio.create_task(verbs[kind](following, number)))
        while not self._ends:
            await asyncio.sleep(0.05)
            for task in tasks:
                if task.done():
                    task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stay(self, following: Following, first: int) -> None:
        async with (
            AsyncClient(settings(self._urls, first)) as client,
            client.watch({self._topic: 0}, heartbeat_ms=1_000) as watch,
        ):
            async for event in watch:
                following.take(event)
                following.moves = watch.reconnects

    async def _move(self, following: Following, first: int) -> None:
        place = Position(0)
        for number in range(first, 1 << 60):
            async with (
                AsyncClient(settings(self._urls, number)) as client,
                client.watch({self._topic: place}, heartbeat_ms=1_000) as watch,
            ):
                for _ in range(1 + number % 3):
                    event = await watch.next_event(0.5)
                    if event is not None:
                        following.take(event)
                place = watch.positions.get(self._topic, place)
            await asyncio.sleep(PACE_S)
            following.moves += 1

    async def _page(self, following: Following, first: int) -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(AsyncClient(settings(self._urls, each)))
                for each in range(self._urls.count(",") + 1)
            ]
            for number in range(first, 1 << 60):
                await self._next_page(following, clients[number % len(clients)])

    async def _next_page(self, following: Following, client: AsyncClient) -> None:
        page = await client.diff(
            self._topic, from_seq=following.seq, epoch=following.epoch, wait_ms=200, limit=500
        )
        following.moves += 1
        if page.tombstone is not None:
            following.problems.append(f"{following.name} at {following.seq}: {page.tombstone}")
        if page.epoch is not None:
            following.epoch = page.epoch
        following.take_seqs([record.seq for record in page.records])
        await asyncio.sleep(PACE_S)

    def check(self) -> None:
        """What must hold all the time."""
        if self.error is not None:
            raise self.error
        problems = [problem for each in self.all for problem in each.problems]
        assert not problems, problems[:5]

    def end(self, head_seq: int, patience_s: float = 90.0) -> None:
        """Wait until all have seen everything; nothing twice, nothing left out."""

        def slow() -> list[str]:
            return [f"{each.name} at {each.seq}" for each in self.all if each.seq != head_seq]

        def done() -> bool:
            self.check()
            return not slow()

        wait_until(done, lambda: f"watchers to see {head_seq}: {slow()[:8]}", patience_s)
        self._ends = True
        self.join(30)


def make_topics(made: Processes, topics: Iterable[str], **config: Any) -> None:
    """Create topics whose keys are remembered for longer than a trial takes."""
    with Client(settings(made.urls)) as client:
        for topic in topics:
            client.put_topic(topic, idempotency_window_ms=3_600_000, **config)


def head_of(node: Process, topic: str) -> int:
    """The newest seq that a node has."""
    reply = node.call("GET", f"/v0/topics/{topic}?consistency=local")
    # It may not have the topic yet, or read a snapshot in.
    return int(reply.body["head_seq"]) if reply.status == 200 else -1


def wait_equal(made: Processes, topics: Iterable[str]) -> dict[str, int]:
    """Wait until all nodes have the same heads, and return them."""
    heads: dict[str, int] = {}
    for topic in topics:

        def same(topic: str = topic) -> bool:
            found = {head_of(node, topic) for node in made.others()}
            heads[topic] = max(found)
            return len(found) == 1 and heads[topic] >= 0

        wait_until(same, f"all nodes to have the whole of {topic}", 90.0)
    return heads


def check_records(made: Processes, writers: Iterable[Writer]) -> int:
    """Every acknowledged record is on every node, once, in its writer's order; all are equal."""
    acknowledged = 0
    writers = list(writers)
    topics = sorted({writer.topic for writer in writers})
    wait_equal(made, topics)
    for topic in topics:
        contents = {node.name: content(node, topic) for node in made.others()}
        first, *rest = contents.values()
        assert all(other == first for other in rest), unequal(topic, contents)
        seen: dict[str, list[int]] = {}
        for _, value in first:
            name, _, number = value.decode().strip('"').partition(":")
            seen.setdefault(name, []).append(int(number))
        mine = {writer._name: writer for writer in writers if writer.topic == topic}
        assert seen.keys() <= mine.keys(), seen.keys() - mine.keys()
        for name, writer in mine.items():
            found = seen.get(name, [])
            assert found == list(range(writer.acknowledged)), difference(name, found, writer)
            acknowledged += writer.acknowledged
    return acknowledged


def content(node: Process, topic: str) -> list[tuple[int, bytes]]:
    """Every record of a topic with its seq, as one node has it."""
    found: list[tuple[int, bytes]] = []
    with Client(ClientSettings(node.url)) as client:
        while True:
            page = client.diff(topic, from_seq=found[-1][0] if found else 0, limit=10_000)
            assert page.tombstone is None, page.tombstone
            found += [(record.seq, bytes(record.data_json)) for record in page.records]
            if page.caught_up:
                return found


def difference(name: str, found: list[int], writer: Writer) -> str:
    lost = sorted(set(range(writer.acknowledged)) - set(found))
    twice = len(found) - len(set(found))
    beyond = [number for number in found if number >= writer.acknowledged]
    return f"{name}: lost {lost[:5]} ({len(lost)}), {twice} twice, {len(beyond)} never acknowledged"


def unequal(topic: str, contents: dict[str, list[tuple[int, bytes]]]) -> str:
    sizes = {name: len(records) for name, records in contents.items()}
    names = list(contents)
    for place, records in enumerate(zip(*contents.values(), strict=False)):
        if len(set(records)) > 1:
            return f"{topic}: nodes {names} differ from record {place}: {records}"
    return f"{topic}: nodes differ: {sizes}"
