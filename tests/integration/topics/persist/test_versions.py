"""Data directories and backups of earlier versions open as they were.

`fixtures/version_1.tar.xz` was made before entries of version 2 existed: logs, snapshots, cold
segments and a backup of two partitions, cleanly closed, and `expected.json` with what was in them.
`fixtures/version_2.tar.xz` was made before nacks had reasons: two queues with leases, delays and
dead letters of one topic, half in snapshots and half in the log behind them.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.kernel.clock import SteadyClock
from penstock.kernel.system import SystemClock
from penstock.log.stores import open_store
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.entries import Began
from penstock.topics.core.read import ReadRequest
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.letters import Choice
from penstock.topics.persist.backup import restore
from tests.integration.topics.node import node, on_a_loop, write

FIXTURES = Path(__file__).parent / "fixtures"
FIXTURE = FIXTURES / "version_1.tar.xz"


class FixedClock(SystemClock):
    """The time at which the fixture was made: nothing has aged since."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    restore(tmp_path / "backup", tmp_path / "restored")
    return tmp_path


async def seen(engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = {"topics": {}, "queues": {}, "now_ms": engine.clock.now_ms()}
    for name in sorted(engine.registry.topics):
        page = await engine.diff(name, ReadRequest(0, 1_000))
        assert page.caught_up
        topic = engine.topic(name)
        found["topics"][name] = {
            "head_seq": topic.head_seq,
            "epoch": topic.epoch,
            "told_epoch": topic.told_epoch,
            "records": [
                [slot.seq, slot.ts_ms, bytes(slot.record.data).decode(), slot.record.tag]
                for slot in page.records
            ],
            "floors": list(topic.at(engine.clock.now_ms()).floors),
            "config": msgspec.to_builtins(topic.config),
        }
    for writer in engine.writers:
        for name, queue in writer.partition.queues.items():
            state = queue.state()
            found["queues"][name] = {
                "leases": state.leases,
                "delayed": state.delayed,
                "counts": queue.counts(engine.clock.now_ms()),
            }
    return json.loads(msgspec.json.encode(found))  # type: ignore[no-any-return]


def expected_of(unpacked: Path, where: str) -> dict[str, Any]:
    """What was there; records and leases kept in memory alone were lost then as now."""
    expected: dict[str, Any] = json.loads((unpacked / "expected.json").read_text())
    ephemeral = expected["topics"]["eph"]
    ephemeral["records"] = []
    assert ephemeral["head_seq"] == 80
    if where == "restored":  # what was set aside in the log when the backup was made
        ephemeral["head_seq"] = 1 + 1_024
        for topic in expected["topics"].values():
            del topic["told_epoch"]  # a restored directory has another identity
    ephemeral["floors"][0] = ephemeral["floors"][4] = ephemeral["head_seq"]
    loose = expected["queues"]["loose"]
    loose["counts"] = [sum(loose["counts"]), 0, 0]
    loose["leases"] = []
    return expected


@pytest.mark.parametrize("where", ["data", "restored"])
@on_a_loop
async def test_what_version_1_wrote_is_read_as_it_was(unpacked: Path, where: str) -> None:
    expected = expected_of(unpacked, where)
    clock = FixedClock(expected["now_ms"])
    for _ in range(2):  # as it was, and after a start of this version
        async with node(unpacked / where, partitions=2, boot_id="fixture", clock=clock) as engine:
            found = await seen(engine)
            if where == "restored":
                for topic in found["topics"].values():
                    del topic["told_epoch"]
            assert found == expected
            assert (await write(engine, "jobs", 7, idempotency_key='"k7"')).deduped
            assert await engine.compact() == 2


@on_a_loop
async def test_topics_of_version_1_go_on_after_their_epochs_seqs_and_times(unpacked: Path) -> None:
    expected = expected_of(unpacked, "data")
    clock = FixedClock(expected["now_ms"] - 5_000)  # the clock was set back meanwhile
    async with node(unpacked / "data", partitions=2, boot_id="fixture", clock=clock) as engine:
        assert isinstance(engine.clock, SteadyClock)
        assert engine.clock.now_ms() >= expected["now_ms"] - 10
        assert (await write(engine, "plain", 1)).first_seq == 81
        await engine.routers.drop_topic("gone")
        await engine.put_topic("gone", {})
        assert engine.topic("gone").epoch > expected["topics"]["gone"]["epoch"]


@on_a_loop
async def test_the_first_entry_of_a_start_is_that_it_began(unpacked: Path) -> None:
    store = open_store("segment", unpacked / "data" / "log")
    ends = [store.bounds(number).last_index for number in range(2)]
    store.close()
    async with node(unpacked / "data", partitions=2, boot_id="fixture", member=7) as engine:
        for number, end in enumerate(ends):
            (first, *_) = engine.journal.entries(number, end + 1, end + 1)
            (began,) = decode_entries(first.payload)
            assert isinstance(began, Began)
            assert (began.term, began.member, began.skipped_seqs) == (2, 7, 0)


@on_a_loop
async def test_queues_of_version_2_are_read_as_they_were_and_their_letters_go_back(
    tmp_path: Path,
) -> None:
    with tarfile.open(FIXTURES / "version_2.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    del expected["topics"]["dead0"]["meta"]
    deliveries, clock = expected.pop("deliveries"), FixedClock(expected["now_ms"])
    for _ in range(2):  # as it was, and after a start of this version
        async with node(tmp_path / "data", partitions=2, boot_id="fixture", clock=clock) as engine:
            assert await seen(engine) == expected
            for name, counts in deliveries.items():
                state = engine.writer(name).partition.queue(name).state()
                assert [[*each] for each in state.deliveries] == counts
                assert state.failures == ()
            assert await engine.compact() == 2
    async with node(tmp_path / "data", partitions=2, boot_id="fixture", clock=clock) as engine:
        for name in ("near", "far"):
            assert len((await engine.letters.redrive(name, Choice())).seqs) == 4
        assert engine.topic("dead0").count == 0
