"""Real processes killed by SIGKILL while they write, and real disks that run full."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.log.store import AlreadyOpen, Append, DiskFull, LogEntry, LogStore
from penstock.log.stores import open_store
from penstock.testing import seeded, seeds

WRITER = Path(__file__).with_name("writer.py")
PARTITIONS = 6
OPTIONS = {
    "segment": {"segment_bytes": 64 * 1024},
    "flying": {"segment_bytes": 256 * 1024},
    "sqlite": {"shards": 2},
    "rocksdb": {},
}
Stands = dict[int, tuple[int, int, int]]


def payload(partition: int, index: int) -> bytes:
    return b"%d:%d;" % (partition, index) * (1 + (partition * 31 + index) % 97)


class Writers:
    """The server of processes to be killed."""

    def __init__(self) -> None:
        source = Path(__file__).parents[3] / "src"
        path = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
        self._server = subprocess.Popen(
            [sys.executable, str(WRITER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            text=True,
            bufsize=1,
        )

    def start(self, kind: str, path: Path, seed: int) -> int:
        """Fork a writer and return its pid."""
        assert self._server.stdin is not None
        self._server.stdin.write(f"{kind} {path} {seed}\n")
        self._server.stdin.flush()
        word, pid = self.line().split()
        assert word == "pid"
        return int(pid)

    def line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()

    def close(self) -> None:
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                pipe.close()
        self._server.wait()


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    server = Writers()
    yield server
    server.close()


def kill_after(writers: Writers, pid: int, groups: int, random: Random) -> tuple[Stands, Stands]:
    """Kill a writer some groups on, anywhere; what it last had acknowledged and tried."""
    acknowledged: Stands = {}
    tried: Stands = {}
    if not groups:  # while it opens the store
        os.kill(pid, signal.SIGKILL)
    while (line := writers.line()) != "dead":
        if line.startswith("try"):
            tried = {
                int(p): (int(a), int(b), int(c)) for p, a, b, c in map(fields, line.split()[1:])
            }
        else:
            assert line == "ack"
            acknowledged = tried
            groups -= 1
        if groups <= 0 and random.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            groups = 1 << 30
    return acknowledged, tried


def fields(text: str) -> list[str]:
    return text.split(":")


def check(store: LogStore, acknowledged: Stands, tried: Stands) -> None:
    """All that was acknowledged, no more than was tried, every entry in its place, once."""
    for partition in range(PARTITIONS):
        bounds, term = store.bounds(partition), store.hard_state(partition).term
        low = acknowledged.get(partition, (0, 0, 0))
        high = tried.get(partition, (bounds.last_index, bounds.boundary_index, term))
        assert low[0] <= bounds.last_index <= high[0]
        assert low[1] <= bounds.boundary_index <= high[1]
        assert low[2] <= term <= high[2]
        first = bounds.boundary_index + 1
        found = store.read(partition, first, max_entries=1 << 30, max_bytes=1 << 40)
        assert [entry.index for entry in found] == list(range(first, bounds.last_index + 1))
        assert all(entry.payload == payload(partition, entry.index) for entry in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "kills"), [("segment", 220), ("flying", 200), ("sqlite", 30), ("rocksdb", 30)]
)
def test_what_a_killed_process_had_acknowledged_is_there(
    writers: Writers, tmp_path: Path, kind: str, kills: int
) -> None:
    floor: Stands = {}
    done = 0
    for seed in seeds(kills):
        with seeded(seed) as random:
            if done % 20 == 0:
                path, floor = tmp_path / f"{kind}-{done}", {}
            done += 1
            pid = writers.start(kind, path, seed)
            acknowledged, tried = kill_after(writers, pid, random.randrange(12), random)
            store = open_store("segment" if kind == "flying" else kind, path, **OPTIONS[kind])
            check(store, acknowledged or floor, tried)
            floor = {
                p: (
                    store.bounds(p).last_index,
                    store.bounds(p).boundary_index,
                    store.hard_state(p).term,
                )
                for p in range(PARTITIONS)
            }
            store.close()


@pytest.mark.parametrize("kind", ["segment", "sqlite", "rocksdb"])
def test_a_second_process_is_refused_until_the_first_is_killed(
    writers: Writers, tmp_path: Path, kind: str
) -> None:
    pid = writers.start(kind, tmp_path / "store", 1)
    assert writers.line().startswith("try")
    with pytest.raises(AlreadyOpen, match=f"process {pid}$"):
        open_store(kind, tmp_path / "store", **OPTIONS[kind])
    os.kill(pid, signal.SIGKILL)
    while writers.line() != "dead":
        pass
    open_store(kind, tmp_path / "store", **OPTIONS[kind]).close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of four MiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("kind", ["segment", "sqlite"])
def test_on_a_real_full_disk_writes_are_refused_and_go_on_once_there_is_space(
    small_disk: Path, kind: str
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    store = open_store(kind, small_disk / "store", **OPTIONS[kind])
    written = fill_until_refused(store)
    assert store.status().read_only_reason is not None
    check_entries(store, written)
    ballast.unlink()
    assert store.write([Append(1, [entry(written + 1)])], sync=True) == {}
    assert store.status().read_only_reason is None
    check_entries(store, written + 1)
    store.close()
    store = open_store(kind, small_disk / "store", **OPTIONS[kind])
    check_entries(store, written + 1)
    store.close()


def test_a_limit_on_the_size_of_files_is_like_a_full_disk(tmp_path: Path) -> None:
    store = open_store("segment", tmp_path, segment_bytes=64 * 1024)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, hard))
    try:
        written = fill_until_refused(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_entries(store, written)
    assert store.write([Append(1, [entry(written + 1)])], sync=True) == {}
    check_entries(store, written + 1)
    store.close()


def entry(index: int) -> LogEntry:
    return LogEntry(index, 1, payload(1, index) + bytes(2_000))


def fill_until_refused(store: LogStore) -> int:
    """Write until the disk is full; how many entries there are."""
    for index in range(1, 100_000):
        failed = store.write([Append(1, [entry(index)])], sync=True)
        if failed:
            assert isinstance(failed[1], DiskFull), failed
            return index - 1
    raise AssertionError(f"expected {errno.errorcode[errno.ENOSPC]}, found space without end")


def check_entries(store: LogStore, count: int) -> None:
    found = store.read(1, 1, max_entries=1 << 30, max_bytes=1 << 40)
    assert found == [entry(index) for index in range(1, count + 1)]
