"""A lane alone, with a log whose answers come when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.kernel.shell import SystemClock
from penstock.topics.batch import parse_write
from penstock.topics.leases import ClaimRequest
from penstock.topics.partition import Change, Partition
from penstock.topics.shell.gather import Gather
from penstock.topics.shell.lane import Audience, Lane
from tests.integration.topics.engines import DEADLINE_S, body, until


class HeldJournal:
    """A log that keeps its answers back."""

    def __init__(self) -> None:
        self.gather = Gather(asyncio.get_running_loop(), SystemClock())
        self.sync_round = 0
        self.answers: list[Callable[[Exception | None], None]] = []

    def append(self, _number: int, _payload: bytes, done: Any, *, sync: bool) -> None:
        self.answers.append(done)


def lane_on(journal: HeldJournal) -> Lane:
    audience = Audience(lambda _entries: None, lambda _topic: None, (), ())
    loop = asyncio.get_running_loop()
    return Lane(0, Partition(), journal, loop=loop, audience=audience)  # type: ignore[arg-type]


async def logged(lane: Lane, journal: HeldJournal, change: Change) -> None:
    waiting = asyncio.create_task(lane.commit(change, sync=True))
    await until(lambda: bool(journal.answers))
    journal.answers.pop()(None)
    await waiting


def test_who_waits_for_an_idle_lane_is_woken_by_changes_that_need_no_log() -> None:
    """A claim in memory is staged while a write is on its way, and the write is answered first."""

    async def main() -> None:
        journal = HeldJournal()
        lane = lane_on(journal)
        partition = lane.partition
        await logged(lane, journal, partition.put_topic("q", {"type": "queue"}, 1))
        write = partition.write("q", parse_write(body(1, 2)), 2)
        assert isinstance(write, Change)
        await logged(lane, journal, write)
        write = partition.write("q", parse_write(body(3)), 3)
        assert isinstance(write, Change)
        writing = asyncio.create_task(lane.commit(write, sync=True))
        await until(lambda: bool(journal.answers))
        claim = partition.claim("q", [ClaimRequest("n")], 4, 0)
        claiming = asyncio.create_task(lane.commit(claim, sync=False))
        holding = asyncio.create_task(lane.hold())
        await asyncio.sleep(0)
        journal.answers.pop()(None)
        assert not lane.is_idle, "the claim waits for its turn"
        await writing
        await asyncio.wait_for(asyncio.gather(claiming, holding), DEADLINE_S)
        assert lane.is_idle
        lane.release()

    asyncio.run(main())
