"""The engine on a real loop and a real log thread, with a store that waits and fails on demand."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from penstock.log.store import DiskFull, SyncFailed
from penstock.protocol.answers import QueueCounts
from penstock.protocol.errors import Saturated, Throttled, TopicFull, TopicNotFound, TopicsApart
from penstock.protocol.limits import TopicLimits
from penstock.testing import ManualClock
from penstock.topics.core.batch import parse_write
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.queue import DEAD_LETTERS_MAX
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from penstock.topics.engine.topic_views import TopicLists, TopicQuery, show_topic
from penstock.topics.engine.views import scheduler_view
from penstock.topics.engine.watch import PageShape
from penstock.topics.engine.writers import LogFailed, LogUncertain
from tests.integration.topics.engines import DEADLINE_S, body, data, engine_on, write
from tests.integration.topics.gated import GatedStore
from tests.waiting import until


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_a_record_is_not_visible_before_the_log_has_it(durability: str) -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store) as engine:
            await engine.put_topic("t", {"durability": durability})
            woken: list[str] = []
            engine.watchers.listen("t", woken.append)
            store.shut()
            writing = asyncio.create_task(write(engine, "t", 1, 2))
            poll = asyncio.create_task(engine.diff("t", ReadRequest(wait_ms=30_000)))
            for _ in range(20):
                await asyncio.sleep(0.001)
                assert await data(engine, "t") == []
                assert (await show_topic(engine, "t")).head_seq == 0
            assert not (writing.done())
            assert not (poll.done())
            assert not woken
            store.open()
            assert (await writing).last_seq == 2
            assert [slot.seq for slot in (await poll).records] == [1, 2]
            assert woken == ["t"]

    asyncio.run(main())


def test_an_ephemeral_record_waits_for_nobody_once_its_seqs_are_set_aside() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store) as engine:
            await engine.put_topic("t", {"durability": "ephemeral"})
            await write(engine, "t", 1)
            store.shut()
            await write(engine, "t", 2)
            assert await data(engine, "t") == [b"1", b"2"]
            store.open()

    asyncio.run(main())


def test_writes_of_one_moment_share_one_sync() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=4) as engine:
            for number in range(64):
                await engine.put_topic(f"t{number}", {"durability": "fsync"})
            store.groups.clear()
            await asyncio.gather(*(write(engine, f"t{number}", 0) for number in range(64)))
            operations = sum(count for count, _ in store.groups)
            assert operations <= 4, "one entry for each partition"
            assert [synced for _, synced in store.groups] == [True] * len(store.groups)

    asyncio.run(main())


def test_a_write_to_disk_is_synced_within_its_time_though_nothing_follows() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, disk_sync_ms=20) as engine:
            await engine.put_topic("t", {"durability": "disk"})
            store.groups.clear()
            await write(engine, "t", 1)
            assert store.groups == [(1, False)]
            await until(lambda: (1, True) in store.groups)

    asyncio.run(main())


def test_every_partition_with_writes_to_disk_is_synced_by_itself() -> None:
    """A store may keep partitions in several files: what syncs one says nothing of another."""

    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=4, disk_sync_ms=20) as engine:
            names = [f"t{number}" for number in range(12)]
            for name in names:
                await engine.put_topic(name, {"durability": "disk"})
            partitions = {engine.writer(name).number for name in names}
            assert len(partitions) > 1
            store.synced.clear()
            await asyncio.gather(*(write(engine, name, 1) for name in names))
            await until(lambda: store.synced >= partitions)
            for name in names:
                await write(engine, name, 2)
            store.synced.clear()
            assert engine.journal.unsynced
        assert store.synced >= partitions, "a clean end syncs all of them"

    asyncio.run(main())


def test_seqs_that_are_set_aside_for_copies_in_memory_are_synced() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=8, disk_sync_ms=600_000) as engine:
            await engine.put_topic("a", {"durability": "ephemeral"})
            await engine.put_topic("b", {"durability": "ephemeral"})
            assert engine.writer("a") is not engine.writer("b")
            await engine.routers.put(RouterConfig("r", "a", "b"))
            store.synced.clear()
            await write(engine, "a", 1)
            assert await data(engine, "b") == [b"1"]
            assert engine.writer("b").number in store.synced
            store.synced.clear()
            await write(engine, "a", 2)
            assert await data(engine, "b") == [b"1", b"2"]
            assert not store.synced, "there are enough of them for the next one"

    asyncio.run(main())


def test_what_could_not_be_synced_is_synced_before_the_end_is_called_clean() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=4) as engine:
            names = {engine.writer(name).number: name for name in "abcdefghij"}
            assert len(names) > 1
            number, name = max(names.items())
            await write(engine, name, 1)
            await until(lambda: not engine.journal.queue_depth and not engine.journal.unsynced)
            await write(engine, name, 2)
            store.failures.append(DiskFull("no space is left"))
            await until(lambda: not store.failures and not engine.journal.queue_depth)
            assert engine.journal.unsynced
            store.synced.clear()
        assert number in store.synced

    asyncio.run(main())


def test_an_answer_may_lead_to_another_write_before_the_writes_beside_it() -> None:
    async def main() -> None:
        async with engine_on(partitions=1) as engine:
            await engine.put_topic("e", {"durability": "ephemeral"})
            await engine.put_topic("d", {})
            await write(engine, "e", 0)
            got: list[object] = []
            again = partial(engine.write, "e", parse_write(body(2)), got.append)
            engine.write("d", parse_write(body(0)), lambda _outcome: again())
            engine.write("e", parse_write(body(1)), got.append)
            await until(lambda: len(got) == 2)
            assert await data(engine, "e") == [b"0", b"1", b"2"]

    asyncio.run(main())


def test_what_the_log_refused_leaves_no_trace_and_the_next_write_goes_on() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1) as engine:
            await engine.put_topic("t", {"durability": "fsync"})
            await write(engine, "t", 1)
            store.shut()
            store.failures.append(DiskFull("no space is left"))
            first = asyncio.create_task(write(engine, "t", 2, idempotency_key="k"))
            await asyncio.sleep(0.01)
            behind = asyncio.create_task(write(engine, "t", 3))
            await asyncio.sleep(0.01)
            store.open()
            with pytest.raises(LogFailed, match="no space is left"):
                await first
            with pytest.raises(LogFailed):
                await behind
            assert await data(engine, "t") == [b"1"]
            told = scheduler_view(engine)["log"]
            assert told["failures"] == 1
            assert "no space is left" in told["last_failure"]
            again = await write(engine, "t", 2, idempotency_key="k")
            assert (again.first_seq, again.deduped) == (2, False)
            assert await data(engine, "t") == [b"1", b"2"]

    asyncio.run(main())


def test_jobs_whose_ack_the_log_refused_are_still_held_and_can_be_acked_again() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1) as engine:
            await engine.put_topic("q", {"type": "queue"})
            await write(engine, "q", 1, 2)
            await engine.queues.claim("q", ClaimRequest("n", 2))
            store.failures.append(DiskFull("no space is left"))
            with pytest.raises(LogFailed):
                await engine.queues.ack("q", Settle("n", (1, 2)))
            assert await data(engine, "q") == [b"1", b"2"]
            settled = await engine.queues.ack("q", Settle("n", (1, 2)))
            assert (settled.seqs, settled.skipped) == ((1, 2), [])
            assert await data(engine, "q") == []

    asyncio.run(main())


def test_a_change_of_configuration_waits_for_writes_before_it_and_holds_those_after_it() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1) as engine:
            await engine.put_topic("t", {})
            store.shut()
            before = [asyncio.create_task(write(engine, "t", n)) for n in range(3)]
            await asyncio.sleep(0)
            change = asyncio.create_task(engine.put_topic("t", {"cap_records": 2}))
            await asyncio.sleep(0.005)
            after = [asyncio.create_task(write(engine, "t", n)) for n in range(3, 6)]
            await asyncio.sleep(0.005)
            store.open()
            written = [(await each).first_seq for each in before + after]
            assert written == [1, 2, 3, 4, 5, 6]
            assert (await change)[1].cap_records == 2
            assert await data(engine, "t") == [b"4", b"5"]

    asyncio.run(main())


def test_what_a_source_has_is_read_from_its_destinations_at_once_through_a_chain() -> None:
    async def main() -> None:
        async with engine_on(partitions=4) as engine:
            for number in range(5):
                await engine.routers.put(RouterConfig(f"r{number}", f"t{number}", f"t{number + 1}"))
            for number in range(20):
                await write(engine, "t0", number)
                assert len(await data(engine, "t5")) == number + 1

    asyncio.run(main())


def test_a_watcher_of_a_destination_is_woken_without_anyone_reading() -> None:
    async def main() -> None:
        async with engine_on(partitions=4) as engine:
            await engine.routers.put(RouterConfig("r", "a", "b"))
            poll = asyncio.create_task(engine.diff("b", ReadRequest(wait_ms=30_000)))
            await asyncio.sleep(0)
            await write(engine, "a", 7)
            assert len((await asyncio.wait_for(poll, 10)).records) == 1

    asyncio.run(main())


def test_a_router_is_held_by_a_full_destination_and_goes_on_when_there_is_room() -> None:
    async def main() -> None:
        async with engine_on(partitions=4) as engine:
            await engine.put_topic("b", {"cap_records": 2, "discard": "reject"})
            await engine.routers.put(RouterConfig("r", "a", "b"))
            await write(engine, "a", 1, 2, 3)
            assert await data(engine, "b") == [b"1", b"2"]
            reason = scheduler_view(engine, "a")["topic"]["routers"][0]["reason"]
            assert "full" in reason
            with pytest.raises(TopicFull):
                await write(engine, "b", 9)
            await engine.delete("b", before_seq=2)
            await until(lambda: engine.topic("b").head_seq == 3)
            assert await data(engine, "b") == [b"2", b"3"]

    asyncio.run(main())


@pytest.mark.parametrize("change", [{"cap_records": 9}, {"discard": "old"}, {"cap_records": 0}])
def test_a_held_router_goes_on_when_its_destination_is_configured_anew(
    change: dict[str, Any],
) -> None:
    async def main() -> None:
        async with engine_on(partitions=4) as engine:
            await engine.put_topic("b", {"cap_records": 2, "discard": "reject"})
            await engine.routers.put(RouterConfig("r", "a", "b"))
            await write(engine, "a", 1, 2, 3)
            await until(lambda: engine.topic("b").head_seq == 2)
            await engine.put_topic("b", change)
            await until(lambda: engine.topic("b").head_seq == 3)

    asyncio.run(main())


def test_a_held_router_goes_on_when_records_leave_by_age() -> None:
    async def main() -> None:
        async with engine_on(partitions=4) as engine:
            await engine.put_topic("b", {"cap_records": 2, "discard": "reject", "ttl_ms": 50})
            await engine.routers.put(RouterConfig("r", "a", "b"))
            await write(engine, "a", 1, 2, 3)
            await until(lambda: engine.topic("b").head_seq == 3)

    asyncio.run(main())


def test_whoever_reads_a_destination_while_the_log_fails_lets_others_go_on() -> None:
    """A router's copies are on their way behind a write that fails."""

    async def main() -> None:
        async with engine_on(partitions=1) as engine:
            await engine.put_topic("other", {})
            await engine.routers.put(RouterConfig("r", "a", "b"))
            answers: list[Any] = []
            slow = pytest.MonkeyPatch()
            slow.setattr(engine.journal, "append", lambda *args, **_: answers.append(args[2]))
            tasks = [asyncio.create_task(write(engine, "a", 1))]
            await until(lambda: len(answers) == 1)
            tasks.append(asyncio.create_task(write(engine, "other", 1)))
            await until(lambda: len(answers) == 2)
            answers[0](None)
            await until(lambda: len(answers) == 3)
            answers[1](DiskFull("no space is left"))
            reading = asyncio.create_task(engine.diff("b", ReadRequest()))
            await asyncio.sleep(0)
            slow.undo()
            answers[2](DiskFull("no space is left"))
            with pytest.raises(LogFailed):
                await tasks[1]
            await asyncio.wait_for(asyncio.gather(tasks[0], reading, return_exceptions=True), 20)

    asyncio.run(main())


def test_a_command_of_several_commits_that_fails_after_the_first_is_not_said_to_be_undone() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=3) as engine:
            names = [f"t{number}" for number in range(20)]
            source = names[0]
            dest = next(name for name in names if engine.writer(name) is not engine.writer(source))
            await engine.put_topic(dest, {})
            store.failures.append(DiskFull("no space is left"))
            with pytest.raises(LogFailed):  # its first commit
                await engine.routers.put(RouterConfig("r", source, dest))
            assert source not in engine.registry.topics
            await engine.put_topic(source, {})
            store.failures.append(DiskFull("no space is left"))
            with pytest.raises(LogFailed):  # its only commit
                await engine.routers.put(RouterConfig("r", source, dest))
            await engine.routers.put(RouterConfig("r", source, dest))
            store.refuses = engine.writer(source).number
            with pytest.raises(LogUncertain, match=r"only a part of this was done: .*no space"):
                await engine.routers.drop_topic(source)
            store.refuses = None
            assert engine.registry.routers.find("r") is None, "the router is removed"
            assert source in engine.registry.topics
            assert (await engine.routers.drop_topic(source))[0]

    asyncio.run(main())


def test_a_command_that_waits_for_a_router_did_nothing_if_that_is_unknown() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1) as engine:
            await engine.put_topic("a", {"durability": "ephemeral"})
            await engine.put_topic("q", {"type": "queue"})
            await engine.routers.put(RouterConfig("r", "a", "q"))
            await write(engine, "a", 1)
            assert await data(engine, "q") == [b"1"]
            store.failures.extend(SyncFailed("may or may not be durable") for _ in range(1_000))
            await write(engine, "a", 2)
            with pytest.raises(LogFailed, match="may or may not be durable"):
                await engine.queues.ack("q", Settle("n", (1,)))
            assert await data(engine, "q") == [b"1"]
            store.failures.clear()
            assert await data(engine, "q") == [b"1", b"2"]

    asyncio.run(main())


def test_a_write_whose_sync_failed_is_unknown_and_not_visible() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1) as engine:
            await engine.put_topic("t", {"durability": "fsync"})
            store.failures.append(SyncFailed("the sync failed"))
            with pytest.raises(LogUncertain, match="may or may not have been written: the sync"):
                await write(engine, "t", 1, idempotency_key="k")
            assert await data(engine, "t") == []

    asyncio.run(main())


def test_while_the_log_takes_nothing_readers_of_a_destination_get_what_it_has() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=3) as engine:
            await engine.put_topic("a", {"durability": "ephemeral"})
            await engine.put_topic("b", {"type": "queue"})
            await engine.routers.put(RouterConfig("r", "a", "b"))
            await write(engine, "a", 1)
            assert await data(engine, "b") == [b"1"]
            store.failures.extend(DiskFull("no space is left") for _ in range(1_000))
            await write(engine, "a", 2)
            assert await data(engine, "b") == [b"1"]
            assert (await show_topic(engine, "b")).head_seq == 1
            assert (await engine.routers.show("r")).source_seq == 1
            with pytest.raises(LogFailed):  # though the claim alone needs no log
                await engine.queues.claim("b", ClaimRequest("n"))
            store.failures.clear()
            assert await data(engine, "b") == [b"1", b"2"]

    asyncio.run(main())


def test_a_dropped_topic_takes_its_routers_along_wherever_they_live() -> None:
    async def main() -> None:
        async with engine_on(partitions=8) as engine:
            for number in range(6):
                await engine.routers.put(RouterConfig(f"out{number}", "t", f"d{number}"))
            await engine.routers.put(RouterConfig("in", "s", "t"))
            deleted, removed = await engine.routers.drop_topic("t")
            assert deleted
            assert removed == ["in", *[f"out{n}" for n in range(6)]]
            assert await engine.routers.drop_topic("t") == (False, [])
            with pytest.raises(TopicNotFound):
                await data(engine, "t")
            await write(engine, "t", 1)
            assert await data(engine, "t") == [b"1"]
            assert await data(engine, "d0") == []

    asyncio.run(main())


def test_dead_letters_reach_their_topic_wherever_it_lives() -> None:
    async def main() -> None:
        async with engine_on(partitions=8) as engine:
            for number in range(6):
                name, dead = f"q{number}", f"dead{number}"
                config = {"type": "queue", "max_deliveries": 1, "dead_letter": dead}
                await engine.put_topic(name, config)
                await write(engine, name, number)
                claims = await engine.queues.claim(name, ClaimRequest("n"))
                await engine.queues.nack(name, Settle("n", (claims.jobs[0].lease.seq,)), 0)
                assert (await engine.queues.claim(name, ClaimRequest("n"))).jobs == []
                assert await data(engine, dead) == [b"%d" % number]
                view = await show_topic(engine, name)
                assert view.queue is not None
                assert (view.queue.dead_lettered, view.count) == (1, 0)

    asyncio.run(main())


def test_dead_letters_wait_for_whoever_drops_their_topic_meanwhile() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=8) as engine:
            config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
            await engine.put_topic("q", config)
            await engine.put_topic("dead", {})
            dest_writer = engine.writer("dead")
            assert engine.writer("q") is not dest_writer
            await write(engine, "q", 1)
            await engine.queues.claim("q", ClaimRequest("n"))
            await engine.queues.nack("q", Settle("n", (1,)), 0)
            store.shut()
            writing = asyncio.create_task(write(engine, "dead", 0))
            await until(lambda: dest_writer.waiting_bytes > 0)
            dropping: list[asyncio.Task[Any]] = []

            def drop(_outcome: object) -> None:
                dropping.append(asyncio.create_task(engine.routers.drop_topic("dead")))

            dest_writer.after(drop)  # just before the claim below has waited long enough
            claiming = asyncio.create_task(engine.queues.claim("q", ClaimRequest("n")))
            for _ in range(9):
                await asyncio.sleep(0)
            store.open()
            await writing
            assert (await asyncio.wait_for(claiming, DEADLINE_S)).jobs == []
            assert await asyncio.wait_for(dropping[0], DEADLINE_S) == (True, [])
            assert engine.topic("q").count == 0
            await write(engine, "dead", 2)
            assert await data(engine, "dead") == [b"2"]

    asyncio.run(main())


def test_a_job_that_someone_got_while_its_letter_travelled_stays_with_its_holder() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=8) as engine:
            config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
            await engine.put_topic("q", config)
            dest_writer = engine.writer("dead")
            assert engine.writer("q") is not dest_writer
            await write(engine, "q", 1)
            await engine.queues.claim("q", ClaimRequest("n"))
            await engine.queues.nack("q", Settle("n", (1,)), 0)
            store.shut()
            burying = asyncio.create_task(engine.queues.claim("q", ClaimRequest("n")))
            await until(lambda: dest_writer.waiting_bytes > 0)
            putting = asyncio.create_task(engine.put_topic("q", {"max_deliveries": 0}))
            await until(lambda: engine.writer("q").is_held)
            claiming = asyncio.create_task(engine.queues.claim("q", ClaimRequest("m")))
            await asyncio.sleep(0)
            store.open()
            await putting
            assert [job.lease.seq for job in (await claiming).jobs] == [1]
            assert (await burying).jobs == []
            assert engine.topic("dead").count == 1
            settled = await engine.queues.ack("q", Settle("m", (1,)))
            assert (settled.seqs, settled.counts.dead_lettered) == ((1,), 0)

    asyncio.run(main())


def test_a_list_of_topics_shows_as_gone_what_is_too_old_and_changes_nothing() -> None:
    async def main() -> None:
        clock = ManualClock()
        engine = Engine(GatedStore(), EngineOptions(), clock=clock)  # type: ignore[arg-type]
        await engine.open()
        await engine.put_topic("t", {"ttl_ms": 10})
        await write(engine, "t", 1, 2)
        clock.advance(11)
        rows, _ = await TopicLists(engine).page(TopicQuery(page_size=9))
        assert [row.size_bytes for row in rows] == [0]
        assert engine.registry.size_bytes == 2
        await engine.close()

    asyncio.run(main())


def test_a_claimer_that_leaves_a_window_takes_no_other_along() -> None:
    async def main() -> None:
        async with engine_on() as engine:
            await engine.put_topic("q", {"type": "queue", "claim_jitter_ms": 30})
            await write(engine, "q", 1, 2)
            first, second = [
                asyncio.create_task(engine.queues.claim("q", ClaimRequest(node))) for node in "ab"
            ]
            for _ in range(9):
                await asyncio.sleep(0)
            first.cancel()
            assert len((await second).jobs) == 1
            assert first.cancelled()

    asyncio.run(main())


def test_claims_that_wait_in_a_window_are_served_in_turns() -> None:
    async def main() -> None:
        async with engine_on() as engine:
            await engine.put_topic("q", {"type": "queue", "claim_jitter_ms": 30})
            await write(engine, "q", *range(6))
            claims = [engine.queues.claim("q", ClaimRequest(f"n{n}", 2)) for n in range(3)]
            found = await asyncio.gather(*claims)
            got = [[job.lease.seq for job in each.jobs] for each in found]
            assert got == [[1, 4], [2, 5], [3, 6]]

    asyncio.run(main())


def test_a_window_whose_claim_the_log_refused_takes_no_other_along() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1) as engine:
            config = {"type": "queue", "claim_jitter_ms": 20, "leases_durable": True}
            await engine.put_topic("q", config)
            await write(engine, "q", 1, 2)
            store.shut()
            store.failures.append(DiskFull("no space is left"))
            first = asyncio.create_task(engine.queues.claim("q", ClaimRequest("a")))
            await until(lambda: engine.writer("q").waiting_bytes > 0)
            second = asyncio.create_task(engine.queues.claim("q", ClaimRequest("b")))
            await asyncio.sleep(0)
            store.open()
            with pytest.raises(LogFailed):
                await first
            assert [job.lease.seq for job in (await second).jobs] == [1]

    asyncio.run(main())


def test_one_claim_buries_many_jobs_and_leaves_the_rest_to_the_next() -> None:
    async def main() -> None:
        async with engine_on(partitions=1) as engine:
            config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
            await engine.put_topic("q", config)
            total = DEAD_LETTERS_MAX + 5
            await write(engine, "q", *range(total + 1))
            request = ClaimRequest("n", DEAD_LETTERS_MAX)
            for _ in range(2):
                seqs = [job.lease.seq for job in (await engine.queues.claim("q", request)).jobs]
                seqs = [seq for seq in seqs if seq <= total]
                await engine.queues.nack("q", Settle("n", tuple(seqs)), 0)
            await engine.queues.nack("q", Settle("n", (total + 1,)), 0)
            assert engine.topic("dead").count == DEAD_LETTERS_MAX
            assert engine.topic("q").count == 6
            assert (await engine.queues.claim("q", request)).jobs == []
            assert engine.topic("dead").count == total + 1

    asyncio.run(main())


def test_an_acked_job_is_not_shown_to_a_watcher_that_comes_later() -> None:
    async def main() -> None:
        async with engine_on() as engine:
            await engine.put_topic("q", {"type": "queue"})
            await write(engine, "q", "job")
            topic = engine.topic("q")
            pages = [engine.watchers.page(topic, 0, None, PageShape(), 0)]
            await engine.queues.claim("q", ClaimRequest("n"))
            await engine.queues.ack("q", Settle("n", (1,)))
            pages.append(engine.watchers.page(topic, 0, None, PageShape(), 0))
            assert [b"job" in page.records for page in pages] == [True, False]

    asyncio.run(main())


def test_a_topic_configured_anew_is_shown_to_a_watcher_as_it_is_now() -> None:
    async def main() -> None:
        async with engine_on() as engine:
            await write(engine, "t", 1, node="n")
            topic, shape = engine.topic("t"), PageShape(ReadRequest(nodes=frozenset("n")))
            assert not engine.watchers.page(topic, 0, None, shape, 0).diff.records
            await engine.put_topic("t", {"dedupe_node": False})
            assert len(engine.watchers.page(topic, 0, None, shape, 0).diff.records) == 1

    asyncio.run(main())


def test_a_write_to_several_topics_is_whole_or_not_at_all() -> None:
    async def main() -> None:
        async with engine_on(partitions=1) as engine:
            await engine.put_topic("full", {"cap_records": 1, "discard": "reject"})
            await write(engine, "full", 0)
            wanted = [(name, parse_write(body(1))) for name in ("a", "b", "full")]
            with pytest.raises(TopicFull):
                await engine.write_many(wanted)
            assert "a" not in engine.registry.topics
            written = await engine.write_many(wanted[:2])
            assert [each.created for each in written] == [True, True]
            assert await data(engine, "a") == await data(engine, "b") == [b"1"]

    asyncio.run(main())


def test_topics_that_live_apart_cannot_be_written_in_one_commit() -> None:
    async def main() -> None:
        async with engine_on(partitions=16) as engine:
            names = [f"t{number}" for number in range(32)]
            other = next(name for name in names if engine.writer(name) is not engine.writer("t0"))
            with pytest.raises(TopicsApart):
                await engine.write_many(
                    [("t0", parse_write(body(1))), (other, parse_write(body(1)))]
                )
            assert not engine.registry.topics

    asyncio.run(main())


def test_what_waits_for_the_log_is_bounded_and_refused_before_it_is_appended() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1, waiting_bytes_max=1_000) as engine:
            await engine.put_topic("t", {})
            store.shut()
            tasks = []
            for _ in range(30):
                tasks.append(asyncio.create_task(write(engine, "t", "x" * 100)))
                await asyncio.sleep(0.001)
            refused = [task for task in tasks if task.done()]
            assert refused
            for task in refused:
                with pytest.raises(Saturated) as error:
                    task.result()
                assert error.value.detail["retry_after_ms"] > 0
            store.open()
            kept = [await task for task in tasks if task not in refused]
            assert (await show_topic(engine, "t")).head_seq == len(kept)

    asyncio.run(main())


def test_a_restart_finds_everything_that_was_answered() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=4) as engine:
            await engine.routers.put(RouterConfig("r", "a", "b", guarantee="exactly_once"))
            await engine.put_topic("e", {"durability": "ephemeral"})
            await engine.put_topic("q", {"type": "queue"})
            for number in range(10):
                await write(engine, "a", number, idempotency_key=f"k{number}")
                await write(engine, "e", number)
                await write(engine, "q", number)
            await engine.delete("a", match=Predicate("none", prefix=False))
            await engine.delete("a", before_seq=4)
            claims = await engine.queues.claim("q", ClaimRequest("n", 3))
            await engine.queues.ack("q", Settle("n", (claims.jobs[0].lease.seq,)))
            before = await shown(engine)
        async with engine_on(store, partitions=4) as engine:
            after = await shown(engine)
            assert after == before | {"e": (10, 11, [])}
            assert (await write(engine, "a", 99, idempotency_key="k7")).first_seq == 8
            assert (await write(engine, "e", 0)).first_seq == 11
            assert len((await engine.queues.claim("q", ClaimRequest("n", 99))).jobs) == 9

    async def shown(engine: Any) -> dict[str, Any]:
        found = {}
        for name in ("a", "b", "e", "q"):
            view = await show_topic(engine, name)
            found[name] = (view.head_seq, view.earliest_seq, await data(engine, name))
        return found

    asyncio.run(main())


def test_leases_end_though_the_wall_clock_was_set_back() -> None:
    class SetBack(ManualClock):
        ahead_ms = 3_600_000

        def now_ms(self) -> int:
            return super().now_ms() + self.ahead_ms

    async def main() -> None:
        clock = SetBack()
        engine = Engine(GatedStore(), EngineOptions(), clock=clock)  # type: ignore[arg-type]
        await engine.open()
        await engine.put_topic("q", {"type": "queue", "lease_ms": 1_000})
        await write(engine, "q", 1)
        clock.ahead_ms = 0
        assert (await engine.queues.claim("q", ClaimRequest("a"))).jobs
        clock.advance(900)
        assert not (await engine.queues.claim("q", ClaimRequest("b"))).jobs
        clock.advance(200)
        assert (await engine.queues.claim("q", ClaimRequest("b"))).jobs
        await engine.close()

    asyncio.run(main())


def test_a_listener_that_fails_stops_neither_others_nor_routers() -> None:
    async def main() -> None:
        async with engine_on(partitions=2) as engine:
            await engine.routers.put(RouterConfig("r", "t", "copies"))
            woken: list[str] = []

            def fail(_topic: str) -> None:
                raise ValueError("a bug")

            for listener in (fail, woken.append):
                engine.watchers.listen("t", listener)
                engine.watchers.listen_created(listener)
            await write(engine, "t", 1)
            await until(lambda: "t" in woken)
            await until(lambda: engine.topic("copies").count == 1)
            await engine.put_topic("new", {})
            assert "new" in woken

    asyncio.run(main())


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 200}])
def test_a_topic_of_dead_letters_takes_as_many_as_it_has_room_for(cap: dict[str, int]) -> None:
    async def main() -> None:
        async with engine_on(partitions=1) as engine:
            await engine.put_topic("dead", {"discard": "reject", **cap})
            config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
            await engine.put_topic("q", config)
            for number in range(5):
                await write(engine, "q", number)
            await engine.queues.claim("q", ClaimRequest("n", 5))
            await engine.queues.nack("q", Settle("n", (1, 2, 3, 4, 5)), 0)
            assert (await engine.queues.claim("q", ClaimRequest("n"))).jobs == []
            assert await data(engine, "dead") == [b"0", b"1"]
            await engine.delete("dead", before_seq=3)
            assert (await engine.queues.claim("q", ClaimRequest("n"))).jobs == []
            assert await data(engine, "dead") == [b"2", b"3"]
            view = await show_topic(engine, "q")
            assert view.queue == QueueCounts(ready=1, in_flight=0, dead_lettered=4)

    asyncio.run(main())


def test_what_was_written_to_several_topics_is_answered_again_though_there_is_no_room() -> None:
    async def main() -> None:
        async with engine_on(partitions=1, limits=TopicLimits(total_bytes_max=4)) as engine:
            body = b'{"records":[{"data":1},{"data":2}],"idempotency_key":"k"}'
            writes = [("a", parse_write(body)), ("b", parse_write(body))]
            first = await engine.write_many(writes)
            again = await engine.write_many(writes)
            assert [each.deduped for each in again] == [True, True]
            assert [each.last_seq for each in again] == [each.last_seq for each in first]
            with pytest.raises(Throttled):
                await engine.write_many([("a", parse_write(b'{"records":[{"data":3}]}'))])

    asyncio.run(main())
