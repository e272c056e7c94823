"""What a node finds when it starts again: after a clean end, a kill, a crash of the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.store import Operation
from penstock.log.stores import open_store
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from penstock.topics.engine.writers import UNSYNCED_SEQS_MAX
from tests.integration.topics.node import drained, node, on_a_loop, write

CLASSES = ("ephemeral", "memory", "disk", "fsync")


async def fill(engine: Engine) -> None:
    for name in CLASSES:
        await engine.put_topic(name, {"durability": name})
        await write(engine, name, 0, 10)


def heads(engine: Engine) -> dict[str, int]:
    return {name: engine.registry.topics[name].head_seq for name in CLASSES}


@on_a_loop
async def test_after_a_clean_end_no_seq_is_passed_over(tmp_path: Path) -> None:
    async with node(tmp_path, boot_id="one") as engine:
        await fill(engine)
    async with node(tmp_path, boot_id="two") as engine:
        assert heads(engine) == dict.fromkeys(CLASSES, 10)
        assert await drained(engine, "disk") == list(range(10))
        assert await drained(engine, "ephemeral") == []


@on_a_loop
async def test_a_process_that_was_killed_has_lost_no_seq_of_its_log(tmp_path: Path) -> None:
    async with node(tmp_path, boot_id="one", end_well=False) as engine:
        await fill(engine)
    async with node(tmp_path, boot_id="one") as engine:
        found = heads(engine)
        assert found.pop("ephemeral") > 10  # nobody knows how many were given out
        assert found == dict.fromkeys(("memory", "disk", "fsync"), 10)


@on_a_loop
async def test_after_a_crash_of_the_machine_no_seq_is_given_out_again(tmp_path: Path) -> None:
    async with node(tmp_path, boot_id="one", end_well=False) as engine:
        await fill(engine)
    async with node(tmp_path, boot_id="two", end_well=False) as engine:
        found = heads(engine)
        assert found["fsync"] == 10
        assert found["disk"] == found["memory"] == 10 + UNSYNCED_SEQS_MAX
        assert await drained(engine, "disk") == list(range(10))
        assert (await write(engine, "disk", 10)).first_seq == 11 + UNSYNCED_SEQS_MAX
    async with node(tmp_path, boot_id="two") as engine:
        assert await drained(engine, "disk") == list(range(11))


@on_a_loop
async def test_a_topic_near_the_bound_of_unsynced_seqs_waits_for_a_sync(tmp_path: Path) -> None:
    """With no sync by time, as many syncs come as the bound asks for."""
    store = Counting(open_store("memory", tmp_path))
    engine = Engine(store, EngineOptions(partitions=1, disk_sync_ms=1_000_000))  # type: ignore[arg-type]
    await engine.open()
    await engine.put_topic("t", {})
    store.unsynced = store.most = 0
    for number in range(100):
        await write(engine, "t", number * 100, 100)
        assert store.unsynced * 100 <= UNSYNCED_SEQS_MAX // 2
    assert store.most > 1
    await asyncio.gather(*(write(engine, "t", 0, 1_000) for _ in range(12)))
    await engine.close()


@on_a_loop
async def test_a_directory_is_used_as_it_was_made(tmp_path: Path) -> None:
    async with node(tmp_path):
        pass
    with pytest.raises(Rejected, match=r"3 partitions.*with .*5"):
        async with node(tmp_path, partitions=5):
            raise AssertionError("it must not open")


@on_a_loop
async def test_the_loop_answers_while_a_long_log_is_taken_in(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        await asyncio.gather(*(write(engine, f"t{number % 7}", 0, 2_000) for number in range(60)))
        await engine.compact()
        for _ in range(10):
            await asyncio.gather(
                *(write(engine, f"t{number % 7}", 0, 2_000) for number in range(20))
            )
    store = open_store("segment", tmp_path / "log", segment_bytes=1 << 20)
    engine = Engine(store, EngineOptions(partitions=3, data_dir=tmp_path))
    opening = asyncio.ensure_future(engine.open())
    seen = [0.0]
    while not opening.done():
        await asyncio.sleep(0)
        if engine.replay_progress != seen[-1]:
            seen.append(engine.replay_progress)
    await opening
    assert seen == sorted(seen)
    assert len(seen) > 3, seen
    assert engine.replay_progress == 1.0
    assert sum(topic.count for topic in engine.registry.topics.values()) == 520_000
    await engine.close()
    store.close()


class Counting:
    """A store that counts what was written since its last sync."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.unsynced = self.most = 0

    def write(self, group: list[Operation], *, sync: bool) -> Any:
        failed = self._store.write(group, sync=sync)
        self.unsynced = 0 if sync else self.unsynced + len(group)
        self.most = max(self.most, self.unsynced)
        return failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@on_a_loop
async def test_what_left_to_make_room_for_records_in_memory_does_not_come_back(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, end_well=False) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        await write(engine, "t", 1_000, 10)
        topic = engine.topic("t")
        await engine.put_topic("t", {"durability": "ephemeral", "cap_bytes": 5 * 4})
        assert (topic.earliest_seq, topic.count) == (6, 5)
        await write(engine, "t", 2_000)
        await write(engine, "t", 2_001)
        assert (topic.earliest_seq, topic.count) == (8, 5)
        await engine.put_topic("t", {"cap_bytes": 4 * 4})
        assert (topic.earliest_seq, topic.count) == (9, 4)
    for _ in range(2):
        async with node(tmp_path, end_well=False) as engine:
            assert await drained(engine, "t") == [1_008, 1_009]
            assert engine.topic("t").earliest_seq == 9
    async with node(tmp_path, end_well=False) as engine:
        await write(engine, "t", 3_000, 3)
        assert await drained(engine, "t") == [1_009, 3_000, 3_001, 3_002]
    async with node(tmp_path) as engine:
        assert await drained(engine, "t") == [1_009]
