"""Backups of directories at rest and of running nodes, and what a look into a directory finds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.kernel.errors import Rejected, Unavailable
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.views import scheduler_view
from penstock.topics.persist import backup as backups
from tests.integration.topics.node import SMALL, drained, node, on_a_loop, write


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


async def fill(engine: Engine, first: int = 0) -> None:
    """Some cold records, some in a snapshot, some in the log alone."""
    await engine.routers.put(RouterConfig("r", "t", "copies"))
    await write(engine, "t", first, 60)
    await write(engine, "u", first, 5)
    await engine.compact()
    await write(engine, "t", first + 60, 40)
    await engine.delete("t", match=Predicate("t5", prefix=False))


async def content(engine: Engine) -> dict[str, list[int]]:
    return {name: await drained(engine, name) for name in ("t", "u", "copies")}


@pytest.mark.parametrize("store", ["segment", "sqlite", "rocksdb"])
@on_a_loop
async def test_a_directory_at_rest_comes_back_from_its_backup(tmp_path: Path, store: str) -> None:
    source, backup, again = (tmp_path / name for name in ("data", "backup", "again"))
    async with node(source, store=store, seal=SMALL) as engine:
        await fill(engine)
        expected = await content(engine)
        busy = penstock("backup", backup, "--data-dir", source)
        assert busy.exit_code == 1
        assert "held by process" in busy.output
    made = penstock("backup", backup, "--data-dir", source, "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["partitions"] == 3
    assert penstock("backup", backup, "--data-dir", source).exit_code == 1
    done = penstock("restore", backup, "--data-dir", again)
    assert done.exit_code == 0, done.output
    assert penstock("restore", backup, "--data-dir", again).exit_code == 1
    for directory in (again, backup):
        async with node(directory, store=store, seal=SMALL) as engine:
            assert await content(engine) == expected
            assert engine.registry.topics["t"].head_seq == 100


@on_a_loop
async def test_a_running_node_is_backed_up_while_it_is_written(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with node(tmp_path / "data", seal=SMALL) as engine:
        await fill(engine)
        seen: list[tuple[str, int, int]] = []
        told: list[object] = []

        def see(*progress: Any) -> None:
            seen.append(progress)
            told.append(scheduler_view(engine)["compaction"]["backup"])

        task = asyncio.ensure_future(engine.backup(backup, see))
        compacting = asyncio.ensure_future(engine.compact())
        number = 100
        while not task.done():
            await write(engine, "t", number)
            number += 1
        await task
        await compacting
        assert {what for what, _, _ in seen} >= {"snapshots and segments", "log", "checksums"}
        assert all(0 <= done <= total for _, done, total in seen)
        keys = ("what", "done", "total")
        assert told == [dict(zip(keys, progress, strict=True)) for progress in seen]
        assert scheduler_view(engine)["compaction"]["backup"] is None
        whole = await drained(engine, "t")
        with pytest.raises(Rejected, match="empty"):
            await engine.backup(backup)
    async with node(backup, seal=SMALL) as engine:
        part = await drained(engine, "t")
        assert part == whole[: len(part)]
        assert len(part) >= 90
        assert await drained(engine, "copies") == [*range(100), *range(100, part[-1] + 1)]
        assert (await write(engine, "t", 0)).first_seq == part[-1] + 2


@on_a_loop
async def test_an_orderly_end_breaks_a_backup_off(tmp_path: Path) -> None:
    async with node(tmp_path / "data", seal=SMALL) as engine:
        await fill(engine)
        task = asyncio.ensure_future(engine.backup(tmp_path / "backup"))
        await asyncio.sleep(0)
    with contextlib.suppress(Unavailable):
        await task
    if task.exception() is not None:
        again = penstock("restore", tmp_path / "backup", "--data-dir", tmp_path / "again")
        assert again.exit_code != 0


@on_a_loop
async def test_a_backup_and_a_restore_that_fail_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, backup, again = (tmp_path / name for name in ("data", "backup", "again"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with node(source, seal=SMALL) as engine:
        await fill(engine)
        with monkeypatch.context() as patch:
            patch.setattr(backups, "write_layout", full)
            with pytest.raises(Unavailable, match="No space left"):
                await engine.backup(backup)
        assert not backup.exists()
        await engine.backup(backup)
    monkeypatch.setattr(backups, "sync_directory", full)
    with pytest.raises(Unavailable, match="No space left"):
        backups.restore(backup, again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data"]


@on_a_loop
async def test_a_backup_that_was_changed_is_not_restored(tmp_path: Path) -> None:
    source, backup = tmp_path / "data", tmp_path / "backup"
    async with node(source, seal=SMALL) as engine:
        await fill(engine)
    assert penstock("backup", backup, "--data-dir", source).exit_code == 0
    segment = next((backup / "cold").iterdir())
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1] + b"?")
    spoilt = penstock("restore", backup, "--data-dir", tmp_path / "again")
    assert spoilt.exit_code == 1
    assert "checksum" in spoilt.output
    segment.unlink()
    missing = penstock("restore", backup, "--data-dir", tmp_path / "again")
    assert missing.exit_code == 1
    assert "missing" in missing.output
    assert not (tmp_path / "again").exists()
    segment.write_bytes(whole)
    assert penstock("restore", backup, "--data-dir", tmp_path / "again").exit_code == 0
    (backup / "backup.json").unlink()
    assert penstock("restore", backup, "--data-dir", tmp_path / "more").exit_code == 1


@pytest.mark.parametrize("store", ["segment", "sqlite", "rocksdb"])
@on_a_loop
async def test_a_look_into_a_directory_changes_nothing(tmp_path: Path, store: str) -> None:
    async with node(tmp_path / "data", store=store, seal=SMALL, end_well=False) as engine:
        await fill(engine)
    data = tmp_path / "data"
    before = bytes_of(data)
    overview = looked(data)[0]
    assert (overview["store"], overview["partitions"]) == (store, 3)
    assert overview["segments"] > 0
    topics = {row["topic"]: row for row in looked(data, "topics")}
    assert topics.keys() == {"t", "u", "copies"}
    assert (topics["t"]["count"], topics["t"]["head_seq"]) == (90, 100)
    assert topics["t"]["cold"] == 50
    assert len(looked(data, "log")) == 3
    assert all(row["ok"] for row in looked(data, "verify"))
    for seq in (1, 55, 100):
        (found,) = looked(data, "record", "t", seq)
        assert (found["record"]["$seq"], found["record"]["data"]) == (seq, seq - 1)
    assert penstock("inspect", data, "record", "t", 6).exit_code == 1
    assert penstock("inspect", data, "record", "nobody", 6).exit_code == 1
    assert penstock("inspect", data, "record", "t").exit_code == 2
    for command in ((), ("topics",), ("log",), ("verify",), ("record", "t", 1)):
        shown = penstock("inspect", data, *command)
        assert shown.exit_code == 0, shown.output
    assert bytes_of(data) == before


@on_a_loop
async def test_damage_anywhere_is_found_and_said(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with node(data, seal=SMALL) as engine:
        await fill(engine)
    for path in (
        next((data / "cold").iterdir()),
        max((data / "snapshots").iterdir(), key=lambda each: each.stat().st_size),
    ):
        whole = path.read_bytes()
        spoilt = bytearray(whole)
        spoilt[len(spoilt) // 2] ^= 1
        path.write_bytes(spoilt)
        found = penstock("inspect", data, "--json", "verify")
        assert found.exit_code == 1
        assert path.name in found.output
        path.write_bytes(whole)
    log = next(path for path in sorted((data / "log").iterdir()) if path.name != "LOCK")
    spoilt = bytearray(log.read_bytes())
    spoilt[300] ^= 1
    log.write_bytes(spoilt)
    assert penstock("inspect", data, "--json", "verify").exit_code == 1
    assert penstock("inspect", tmp_path).exit_code == 1


@on_a_loop
async def test_a_running_nodes_directory_can_be_looked_into_if_its_store_allows(
    tmp_path: Path,
) -> None:
    async with node(tmp_path / "one", seal=SMALL) as engine:
        await fill(engine)
        writing = asyncio.ensure_future(keep_writing(engine))
        for _ in range(3):
            rows = await asyncio.to_thread(looked, tmp_path / "one", "verify")
            assert all(row["ok"] for row in rows), rows
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
    async with node(tmp_path / "two", store="sqlite") as engine:
        await write(engine, "t", 0)
        said = penstock("inspect", tmp_path / "two", "topics")
        assert said.exit_code == 1
        assert "while a server writes it" in said.output


async def keep_writing(engine: Engine) -> None:
    while True:
        await write(engine, "t", 0, 10)


def looked(data: Path, *command: object) -> list[dict[str, Any]]:
    result = penstock("inspect", data, "--json", *command)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
