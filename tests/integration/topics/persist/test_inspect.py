"""What a look into a damaged directory, a backup and a start say about it, each by its file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.topics.persist.backup import back_up_directory
from penstock.topics.persist.data_dir import SnapshotFiles, summary_of
from tests.integration.topics.node import SMALL, drained, node, write
from tests.integration.topics.persist.test_backup import fill, penstock


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory at rest that has snapshots, cold segments and a log."""

    async def make() -> None:
        async with node(tmp_path / "data", seal=SMALL) as engine:
            await fill(engine)

    asyncio.run(make())
    return tmp_path / "data"


def verified(data: Path) -> tuple[list[dict[str, Any]], str]:
    """The rows about a damaged directory, and what else is said."""
    found = penstock("inspect", data, "--json", "verify")
    assert found.exit_code == 1, found.output
    return [json.loads(line) for line in found.stdout.splitlines()], found.stderr


def damaged(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["kind"], row["name"]) for row in rows if not row["ok"]}


def largest_snapshot(data: Path) -> Path:
    return max((data / "snapshots").iterdir(), key=lambda each: each.stat().st_size)


@pytest.mark.parametrize("text", [b'{"boot_id":"a\xff","clean":true}', b"", b"[]"])
def test_a_boot_file_that_cannot_be_read_counts_as_a_crash_and_is_reported(
    data: Path, text: bytes
) -> None:
    path = data / "boot.json"
    path.write_bytes(text)
    overview = penstock("inspect", data, "--json")
    assert overview.exit_code == 0, overview.output
    assert json.loads(overview.output)["ended_clean"] is None
    rows, _ = verified(data)
    assert damaged(rows) == {("file", str(path))}

    async def start() -> list[int]:
        async with node(data, seal=SMALL) as engine:
            return await drained(engine, "u")

    assert asyncio.run(start()) == [0, 1, 2, 3, 4]
    assert penstock("inspect", data, "verify").exit_code == 0


@pytest.mark.parametrize("text", [b'{"version":1,"store":"seg\xffent"}', b"", b"[]"])
def test_a_layout_that_cannot_be_read_is_named_by_every_command(
    data: Path, tmp_path: Path, text: bytes
) -> None:
    path = data / "layout.json"
    path.write_bytes(text)
    for words in (
        ("inspect", data),
        ("inspect", data, "verify"),
        ("backup", tmp_path / "copy", "--data-dir", data),
        ("serve", "--port", 0, "--data-dir", data),
    ):
        found = penstock(*words)
        assert found.exit_code == 1
        assert f"{path} is not a layout: " in found.output
    assert penstock("inspect", data, "verify").output.startswith("damaged: ")


def test_the_list_of_a_backup_that_cannot_be_read_is_named(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    back_up_directory(data, backup, now_ms=0)
    listed = backup / "backup.json"
    listed.write_bytes(listed.read_bytes().replace(b"snapshots", b"snap\xffhots"))
    found = penstock("restore", backup, "--data-dir", tmp_path / "again")
    assert found.exit_code == 1
    assert f"{listed} is not a list of files" in found.output


def test_a_missing_snapshot_is_made_up_for_by_the_log(data: Path) -> None:
    before = penstock("inspect", data, "--json", "topics")
    largest_snapshot(data).unlink()
    found = penstock("inspect", data, "--json", "verify")
    assert found.exit_code == 0, found.output
    assert "segments are no longer needed" in found.stderr, "the log has their records"

    def seen(text: str) -> list[dict[str, Any]]:
        return [json.loads(line) | {"cold": 0} for line in text.splitlines()]

    assert seen(penstock("inspect", data, "--json", "topics").stdout) == seen(before.stdout)


def test_segments_of_missing_snapshots_are_not_called_unneeded(data: Path) -> None:
    partition = compacted_twice(data)
    for path in (data / "snapshots").glob(f"{partition:05d}-*"):
        path.unlink()
    rows, said = verified(data)
    assert damaged(rows) == {("partition", str(partition))}
    assert "nobody needs" not in said


def compacted_twice(data: Path) -> int:
    """Make a second snapshot of a partition, so that its log begins at the first."""

    async def compact() -> int:
        async with node(data, seal=SMALL) as engine:
            await write(engine, "t", 100, 20)
            await engine.compact()
            return engine.writer("t").number

    return asyncio.run(compact())


def test_segments_that_nobody_needs_are_still_told_if_all_is_whole(data: Path) -> None:
    segment = next((data / "cold").iterdir())
    segment.with_name("00000-00000000000000000099-1-0.segment").write_bytes(segment.read_bytes())
    found = penstock("inspect", data, "--json", "verify")
    assert found.exit_code == 0
    assert "1 segments are no longer needed; the next start removes them" in found.stderr


@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.9])
def test_a_snapshot_that_was_cut_is_one_damaged_file_among_whole_ones(
    data: Path, part: float
) -> None:
    whole, _ = rows_of(data)
    path = largest_snapshot(data)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    rows, said = verified(data)
    assert damaged(rows) == {("snapshot", str(path))}, "the log has all of it"
    assert len(rows) == whole
    assert said.splitlines() == [f"1 of {len(rows)} are damaged"]


def rows_of(data: Path) -> tuple[int, str]:
    found = penstock("inspect", data, "--json", "verify")
    assert found.exit_code == 0, found.output
    return len(found.stdout.splitlines()), found.stderr


def test_a_snapshot_whose_end_points_nowhere_is_damaged(data: Path) -> None:
    path = largest_snapshot(data)
    path.write_bytes(path.read_bytes()[:-8] + b"\xff" * 8)
    rows, _ = verified(data)
    assert ("snapshot", str(path)) in damaged(rows)


def cold_file_of(data: Path, topic: str, seq: int) -> Path:
    """Where a cold record lies."""
    found = penstock("inspect", data, "--json", "record", topic, seq)
    return data / "cold" / str(json.loads(found.output)["from"])


def test_a_record_whose_segment_is_missing_is_damage_and_no_wrong_question(data: Path) -> None:
    path = cold_file_of(data, "t", 1)
    path.unlink()
    found = penstock("inspect", data, "record", "t", 1)
    assert found.exit_code == 1
    assert found.output == f"damaged: {path} is missing\n"
    assert penstock("inspect", data, "record", "t", 100).exit_code == 0


def test_a_backup_names_the_source_file_that_is_missing(data: Path, tmp_path: Path) -> None:
    path = cold_file_of(data, "t", 1)
    assert path.name in files_named(data)
    path.unlink()
    found = penstock("backup", tmp_path / "copy", "--data-dir", data)
    assert found.exit_code == 1
    assert found.output == f"Error: {path} is missing\n"
    assert not (tmp_path / "copy").exists()


def test_a_backup_names_the_source_file_that_cannot_be_read(data: Path, tmp_path: Path) -> None:
    path = cold_file_of(data, "t", 1)
    path.unlink()
    path.mkdir()
    (path / "more").write_bytes(bytes(10))
    found = penstock("backup", tmp_path / "copy", "--data-dir", data)
    assert found.exit_code == 1
    assert str(path) in found.output
    assert str(tmp_path / "copy") not in found.output


def files_named(data: Path) -> set[str]:
    snapshots = SnapshotFiles(data / "snapshots").all()
    return {name for each in snapshots for name in summary_of(each.path).files}


@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_backup_that_is_not_what_its_list_says_is_damaged(
    data: Path, tmp_path: Path, damage: str
) -> None:
    backup = tmp_path / "backup"
    back_up_directory(data, backup, now_ms=0)
    assert penstock("inspect", backup, "verify").exit_code == 0
    victim = next((backup / "log").glob("*.segment"))
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:300] if damage == "cut" else b"")
    found = penstock("inspect", backup, "--json", "verify")
    assert found.exit_code == 1
    assert "Traceback" not in found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert penstock("restore", backup, "--data-dir", tmp_path / "again").exit_code == 1


def test_a_backup_is_restored_through_a_link_and_into_the_directory_one_is_in(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    back_up_directory(data, backup, now_ms=0)
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert penstock("restore", backup, "--data-dir", tmp_path / "link").exit_code == 0
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "two")
    assert penstock("restore", backup, "--data-dir", ".").exit_code == 0
    monkeypatch.undo()
    for name in ("one", "two"):
        assert penstock("inspect", tmp_path / name, "verify").exit_code == 0
