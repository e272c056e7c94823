"""Short trials of three processes under load and faults; `tests.soak.cluster` makes long ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from penstock.client import AsyncClient, Client, Position
from penstock.client.aio.watch import AsyncWatch
from penstock.protocol.answers import StoredRecord
from penstock.protocol.events import CaughtUp, Records
from tests.integration.cluster.faults import Faults
from tests.integration.cluster.jobs import Worker, check_jobs, put_jobs, wait_done
from tests.integration.cluster.load import (
    Watchers,
    Writer,
    check_records,
    make_topics,
    settings,
    wait_equal,
)
from tests.integration.cluster.processes import Processes, cluster
from tests.integration.cluster.registers import Caller, check_histories

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make


def writers_of(made: Processes, *topics: str) -> list[Writer]:
    make_topics(made, topics)
    writers = [
        Writer(made.urls, topic, f"{topic}-{number}", batch=5, first=number, pause_s=0.02)
        for topic in topics
        for number in range(2)
    ]
    for writer in writers:
        writer.start()
    return writers


@pytest.mark.parametrize(
    "verbs",
    [("kill", "kill", "freeze", "restart"), ("cut", "one-way", "cut", "one-way"), ("member",)],
    ids=["processes", "links", "members"],
)
def test_what_was_acknowledged_is_on_all_nodes_once_and_in_order(
    tmp_path: Path, verbs: tuple[str, ...]
) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1, is_cut=True) as made:
        writers = writers_of(made, "t")
        watchers = Watchers(made.urls, "t", stay=3, move=3, page=3)
        watchers.start()
        faults = Faults(made, Random(7), writers)
        for verb in verbs:
            faults.verbs()[verb]()
            watchers.check()
        for writer in writers:
            writer.end()
        acknowledged = check_records(made, writers)
        watchers.end(wait_equal(made, ["t"])["t"])
        print(f"{dict(faults.counts)}, {acknowledged} records: 0 lost, 0 twice, in order; "
              f"{sum(each.moves for each in watchers.all)} moves of watchers")  # fmt: skip


def test_a_cursor_that_is_ahead_of_a_node_waits_for_it_and_goes_on(tmp_path: Path) -> None:
    """The node hears nothing while the cursor moves to it: it is not told of a loss."""
    with cluster(tmp_path, "a", "b", "c", partitions=1, is_cut=True) as made:
        asyncio.run(move_ahead(made))


async def move_ahead(made: Processes) -> None:
    assert made.cuts is not None
    make_topics(made, ["t"])
    leader = made.leader_of(0)
    deaf = made.others(leader.name)[0]
    wait_equal(made, ["t"])
    made.cuts.cut(*((other.name, deaf.name) for other in made.others(deaf.name)), is_silent=True)
    for number in range(20):
        assert leader.write("t", number).status == 200
    async with AsyncClient(settings(leader.url)) as near, near.watch({"t": 0}) as watch:
        while watch.positions["t"].from_seq < 20:
            await anext(watch)
        place = watch.positions["t"]
    page = deaf.read("t", place.from_seq, epoch=place.epoch, wait_ms=100).body
    assert page["behind"]
    assert page.get("tombstone") is None
    async with AsyncClient(settings(deaf.url)) as far, far.watch({"t": place}) as watch:
        assert await watch.next_event(2.0) is None
        made.cuts.mend()
        with Client(settings(made.urls)) as client:
            client.write("t", ["after"])
        seen = [record.data for record in await records_after(watch, place)]
    assert seen == ["after"]


async def records_after(watch: AsyncWatch, place: Position) -> list[StoredRecord]:
    """The next records that a watch gets; nothing but news of being caught up before them."""
    async with asyncio.timeout(60):
        async for event in watch:
            if isinstance(event, Records):
                assert event.from_seq == place.from_seq
                return event.records
            assert isinstance(event, CaughtUp), event
    raise AssertionError("the watch ended")


def test_jobs_are_acknowledged_once_through_changes_of_leaders(tmp_path: Path) -> None:
    jobs = 400
    with cluster(tmp_path, "a", "b", "c", partitions=1) as made:
        writers = writers_of(made, "t")
        put_jobs(made.urls, "q", jobs)
        workers = [Worker(made.urls, "q", number, 4_000, seed=3) for number in range(4)]
        for worker in workers:
            worker.start()
        faults = Faults(made, Random(3), writers)
        faults.kill_leader()
        faults.freeze_leader()
        wait_done(made, "q", workers)
        for thread in (*workers, *writers):
            thread.end()
        leases = check_jobs(workers, jobs)
        print(f"{jobs} jobs acknowledged once each, {leases} leases, never two at a time")


def test_reads_and_changes_of_registers_are_linearizable(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1, is_cut=True) as made:
        writers = writers_of(made, "t")
        callers = [Caller(made.urls, "s", number, registers=2, seed=5) for number in range(5)]
        for caller in callers:
            caller.start()
        faults = Faults(made, Random(5), writers)
        for verb in ("kill", "cut", "freeze", "one-way"):
            faults.verbs()[verb]()
        for thread in (*callers, *writers):
            thread.end()
        registers, operations = check_histories(callers)
        print(f"{registers} registers, {operations} operations, all linearizable")
