"""Dead letters that become jobs again, or are discarded: chosen ones, once, all or none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.kernel.errors import PenstockError, Unavailable
from penstock.protocol.errors import (
    InvalidRequest,
    IsASpace,
    NoDeadLetters,
    NotAQueue,
    ReservedName,
    TopicFull,
    TopicNotFound,
    UpgradePending,
)
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.entries import Appended, Removed
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.versions import WrittenVersion
from penstock.topics.engine import letters as module
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.letters import Choice, LetterCommands
from penstock.topics.engine.queue_views import show_queue
from tests.integration.topics.engines import engine_on
from tests.integration.topics.node import on_a_loop, write

PARTITIONS = 8
NEAR, FAR = "q", "jobs"
"""Queues in the partition of the topic `dead`, and in another one."""
BOTH = pytest.mark.parametrize("name", [NEAR, FAR])


async def made(engine: Engine, name: str, **config: Any) -> None:
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": dead_of(name)} | config
    await engine.put_topic(name, config)


def dead_of(name: str) -> str:
    return "dead" if name == FAR else "dead0"


async def die(engine: Engine, name: str, count: int = 3, reason: str = "why") -> None:
    """Let the next jobs of a queue die for a reason."""
    await write(engine, name, 1, count)
    held = await engine.queues.claim(name, ClaimRequest("n", count))
    seqs = tuple(job.lease.seq for job in held.jobs)
    assert len(seqs) == count
    await engine.queues.nack(name, Settle("n", seqs), 0, reason=reason)
    assert (await engine.queues.claim(name, ClaimRequest("n"))).jobs == []


def live(engine: Engine, name: str) -> list[tuple[int, Any]]:
    """The records of a topic: data and meta."""
    topic = engine.topic(name)
    return [
        (int(bytes(slot.record.data)), json.loads(bytes(slot.record.meta or b"null")))
        for slot in topic.live(0, topic.head_seq)
    ]


@on_a_loop
async def test_one_queue_is_near_its_letters_and_one_is_far() -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        assert engine.writer(NEAR) is engine.writer(dead_of(NEAR))
        assert engine.writer(FAR) is not engine.writer(dead_of(FAR))


@BOTH
@on_a_loop
async def test_letters_are_jobs_again_and_a_second_death_shows(name: str) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name)
        await die(engine, name)
        moved = await engine.letters.redrive(name, Choice())
        assert (moved.topic, moved.skipped, moved.more) == (name, [], False)
        assert len(moved.seqs) == 3
        assert live(engine, name) == [(data, {"$redrives": "1"}) for data in (1, 2, 3)]
        assert live(engine, dead_of(name)) == []
        jobs = (await engine.queues.claim(name, ClaimRequest("n", 3))).jobs
        assert [job.lease.deliveries for job in jobs] == [1, 1, 1]
        seqs = tuple(job.lease.seq for job in jobs)
        await engine.queues.nack(name, Settle("n", seqs), 0, reason="again")
        assert (await engine.queues.claim(name, ClaimRequest("n"))).jobs == []
        shown = await show_queue(engine, name)
        assert [(each.reason, each.redrives) for each in shown.letters] == [("again", 1)] * 3
        assert [(each.reason, each.count) for each in shown.reasons] == [("again", 3)]


@on_a_loop
async def test_letters_of_the_same_partition_move_in_one_entry_of_the_log() -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, NEAR)
        await die(engine, NEAR)
        await engine.letters.redrive(NEAR, Choice())
        writer = engine.writer(NEAR)
        index = writer.applied_index
        (entry,) = engine.journal.entries(writer.number, index, index)
        appended, removed = decode_entries(entry.payload)
        assert isinstance(appended, Appended)
        assert isinstance(removed, Removed)
        assert (appended.batch.count, removed.seqs) == (3, (1, 2, 3))


@BOTH
@on_a_loop
async def test_letters_are_chosen_by_reason_by_seq_and_by_queue(name: str) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name)
        await made(engine, "other", dead_letter=dead_of(name))
        await die(engine, "other", 1)
        await write(engine, dead_of(name), 77)
        for reason in ("why", "", "late"):
            await die(engine, name, 2, reason)
        # Seqs 1 and 2 are not of this queue.
        by_seq = await engine.letters.redrive(name, Choice(seqs=(9, 2, 3, 1, 3)))
        assert (by_seq.seqs, by_seq.skipped) == ((3,), [9, 2, 1])
        assert (await engine.letters.redrive(name, Choice(reason="late"))).seqs == (7, 8)
        assert (await engine.letters.redrive(name, Choice(reason=""))).seqs == (5, 6)
        assert (await engine.letters.redrive(name, Choice(reason="never given"))).seqs == ()
        assert (await engine.letters.redrive(name, Choice())).seqs == (4,)
        assert [data for data, _ in live(engine, dead_of(name))] == [1, 77]


@BOTH
@on_a_loop
async def test_what_an_older_member_cannot_read_is_refused_and_changes_nothing(name: str) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name, leases_durable=True)
        await die(engine, name, 2)
        await write(engine, name, 9)
        (job,) = (await engine.queues.claim(name, ClaimRequest("n"))).jobs
        held = Settle("n", (job.lease.seq,))
        before = live(engine, name), live(engine, dead_of(name))
        engine.registry.written = WrittenVersion(2, ("b", "c"))
        commands = (
            lambda: engine.letters.redrive(name, Choice()),
            lambda: engine.letters.discard(name, Choice()),
            lambda: engine.queues.nack(name, held, 0, reason="why"),
        )
        for command in commands:
            with pytest.raises(UpgradePending, match="upgrade b, c, then try again") as error:
                await command()
            assert error.value.detail == {"needed": 3, "written": 2, "members": ["b", "c"]}
        assert (live(engine, name), live(engine, dead_of(name))) == before
        assert (await engine.queues.nack(name, held, 0)).seqs == held.seqs
        engine.registry.written = WrittenVersion(3)
        assert len((await engine.letters.redrive(name, Choice())).seqs) == 2


@BOTH
@on_a_loop
async def test_letters_go_to_another_topic_if_one_is_named(name: str) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name)
        await engine.put_topic("elsewhere", {})
        await die(engine, name)
        assert (await engine.letters.redrive(name, Choice(), "elsewhere")).topic == "elsewhere"
        assert [data for data, _ in live(engine, "elsewhere")] == [1, 2, 3]
        assert live(engine, name) == []


@BOTH
@on_a_loop
async def test_two_commands_at_once_move_a_letter_once(name: str) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name)
        await die(engine, name)
        both = await asyncio.gather(*[engine.letters.redrive(name, Choice()) for _ in range(2)])
        assert sorted(len(moved.seqs) for moved in both) == [0, 3]
        assert len(live(engine, name)) == 3


@BOTH
@pytest.mark.parametrize(
    ("to", "error"),
    [
        ("full", TopicFull),
        ("space", IsASpace),
        ("none", TopicNotFound),
        ("penstock.events", ReservedName),
        ("", InvalidRequest),
    ],
)
@on_a_loop
async def test_a_refusal_leaves_all_letters_where_they_are(
    name: str, to: str, error: type[PenstockError]
) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name)
        await engine.put_topic("full", {"cap_records": 2, "discard": "reject"})
        await write(engine, "full", 1)
        await engine.put_topic("space", {"type": "space", "durability": "fsync"})
        await die(engine, name, 2)
        before = live(engine, dead_of(name))
        with pytest.raises(error):
            await engine.letters.redrive(name, Choice(), to or dead_of(name))
        assert live(engine, dead_of(name)) == before
        assert len(live(engine, "full")) == 1


@on_a_loop
async def test_far_letters_that_were_written_and_not_taken_out_are_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, FAR)
        await die(engine, FAR)

        async def stopped(*_: object) -> None:
            raise Unavailable("the node stopped here")

        with monkeypatch.context() as patched:
            patched.setattr(LetterCommands, "_take_out", stopped)
            with pytest.raises(Unavailable):
                await engine.letters.redrive(FAR, Choice(seqs=(1, 2)))
        assert (len(live(engine, FAR)), len(live(engine, dead_of(FAR)))) == (2, 3)
        assert len((await engine.letters.redrive(FAR, Choice())).seqs) == 3
        assert sorted(data for data, _ in live(engine, FAR)) == [1, 2, 3]
        assert live(engine, dead_of(FAR)) == []


@on_a_loop
async def test_a_letter_that_a_worker_holds_stays_with_it() -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, NEAR)
        await engine.put_topic(dead_of(NEAR), {"type": "queue"})
        await die(engine, NEAR)
        await engine.queues.claim(dead_of(NEAR), ClaimRequest("doctor"))
        moved = await engine.letters.redrive(NEAR, Choice(seqs=(1, 2, 3)))
        assert (moved.seqs, moved.skipped) == ((2, 3), [1])
        gone = await engine.letters.discard(NEAR, Choice())
        assert gone.seqs == ()
        assert len(live(engine, dead_of(NEAR))) == 1


@BOTH
@on_a_loop
async def test_one_command_moves_so_many_and_says_that_more_wait(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LETTERS_MOVED_MAX", 2)
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name)
        await die(engine, name)
        first = await engine.letters.redrive(name, Choice(seqs=(3, 9, 2, 1)))
        assert (first.seqs, first.skipped, first.more) == ((1, 2), [], True)
        second = await engine.letters.redrive(name, Choice())
        assert (len(second.seqs), second.more) == (1, False)


@BOTH
@on_a_loop
async def test_letters_are_discarded_for_ever_and_others_stay(name: str) -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await made(engine, name)
        await die(engine, name)
        gone = await engine.letters.discard(name, Choice(seqs=(2, 9)))
        assert (gone.seqs, gone.skipped) == ((2,), [9])
        assert [data for data, _ in live(engine, dead_of(name))] == [1, 3]
        assert live(engine, name) == []
        assert (await engine.letters.discard(name, Choice(reason="why"))).seqs == (1, 3)


@on_a_loop
async def test_what_has_no_letters_has_none_to_move() -> None:
    async with engine_on(partitions=PARTITIONS) as engine:
        await engine.put_topic("log", {})
        await made(engine, NEAR)
        await made(engine, "immortal", dead_letter=None)
        for verb in (engine.letters.redrive, engine.letters.discard):
            with pytest.raises(NotAQueue):
                await verb("log", Choice())
            with pytest.raises(TopicNotFound):
                await verb("none", Choice())
            with pytest.raises(NoDeadLetters):
                await verb("immortal", Choice())
            settled = await verb(NEAR, Choice(seqs=(1,)))  # no job has died yet
            assert (settled.seqs, settled.skipped) == ((), [1])
