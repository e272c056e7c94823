"""Spaces on a real loop and a real log: failures, snapshots, cold records, backups."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from penstock.cli import main
from penstock.commits.sessions import SESSION_ANSWERS_MAX
from penstock.log.store import DiskFull
from penstock.protocol.commits import Commit, CommitRead, CommitWrite, Origin, Precondition
from penstock.protocol.errors import (
    CommitConflict,
    CommitProtocol,
    EntityNotFound,
    PastGone,
    PreconditionFailed,
    RefusedByRule,
    Saturated,
)
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.space import SpaceState, state_of
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.spaces import Accepted, PageRequest
from penstock.topics.engine.writers import LogFailed
from tests.integration.topics.engines import engine_on, write
from tests.integration.topics.gated import GatedStore
from tests.integration.topics.node import SMALL, node, on_a_loop
from tests.waiting import until

Outcome = Accepted | Exception


def begin(engine: Engine, commit: Commit, space: str = "s") -> asyncio.Future[Outcome]:
    """Send a commit; its outcome, once there is one."""
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    engine.spaces.commit(space, commit, future.set_result)
    return future


async def land(engine: Engine, commit: Commit, space: str = "s") -> Accepted:
    outcome = await begin(engine, commit, space)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def put(entity: str, document: Any) -> CommitWrite:
    return CommitWrite(entity=entity, set=document)


def patch(entity: str, document: Any) -> CommitWrite:
    return CommitWrite(entity=entity, patch=document)


def commit(number: int, *writes: CommitWrite, session: str = "a", **fields: Any) -> Commit:
    return Commit(session=session, local_seq=number, writes=writes, **fields)


async def document(engine: Engine, entity: str, at_seq: int | None = None) -> Any:
    return json.loads((await engine.spaces.entity("s", entity, at_seq)).document)


def states(engine: Engine) -> dict[str, SpaceState]:
    return {
        name: state_of(space.core, space.topic.earliest_seq)
        for writer in engine.writers
        for name, space in writer.partition.spaces.items()
    }


@on_a_loop
async def test_a_commit_on_its_way_counts_for_others_and_is_seen_by_none() -> None:
    store = GatedStore()
    async with engine_on(store) as engine:
        await land(engine, commit(1, put("e", 1)))
        store.shut()
        first = begin(engine, commit(2, put("e", 2), reads=(CommitRead("e", 1),), event_id="ev"))
        second = begin(engine, commit(1, put("e", 3), session="b", reads=(CommitRead("e", 1),)))
        seen = commit(3, put("f", 1), pending_reads=(), reads=(CommitRead("e", 1),))
        third = begin(engine, seen)
        again = begin(engine, commit(2, put("e", 2), reads=(CommitRead("e", 1),), event_id="ev"))
        receipt = (Precondition(receipt_absent="ev"),)
        fourth = begin(engine, commit(1, put("g", 1), session="c", preconditions=receipt))
        await asyncio.sleep(0)
        assert await document(engine, "e") == 1
        assert not any(each.done() for each in (first, second, third, again, fourth))
        store.open()
        outcomes = [await each for each in (first, second, third, again, fourth)]
        assert isinstance(outcomes[0], Accepted)
        assert isinstance(outcomes[1], CommitConflict)
        assert isinstance(outcomes[2], CommitConflict)
        assert outcomes[3] == replace(outcomes[0], replayed=True)
        assert isinstance(outcomes[4], PreconditionFailed)
        assert await document(engine, "e") == 2


@on_a_loop
async def test_what_the_log_did_not_take_never_was() -> None:
    store = GatedStore()
    async with engine_on(store) as engine:
        await land(engine, commit(1, put("e", 1)))
        before = states(engine)
        store.shut()
        store.failures.append(DiskFull("no space is left"))
        lost = [
            begin(engine, commit(2, put("e", 2), put("f", 1), event_id="ev")),
            begin(engine, commit(3, patch("e", {"x": 1}))),
        ]
        origin = (Precondition(origin_committed=Origin("a", 2)),)
        rests_on_it = [
            begin(engine, commit(1, put("e", 9), session="b", reads=(CommitRead("e", 1),))),
            begin(engine, commit(1, put("g", 9), session="c", preconditions=origin)),
            begin(
                engine,
                commit(
                    1, put("g", 9), session="d", preconditions=(Precondition(receipt_absent="ev"),)
                ),
            ),
            begin(engine, commit(2, put("e", 2), put("f", 1), event_id="ev")),
            begin(engine, commit(2, put("e", "another"))),
        ]
        store.open()
        for each in (*lost, *rests_on_it):
            assert isinstance(await each, LogFailed)
        await until(lambda: engine.writer("s").is_idle)
        assert states(engine) == before
        assert engine.topic("s").head_seq == 1
        assert (await land(engine, commit(2, put("e", "another")))).seq == 2
        refused = await begin(engine, commit(1, put("g", 9), session="c", preconditions=origin))
        assert isinstance(refused, Accepted)
        again = states(engine)["s"]
        assert dict(again.receipts) == {}


@on_a_loop
async def test_a_space_whose_first_commit_failed_is_not_there() -> None:
    store = GatedStore()
    async with engine_on(store) as engine:
        store.failures.append(DiskFull("no space is left"))
        with pytest.raises(LogFailed):
            await land(engine, commit(1, put("e", 1)))
        await until(lambda: engine.writer("s").is_idle)
        assert "s" not in engine.registry.topics
        assert (await land(engine, commit(1, put("e", 2)))).seq == 1
        assert await document(engine, "e") == 2


@on_a_loop
async def test_commits_that_make_a_space_together_are_all_in_it() -> None:
    async with engine_on() as engine:
        outcomes = await asyncio.gather(
            *(begin(engine, commit(1, put("e", each), session=each)) for each in "xyz")
        )
        assert [each.seq for each in outcomes] == [1, 2, 3]  # type: ignore[union-attr]
        assert {each.epoch for each in outcomes} == {1}  # type: ignore[union-attr]
        assert await document(engine, "e") == "z"


@on_a_loop
async def test_a_rule_may_refuse_any_commit_but_not_one_that_is_sent_again() -> None:
    async with engine_on() as engine:
        first = await land(engine, commit(1, put("e", 1)))
        asked: list[str] = []

        def rule(space: str, wanted: Commit) -> None:
            asked.append(space)
            if wanted.local_seq == 2:
                raise CommitConflict("e", basis=1, current=1)
            raise RefusedByRule("expected another tariff, found this one")

        engine.spaces.rule = rule
        with pytest.raises(CommitConflict):
            await land(engine, commit(2, put("e", 2)))
        with pytest.raises(RefusedByRule, match="another tariff"):
            await land(engine, commit(3, put("e", 2)))
        assert (await land(engine, commit(1, put("e", 1)))).seq == first.seq
        assert asked == ["s", "s"]
        assert await document(engine, "e") == 1


@on_a_loop
async def test_a_number_that_is_too_old_to_be_known_is_refused_not_applied() -> None:
    async with engine_on() as engine:
        numbers = range(1, SESSION_ANSWERS_MAX + 11)
        await asyncio.gather(
            *(begin(engine, commit(number, put("e", number))) for number in numbers)
        )
        assert await document(engine, "e") == numbers[-1]
        for number in (1, 10):
            with pytest.raises(CommitProtocol, match="no longer kept"):
                await land(engine, commit(number, put("e", number)))
        assert (await land(engine, commit(11, put("e", 11)))).replayed
        origin = (Precondition(origin_committed=Origin("a", 10)),)
        with pytest.raises(PreconditionFailed):
            await land(engine, commit(1, put("e", 0), session="b", preconditions=origin))
        assert await document(engine, "e") == numbers[-1]


async def fill(engine: Engine, first: int = 1, count: int = 40) -> None:
    """Commits of every kind; old ones become cold."""
    for number in range(first, first + count):
        writes = [
            patch("e", {f"k{number % 3}": number}),
            put(f"f{number % 5}", number)
            if number % 7
            else CommitWrite(f"f{number % 5}", delete=True),
        ]
        await land(engine, commit(number, *writes, event_id=f"ev{number}"))


async def every_past(engine: Engine, upto: int) -> list[list[tuple[str, int, bytes]]]:
    pages = [await engine.spaces.entities("s", PageRequest(at_seq=seq)) for seq in range(upto + 1)]
    return [[(view.entity, view.seq, view.document) for view in page.entities] for page in pages]


@pytest.mark.parametrize("store", ["segment", "sqlite", "rocksdb"])
@on_a_loop
async def test_a_space_comes_back_from_its_snapshot_and_the_log_after_it(
    tmp_path: Path, store: str
) -> None:
    async with node(tmp_path, store=store, seal=SMALL) as engine:
        await fill(engine)
        await engine.compact()
        await fill(engine, 41, 7)
        expected, past = states(engine), await every_past(engine, 47)
        assert engine.topic("s").row.cold_count > 0
    for _ in range(2):
        async with node(tmp_path, store=store, seal=SMALL) as engine:
            assert states(engine) == expected
            assert await every_past(engine, 47) == past
            page = await engine.spaces.history("s", "e", limit=1_000)
            assert ([row.seq for row in page.rows], page.complete) == ([*range(1, 48)], True)
            assert (await land(engine, _as_filled(40))).replayed
            with pytest.raises(CommitProtocol):
                await land(engine, commit(40, put("e", 0)))
            wanted = (Precondition(receipt_absent="ev3"),)
            with pytest.raises(PreconditionFailed):
                await land(engine, commit(99, put("e", 0), preconditions=wanted))


def _as_filled(number: int) -> Commit:
    return commit(
        number, patch("e", {f"k{number % 3}": number}), put(f"f{number % 5}", number),
        event_id=f"ev{number}",
    )  # fmt: skip


@on_a_loop
async def test_what_left_by_a_cap_is_told_and_deleted_entities_stay_known(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as engine:
        await engine.put_topic("s", {"type": "space", "cap_records": 5})
        await land(engine, commit(1, put("gone", 1), put("kept", 1)))
        await land(engine, commit(2, CommitWrite("gone", delete=True)))
        for number in range(3, 11):
            await land(engine, commit(number, patch("e", {"n": number})))
        assert engine.topic("s").earliest_seq == 6
        assert await document(engine, "e", 10) == {"n": 10}
        assert await document(engine, "kept", 7) == 1
        for at_seq in (1, 5, 9):
            with pytest.raises(PastGone):
                await document(engine, "e", at_seq)
        with pytest.raises(PastGone):
            await document(engine, "gone", 1)
        with pytest.raises(EntityNotFound):
            await document(engine, "gone", 9)
        with pytest.raises(PastGone):
            await engine.spaces.entities("s", PageRequest(at_seq=1))
        assert len((await engine.spaces.entities("s", PageRequest(at_seq=10))).entities) == 2
        with pytest.raises(CommitConflict):
            await land(engine, commit(11, put("x", 1), reads=(CommitRead("gone", 1),)))
        await land(engine, commit(11, put("x", 1), reads=(CommitRead("gone", 2),)))
        expected = states(engine)
        await engine.compact()
    async with node(tmp_path) as engine:
        assert states(engine) == expected


@on_a_loop
async def test_a_page_of_entities_has_a_limit_of_bytes() -> None:
    async with engine_on() as engine:
        large = "x" * 1_000_000
        for number in range(1, 14):
            await land(engine, commit(number, put(f"e{number:02}", large)))
        first = await engine.spaces.entities("s", PageRequest())
        assert first.more
        after = first.entities[-1].entity
        rest = await engine.spaces.entities("s", PageRequest(after=after, at_seq=13))
        assert len(first.entities) + len(rest.entities) == 13
        assert not rest.more


@on_a_loop
async def test_dead_letters_do_not_get_into_a_space() -> None:
    async with engine_on() as engine:
        await land(engine, commit(1, put("e", 1)))
        queue = {"type": "queue", "max_deliveries": 1, "dead_letter": "s"}
        await engine.put_topic("q", queue)
        await write(engine, "q", 1)
        claims = await engine.queues.claim("q", ClaimRequest("n", 1, 1_000))
        settle = Settle("n", (claims.jobs[0].lease.seq,))
        await engine.queues.nack("q", settle, 0)
        again = await engine.queues.claim("q", ClaimRequest("n", 1, 1_000))
        assert again.jobs == []
        assert engine.topic("s").head_seq == 1
        assert engine.topic("q").count == 1


@on_a_loop
async def test_a_space_is_in_backups_and_can_be_looked_at(tmp_path: Path) -> None:
    source, backup, again = (tmp_path / name for name in ("data", "backup", "again"))
    async with node(source, seal=SMALL) as engine:
        await fill(engine)
        await engine.compact()
        await fill(engine, 41, 7)
        expected = states(engine)
        await engine.backup(backup)

    def penstock(*arguments: object) -> str:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.output

    penstock("restore", backup, "--data-dir", again)
    penstock("inspect", again, "verify")
    row = json.loads(penstock("inspect", again, "spaces", "--json"))
    living = sum(each.entity.document is not None for each in expected["s"].entities)
    assert (row["space"], row["head_seq"], row["entities"]) == ("s", 47, living)
    assert (row["sessions"], row["answers"], row["receipts"]) == (1, 47, 47)
    async with node(again, seal=SMALL) as engine:
        assert states(engine) == expected


@on_a_loop
async def test_commits_behind_an_exclusive_command_count_as_waiting_and_are_refused(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, waiting_bytes_max=100_000) as engine:
        await land(engine, commit(1, put("e", 1)))
        writer = engine.writer("s")
        async with writer.exclusive():
            begun = [
                begin(engine, commit(1, put("e", "x" * 60_000), session=f"b{number}"))
                for number in range(4)
            ]
            assert writer.waiting_bytes > 120_000
        outcomes = [await each for each in begun]
        assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, Saturated, Saturated]
        assert writer.waiting_bytes == 0
