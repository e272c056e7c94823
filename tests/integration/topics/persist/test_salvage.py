"""Directories that lost something: what `penstock salvage` says and saves, file by file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from tests.integration.topics.node import SMALL, node, write

TOPICS = ("t", "u", "q", "copies")


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


async def fill(engine: Engine) -> None:
    """Cold records, records of snapshots, and records that the log alone has; in one partition."""
    await engine.put_topic("t", {"durability": "fsync"})
    await engine.put_topic("q", {"type": "queue", "cap_records": 500})
    await engine.routers.put(RouterConfig("r", "u", "copies"))
    for first in (0, 60, 120):
        for number in range(first, first + 60, 5):
            await write(engine, "t", number, 5)
        await write(engine, "u", first, 20)
        await write(engine, "q", first, 20)
        await engine.forwarder.drain("copies")
        claims = await engine.queues.claim("q", ClaimRequest("n", 3, 600_000))
        await engine.queues.ack("q", Settle("n", tuple(job.lease.seq for job in claims.jobs)))
        if first < 120:
            await engine.compact()


async def content(engine: Engine) -> dict[str, dict[int, bytes]]:
    """Every record that a reader gets, by topic and seq."""
    found: dict[str, dict[int, bytes]] = {}
    for name in engine.registry.topics:
        records = found[name] = {}
        at = 0
        while True:
            page = await engine.diff(name, ReadRequest(at, limit=1_000))
            records.update((slot.seq, bytes(slot.record.data)) for slot in page.records)
            at = page.next_from_seq
            if page.caught_up:
                break
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[int, bytes]]]:
    directory = tmp_path_factory.mktemp("made") / "data"

    async def make() -> dict[str, dict[int, bytes]]:
        async with node(directory, partitions=1, seal=SMALL, end_well=False) as engine:
            await fill(engine)
            return await content(engine)

    return directory, asyncio.run(make())


def opened(directory: Path) -> dict[str, dict[int, bytes]]:
    async def look() -> dict[str, dict[int, bytes]]:
        async with node(directory, partitions=1, seal=SMALL) as engine:
            found = await content(engine)
            await write(engine, "t", 7)  # and it goes on
            return found

    return asyncio.run(look())


def tree(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def flip(path: Path, place: float = 0.5) -> None:
    used = len(path.read_bytes().rstrip(b"\0"))
    with path.open("r+b") as file:
        file.seek(int(used * place))
        found = file.read(1)
        file.seek(int(used * place))
        file.write(bytes([found[0] ^ 0xFF]))


def flip_record(path: Path, number: int) -> None:
    """Spoil a record, where it is written last."""
    data = path.read_bytes()
    at = data.rfind(b'{"data":%d,' % number)
    path.write_bytes(data[:at] + b"x" + data[at + 1 :])


def newest(directory: Path) -> Path:
    return max(directory.iterdir())


def oldest(directory: Path) -> Path:
    return min(directory.iterdir())


def segment(data: Path) -> Path:
    return next((data / "log").glob("*.segment"))


def both(data: Path, harm: Callable[[Path], object]) -> None:
    for path in list((data / "snapshots").iterdir()):
        harm(path)


HARMS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda data: None,
    "newest snapshot flipped": lambda data: flip(newest(data / "snapshots")),
    "newest snapshot gone": lambda data: newest(data / "snapshots").unlink(),
    "both snapshots flipped early": lambda data: both(data, lambda path: flip(path, 0.2)),
    "both snapshots flipped late": lambda data: both(data, lambda path: flip(path, 0.9)),
    "both snapshots cut": lambda data: both(
        data, lambda path: os.truncate(path, path.stat().st_size // 2)
    ),
    "both snapshots gone": lambda data: both(data, Path.unlink),
    "cold file flipped": lambda data: flip(oldest(data / "cold")),
    "cold file gone": lambda data: oldest(data / "cold").unlink(),
    "all cold files gone": lambda data: shutil.rmtree(data / "cold"),
    "log flipped early": lambda data: flip(segment(data), 0.3),
    "log flipped late": lambda data: flip_record(segment(data), 150),
    "log cut": lambda data: os.truncate(
        segment(data), int(len(segment(data).read_bytes().rstrip(b"\0")) * 0.9)
    ),
    "header of the log flipped": lambda data: flip(segment(data), 0.0),
    "log gone": lambda data: shutil.rmtree(data / "log"),
    "layout gone": lambda data: (data / "layout.json").unlink(),
    "layout unreadable": lambda data: (data / "layout.json").write_bytes(b"{"),
    "boot unreadable": lambda data: (data / "boot.json").write_bytes(b"{"),
}
NOTHING_LOST = {
    "nothing", "newest snapshot flipped", "newest snapshot gone", "log flipped early",
    "header of the log flipped", "layout gone", "layout unreadable", "boot unreadable",
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_what_can_be_read_is_saved_and_what_cannot_is_said(
    made: tuple[Path, dict[str, dict[int, bytes]]], tmp_path: Path, harm: str
) -> None:
    source, expected = made
    data, saved = tmp_path / "data", tmp_path / "saved"
    shutil.copytree(source, data)
    HARMS[harm](data)
    before = tree(data)
    dry = penstock("salvage", data, "--json")
    assert dry.exit_code in (0, 1), dry.output
    assert not saved.exists()
    done = penstock("salvage", data, "--json", "--into", saved)
    assert tree(data) == before, "the original is not touched"
    said, again = json.loads(dry.stdout), json.loads(done.stdout)
    assert {**again, "into": None} == said, "the dry run says the same"
    found = opened(saved)
    assert [row["topic"] for row in said["topics"]] == sorted(found)
    for name, records in found.items():
        for seq, data_of in records.items():
            assert expected[name].get(seq, data_of) == data_of, "under its seq is what was there"
    lost = _lost(said)
    for name, records in expected.items():
        missing = records.keys() - found.get(name, {}).keys()
        unsaid = {seq for seq in missing if seq not in lost.get(name, set())}
        head = max(found.get(name, {0: b""}), default=0)
        assert all(seq > head for seq in unsaid), (
            f"{name}: {sorted(unsaid)[:9]} left out in silence"
        )
        if unsaid:
            assert said["notes"], "the end of the log is said to be lost"
    if harm in NOTHING_LOST:
        assert found == expected
        assert said["lost"] == []
    else:
        assert done.exit_code == 1
        assert found != expected or said["lost"] == []
        assert sum(map(len, found.values())) > 0
    if harm == "nothing":
        assert done.exit_code == 0


def _lost(said: dict[str, Any]) -> dict[str, set[int]]:
    lost: dict[str, set[int]] = {}
    for each in said["lost"]:
        seqs = range(each["first_seq"], each["last_seq"] + 1)
        lost.setdefault(each["topic"], set()).update(seqs)
    return lost


def test_readers_of_what_was_saved_are_told_of_the_hole(
    made: tuple[Path, dict[str, dict[int, bytes]]], tmp_path: Path
) -> None:
    source, _ = made
    data, saved = tmp_path / "data", tmp_path / "saved"
    shutil.copytree(source, data)
    flip_record(segment(data), 150)
    done = penstock("salvage", data, "--into", saved)
    assert done.exit_code == 1
    lost = next(line for line in done.stdout.splitlines() if line.startswith("lost: t seq"))
    assert "log entr" in lost

    async def tombstones() -> list[tuple[int, int]]:
        async with node(saved, partitions=1, seal=SMALL) as engine:
            told, at = [], 0
            while True:
                page = await engine.diff("t", ReadRequest(at))
                if page.tombstone is not None:
                    told.append((page.tombstone.gap_from, page.tombstone.gap_to))
                at = page.next_from_seq
                if page.caught_up:
                    return told

    told = asyncio.run(tombstones())
    assert len(told) == 1
    first, last = told[0]
    assert (f"seqs {first} to {last}" if first < last else f"seq {first}") in lost


def test_a_directory_in_use_and_places_that_will_not_do_are_refused(
    made: tuple[Path, dict[str, dict[int, bytes]]], tmp_path: Path
) -> None:
    source, _ = made
    data = tmp_path / "data"
    shutil.copytree(source, data)
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    for into, reason in ((full, "is not empty"), (data / "inside", "is inside of"), (data, "is")):
        refused = penstock("salvage", data, "--into", into)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"Error: {into} {reason}")
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert penstock("salvage", nothing).exit_code == 1

    async def in_use() -> Result:
        async with node(data, partitions=1, seal=SMALL):
            return await asyncio.to_thread(penstock, "salvage", data)

    assert "a server is using" in asyncio.run(in_use()).stderr
