"""Three engines of one process as one cluster: what one acknowledges, a majority has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from traceback import walk_tb

import pytest

from penstock.kernel.errors import Corrupt, Unknown
from penstock.protocol.errors import NotReady
from penstock.raft.members import ADD_LEARNER, PROMOTE, REMOVE, Change
from penstock.raft.messages import Heartbeat
from penstock.raft.ready import NotLeader
from penstock.topics.engine.engine import Engine
from tests.integration.topics.cluster import Cluster, cluster_of
from tests.integration.topics.engines import data, write
from tests.integration.topics.node import SMALL, drained, on_a_loop
from tests.waiting import until


def number_of(engine: Engine, topic: str) -> int:
    return engine.writer(topic).number


async def leader_of(cluster: Cluster, topic: str) -> Engine:
    return await cluster.led(number_of(next(iter(cluster.engines.values())), topic))


@on_a_loop
async def test_what_the_leader_acknowledges_is_applied_on_all() -> None:
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        for number in range(20):
            assert (await write(leader, "t", number)).first_seq == number + 1
        await cluster.equal()
        for engine in cluster.engines.values():
            assert await data(engine, "t") == [b"%d" % number for number in range(20)]


@on_a_loop
async def test_a_follower_refuses_and_names_the_leader() -> None:
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        await write(leader, "t", 1)
        await cluster.equal()
        for member, engine in cluster.engines.items():
            if engine is leader:
                continue
            with pytest.raises(NotLeader) as refused:
                await write(engine, "t", 2)
            assert refused.value.detail["leader"] == leader.journal.options.member != member
            with pytest.raises(NotLeader):
                await engine.put_topic("t", {"ttl_ms": 5})
            assert not engine.writer("t").leads
        assert await data(leader, "t") == [b"1"]


@on_a_loop
async def test_heartbeats_leave_in_the_turn_in_which_they_are_due() -> None:
    """A turn of a node that has more to do than time is long: they must not wait for the next."""
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        await cluster.equal()
        for _ in range(20):  # every letter that was due has left
            await asyncio.sleep(0)
        before = cluster.sent
        leader.journal.stop_timed_syncs()
        leader.journal._tick_by_time()
        assert cluster.sent == before + 2


@on_a_loop
async def test_a_leader_that_dies_is_followed_and_nothing_is_lost() -> None:
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        for number in range(5):
            await write(leader, "t", number)
        await cluster.kill(leader.journal.options.member)
        following = await leader_of(cluster, "t")
        assert (await write(following, "t", 5)).first_seq == 6
        await cluster.start(leader.journal.options.member, (1, 2, 3))
        await cluster.equal()
        for engine in cluster.engines.values():
            assert await data(engine, "t") == [b"%d" % number for number in range(6)]


@on_a_loop
async def test_a_leader_that_is_cut_off_acknowledges_nothing_and_its_writes_are_unknown() -> None:
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        await write(leader, "t", 0)
        alone = leader.journal.options.member
        cluster.cut = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if alone in (a, b)}
        lost = asyncio.create_task(write(leader, "t", 1))
        await until(lambda: not leader.journal.serves(number_of(leader, "t")), "it steps down")
        with pytest.raises(Unknown):
            await lost
        await until(lambda: len([e for e in cluster.engines.values() if e.writer("t").leads]) == 1)
        following = next(e for e in cluster.engines.values() if e.writer("t").leads)
        await write(following, "t", 2)
        cluster.cut = set()
        await cluster.equal()
        assert [await data(engine, "t") for engine in cluster.engines.values()] == [
            [b"0", b"2"]
        ] * 3


@on_a_loop
async def test_a_linearizable_read_shows_on_a_follower_what_was_acknowledged_before() -> None:
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        number = number_of(leader, "t")
        for count in range(1, 10):
            await write(leader, "t", count)
            for engine in cluster.engines.values():
                await engine.journal.confirm_read(number)
                assert len(await data(engine, "t")) == count


@on_a_loop
async def test_each_life_of_a_member_numbers_its_reads_from_elsewhere() -> None:
    async with cluster_of() as cluster:
        firsts = {cluster.engines[3].journal.groups[number]._contexts for number in (0, 1)}
        await cluster.kill(3)
        again = await cluster.start(3, (1, 2, 3))
        firsts |= {again.journal.groups[number]._contexts for number in (0, 1)}
        assert len(firsts) == 4
        await until(lambda: again.journal.leader(0) > 0, "a leader that is known")
        await again.journal.confirm_read(0)


@on_a_loop
async def test_a_member_joins_is_promoted_and_another_one_leaves() -> None:
    async with cluster_of() as cluster:
        await cluster.start(4, ())
        for number in range(2):
            journal = (await cluster.led(number)).journal
            await journal.change_members(number, Change(ADD_LEARNER, 4))
        leader = await leader_of(cluster, "t")
        await write(leader, "t", 1)
        await cluster.equal()
        for number in range(2):
            journal = (await cluster.led(number)).journal
            await journal.change_members(number, Change(PROMOTE, 4))
            gone = next(m for m in (1, 2, 3) if m != journal.options.member)
            await journal.change_members(number, Change(REMOVE, gone))
            assert journal.members(number).voters == tuple(sorted({1, 2, 3, 4} - {gone}))
            journal.transfer(number, 4)
            await until(lambda n=number: cluster.engines[4].journal.serves(n), "4 leads")
        await write(cluster.engines[4], "t", 2)
        assert await data(cluster.engines[4], "t") == [b"1", b"2"]


@on_a_loop
async def test_a_letter_that_is_none_is_refused() -> None:
    async with cluster_of() as cluster:
        journal = cluster.engines[1].journal
        for letter in (b"", b"\x92\x02\x90", b"\x92\x01\x91\x92\x00\x93", b"x" * 100):
            with pytest.raises(Corrupt):
                journal.receive(2, letter)


@on_a_loop
async def test_a_member_that_was_away_too_long_takes_in_a_snapshot(tmp_path: Path) -> None:
    async with cluster_of(directory=tmp_path, seal=SMALL) as cluster:
        leader = await leader_of(cluster, "t")
        number = number_of(leader, "t")
        await write(leader, "t", *range(100))
        away = next(m for m in cluster.engines if m != leader.journal.options.member)
        await cluster.applied()
        await cluster.kill(away)
        for first in range(100, 700, 100):
            await write(leader, "t", *range(first, first + 100))
            await until(lambda: not heard(leader, number, away), "it is missed")
            await leader.compact()
        await cluster.start(away, (1, 2, 3))
        await cluster.applied()
        await until(lambda: cluster.snapshots == 1, "the snapshot is in")
        await write(leader, "t", 700)
        await cluster.applied()
        assert await drained(cluster.engines[away], "t") == list(range(701))
        await cluster.kill(away)  # what it took in is found again
        again = await cluster.start(away, (1, 2, 3))
        await cluster.applied()
        assert await drained(again, "t") == list(range(701))


@on_a_loop
async def test_what_was_staged_when_the_leadership_was_lost_is_not_counted_on_later() -> None:
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        number, own = number_of(leader, "t"), leader.journal.options.member
        await write(leader, "t", 0)
        await cluster.applied()
        writer, group = leader.writer("t"), leader.journal.groups[number]
        lost = asyncio.ensure_future(write(leader, "t", "lost"))
        await asyncio.sleep(0)  # it is decided and waits for its group commit
        assert writer.partition.topics["t"].next_seq == 3
        other = next(m for m in cluster.engines if m != own)
        group.take([Heartbeat(own, other, group.core.term + 1, 0)])
        with pytest.raises(NotLeader):
            await lost
        assert writer.partition.topics["t"].next_seq == 2


@on_a_loop
async def test_a_topic_is_not_gone_while_its_snapshot_is_read_in(tmp_path: Path) -> None:
    async with cluster_of(directory=tmp_path, seal=SMALL) as cluster:
        leader = await leader_of(cluster, "t")
        number, own = number_of(leader, "t"), leader.journal.options.member
        await write(leader, "t", *range(100))
        away = next(m for m in cluster.engines if m != own)
        await cluster.applied()
        cluster.cut |= {(m, away) for m in cluster.engines} | {(away, m) for m in cluster.engines}
        for first in range(100, 700, 100):
            await write(leader, "t", *range(first, first + 100))
            await until(lambda: not heard(leader, number, away), "it is missed")
            await leader.compact()
        looks: list[int] = []

        async def look() -> None:
            while True:
                try:
                    looks.append(cluster.engines[away].topic("t").head_seq)
                except NotReady:
                    looks.append(-1)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        cluster.cut.clear()
        await until(lambda: cluster.snapshots or looking.done(), "the snapshot is in")
        assert not looking.done(), looking.exception()
        looking.cancel()
        assert -1 in looks
        await cluster.applied()
        assert await drained(cluster.engines[away], "t") == list(range(700))


def heard(engine: Engine, number: int, member: int) -> bool:
    return any(
        f.member == member and f.heard for f in engine.journal.group_status(number).followers
    )


@on_a_loop
async def test_a_refusal_that_many_get_keeps_nothing_of_those_who_got_it() -> None:
    """Each time an error is raised, its traceback grows, with all that is on the stack."""
    async with cluster_of() as cluster:
        leader = await leader_of(cluster, "t")
        await write(leader, "t", 1)
        await cluster.equal()
        follower = next(each for each in cluster.engines.values() if each is not leader)
        for number in range(50):
            with pytest.raises(NotLeader):
                await write(follower, "t", number)
            with pytest.raises(NotLeader):
                await follower.put_topic("t", {"ttl_ms": 5})
        refusal = follower.writer("t").refusal
        assert refusal is not None
        assert len(list(walk_tb(refusal.__traceback__))) < 20
