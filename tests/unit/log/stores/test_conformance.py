"""What every store promises, asked of each of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.store import (
    AlreadyOpen,
    Append,
    Bounds,
    Compact,
    Compacted,
    HardState,
    InstallBoundary,
    LogEntry,
    LogStore,
    NotContiguous,
    ReadOnly,
    SetHardState,
    StoreClosed,
    SyncFailed,
    Truncate,
)
from penstock.log.stores import KINDS, open_store

OPTIONS = {"segment": {"segment_bytes": 64 * 1024}, "sqlite": {"shards": 3}}
DURABLE = [kind for kind in KINDS if kind != "memory"]


class Home:
    """A directory in which a store is opened, closed and opened again."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.store = self.open()

    def open(self) -> LogStore:
        return open_store(self.kind, self.path, **OPTIONS.get(self.kind, {}))

    def reopen(self) -> LogStore:
        self.store.close()
        self.store = self.open()
        return self.store


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    home = Home(request.param, tmp_path / "store")
    yield home.store
    home.store.close()


@pytest.fixture(params=DURABLE)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    home = Home(request.param, tmp_path / "store")
    yield home
    home.store.close()


def entries(first: int, count: int, term: int = 1, size: int = 20) -> list[LogEntry]:
    return [
        LogEntry(i, term, b"%d/%d" % (i, term) + b"." * size) for i in range(first, first + count)
    ]


def everything(store: LogStore, partition: int) -> list[LogEntry]:
    first = store.bounds(partition).boundary_index + 1
    return store.read(partition, first, max_entries=1 << 30, max_bytes=1 << 40)


def write(store: LogStore, *group: object) -> None:
    assert store.write(list(group), sync=True) == {}  # type: ignore[arg-type]


def test_a_partition_never_written_is_all_zero(store: LogStore) -> None:
    assert store.bounds(5) == Bounds(0, 0, 0, 0)
    assert store.hard_state(5) == HardState(0, 0)
    assert store.read(5, 1, max_entries=10, max_bytes=100) == []
    assert store.term_at(5, 0) == 0
    assert store.partitions() == []


@pytest.mark.parametrize("sync", [True, False])
def test_what_was_written_is_read_back(store: LogStore, sync: bool) -> None:
    assert store.write([Append(3, entries(1, 5))], sync=sync) == {}
    assert everything(store, 3) == entries(1, 5)
    assert store.bounds(3) == Bounds(0, 0, 5, 1)
    assert store.partitions() == [3]


def test_a_group_over_many_partitions_is_one_write(store: LogStore) -> None:
    write(store, *(Append(p, entries(1, 1 + p % 3)) for p in range(100)))
    write(store, *(Append(p, entries(2 + p % 3, 2, term=2)) for p in range(100)))
    for p in range(100):
        assert everything(store, p) == entries(1, 1 + p % 3) + entries(2 + p % 3, 2, term=2)
    assert store.partitions() == list(range(100))


def test_several_operations_of_one_partition_apply_in_order(store: LogStore) -> None:
    write(
        store,
        Append(1, entries(1, 5)),
        Truncate(1, 4),
        Append(1, entries(4, 2, term=2)),
        Compact(1, 4),
        SetHardState(1, 2, 7),
        Append(1, entries(6, 1, term=3)),
    )
    assert store.bounds(1) == Bounds(4, 2, 6, 3)
    assert everything(store, 1) == entries(5, 1, term=2) + entries(6, 1, term=3)
    assert store.hard_state(1) == HardState(2, 7)


@pytest.mark.parametrize("first", [1, 2, 3, 5, 100])
def test_an_append_that_leaves_a_gap_or_overlaps_is_refused(store: LogStore, first: int) -> None:
    write(store, Append(1, entries(1, 3)))
    failed = store.write([Append(1, entries(first, 2))], sync=True)
    assert isinstance(failed[1], NotContiguous)
    assert failed[1].detail == {"partition": 1, "expected": 4, "found": first}
    assert everything(store, 1) == entries(1, 3)


def test_a_gap_inside_an_append_refuses_all_of_it(store: LogStore) -> None:
    failed = store.write([Append(1, entries(1, 2) + entries(4, 1))], sync=True)
    assert isinstance(failed[1], NotContiguous)
    assert store.bounds(1) == Bounds()


def test_a_failing_partition_leaves_the_others_of_its_group(store: LogStore) -> None:
    group = [
        Append(1, entries(1, 2)),
        Append(2, entries(1, 2)),
        Append(2, entries(9, 1)),
        SetHardState(2, 4, 4),
        Append(3, entries(1, 2)),
    ]
    failed = store.write(group, sync=True)
    assert list(failed) == [2]
    assert everything(store, 1) == everything(store, 3) == entries(1, 2)
    assert store.bounds(2) == Bounds()
    assert store.hard_state(2) == HardState()
    write(store, Append(2, entries(1, 2)))
    assert everything(store, 2) == entries(1, 2)


def test_a_read_stops_at_its_number_of_entries(store: LogStore) -> None:
    write(store, Append(1, entries(1, 10)))
    assert store.read(1, 4, max_entries=3, max_bytes=1 << 20) == entries(4, 3)
    assert store.read(1, 9, max_entries=30, max_bytes=1 << 20) == entries(9, 2)


def test_a_read_stops_at_its_bytes_but_gives_at_least_one(store: LogStore) -> None:
    batch = [LogEntry(i, 1, bytes([i]) * 100) for i in range(1, 10)]
    write(store, Append(1, batch))
    assert store.read(1, 1, max_entries=9, max_bytes=350) == batch[:3]
    assert store.read(1, 1, max_entries=9, max_bytes=300) == batch[:3]
    assert store.read(1, 5, max_entries=9, max_bytes=1) == batch[4:5]
    assert store.read(1, 5, max_entries=9, max_bytes=0) == batch[4:5]


def test_past_the_end_a_read_is_empty(store: LogStore) -> None:
    write(store, Append(1, entries(1, 2)))
    assert store.read(1, 3, max_entries=1, max_bytes=1) == []
    assert store.read(1, 1 << 62, max_entries=1, max_bytes=1) == []


def test_terms_are_known_for_every_entry_and_the_boundary(store: LogStore) -> None:
    log = entries(1, 3, term=1) + entries(4, 1, term=4) + entries(5, 3, term=5)
    write(store, Append(1, log))
    assert [store.term_at(1, i) for i in range(8)] == [0, 1, 1, 1, 4, 5, 5, 5]
    write(store, Compact(1, 4))
    assert [store.term_at(1, i) for i in range(4, 8)] == [4, 5, 5, 5]
    with pytest.raises(Compacted):
        store.term_at(1, 3)
    with pytest.raises(Rejected):
        store.term_at(1, 8)


def test_truncated_entries_are_replaced_by_what_is_appended_after(store: LogStore) -> None:
    write(store, Append(1, entries(1, 6)))
    write(store, Truncate(1, 3))
    assert store.bounds(1) == Bounds(0, 0, 2, 1)
    assert everything(store, 1) == entries(1, 2)
    write(store, Append(1, entries(3, 2, term=2)))
    assert everything(store, 1) == entries(1, 2) + entries(3, 2, term=2)
    assert store.bounds(1) == Bounds(0, 0, 4, 2)


def test_truncating_past_the_end_changes_nothing(store: LogStore) -> None:
    write(store, Append(1, entries(1, 3)))
    write(store, Truncate(1, 4), Truncate(1, 90))
    assert everything(store, 1) == entries(1, 3)


def test_truncating_everything_leaves_the_boundary(store: LogStore) -> None:
    write(store, Append(1, entries(1, 3)), Compact(1, 2), Truncate(1, 3))
    assert store.bounds(1) == Bounds(2, 1, 2, 1)
    write(store, Append(1, entries(3, 1, term=2)))
    assert everything(store, 1) == entries(3, 1, term=2)


def test_truncating_into_the_boundary_is_refused(store: LogStore) -> None:
    write(store, Append(1, entries(1, 3)), Compact(1, 2))
    failed = store.write([Truncate(1, 2)], sync=True)
    assert isinstance(failed[1], Rejected)
    assert everything(store, 1) == entries(3, 1)


def test_compacted_entries_are_gone_and_say_so(store: LogStore) -> None:
    write(store, Append(1, entries(1, 10)))
    write(store, Compact(1, 6))
    assert store.bounds(1) == Bounds(6, 1, 10, 1)
    assert everything(store, 1) == entries(7, 4)
    for index in (0, 1, 6):
        with pytest.raises(Compacted):
            store.read(1, index, max_entries=1, max_bytes=1)


def test_compacting_again_or_less_changes_nothing(store: LogStore) -> None:
    write(store, Append(1, entries(1, 4)), Compact(1, 3), Compact(1, 3), Compact(1, 1))
    assert store.bounds(1) == Bounds(3, 1, 4, 1)


def test_compacting_past_the_end_is_refused(store: LogStore) -> None:
    write(store, Append(1, entries(1, 3)))
    assert isinstance(store.write([Compact(1, 4)], sync=True)[1], Rejected)
    assert store.bounds(1) == Bounds(0, 0, 3, 1)


def test_a_log_compacted_to_its_end_goes_on(store: LogStore) -> None:
    write(store, Append(1, entries(1, 3, term=2)), Compact(1, 3))
    assert store.bounds(1) == Bounds(3, 2, 3, 2)
    write(store, Append(1, entries(4, 2, term=2)))
    assert everything(store, 1) == entries(4, 2, term=2)


def test_an_installed_boundary_replaces_the_log(store: LogStore) -> None:
    write(store, Append(1, entries(1, 5)))
    write(store, InstallBoundary(1, 40, 9))
    assert store.bounds(1) == Bounds(40, 9, 40, 9)
    assert store.term_at(1, 40) == 9
    assert everything(store, 1) == []
    write(store, Append(1, entries(41, 2, term=9)))
    assert everything(store, 1) == entries(41, 2, term=9)
    assert isinstance(store.write([InstallBoundary(1, 39, 9)], sync=True)[1], Rejected)


def test_the_last_hard_state_counts(store: LogStore) -> None:
    write(store, SetHardState(1, 3, 2), SetHardState(2, 1, 1))
    write(store, SetHardState(1, 4, 0))
    assert store.hard_state(1) == HardState(4, 0)
    assert store.hard_state(2) == HardState(1, 1)
    assert store.bounds(1) == Bounds()


def test_empty_payloads_and_empty_groups_are_fine(store: LogStore) -> None:
    write(store)
    log = [LogEntry(1, 1, b""), LogEntry(2, 1, b"x"), LogEntry(3, 1, b""), LogEntry(4, 1, b"")]
    write(store, Append(1, log), Append(2, []))
    assert everything(store, 1) == log
    assert store.read(1, 3, max_entries=9, max_bytes=0) == log[2:]


def test_payloads_of_several_mebibytes_are_fine(store: LogStore) -> None:
    log = [LogEntry(i, 1, bytes([i]) * (3 << 20)) for i in range(1, 4)]
    write(store, Append(1, log[:1]), Append(2, log[:1]))
    write(store, Append(1, log[1:]))
    write(store, Append(1, entries(4, 1)))
    assert everything(store, 1) == log + entries(4, 1)
    assert everything(store, 2) == log[:1]


@pytest.mark.parametrize(
    "operation",
    [
        Append(-1, [LogEntry(1, 1, b"")]),
        Append(1 << 32, [LogEntry(1, 1, b"")]),
        Append(1, [LogEntry(1, -1, b"")]),
        Append(1, [LogEntry(1, 1 << 64, b"")]),
        SetHardState(1, 1, 1 << 64),
        InstallBoundary(1, 1 << 64, 1),
    ],
)
def test_numbers_that_cannot_be_stored_are_refused(store: LogStore, operation: Append) -> None:
    failed = store.write([operation, Append(7, entries(1, 1))], sync=True)
    assert isinstance(failed.pop(operation.partition), Rejected)  # type: ignore[attr-defined]
    assert failed == {}
    assert everything(store, 7) == entries(1, 1)
    assert store.bounds(1) == Bounds()


def test_a_closed_store_refuses_and_closing_twice_is_fine(store: LogStore) -> None:
    write(store, Append(1, entries(1, 1)))
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.write([Append(1, entries(2, 1))], sync=True)
    for question in (
        lambda: store.read(1, 1, max_entries=1, max_bytes=1),
        lambda: store.bounds(1),
        lambda: store.hard_state(1),
        lambda: store.term_at(1, 1),
        store.partitions,
    ):
        with pytest.raises(StoreClosed):
            question()


def test_status_counts_what_is_there(store: LogStore) -> None:
    write(store, Append(1, entries(1, 5)), Append(2, entries(1, 2)), Compact(1, 2))
    status = store.status()
    assert (status.partitions, status.entries, status.read_only_reason) == (2, 5, None)
    assert status.syncs >= 1
    assert status.kind in KINDS


def test_a_reopened_store_is_what_it_was(home: Home) -> None:
    store = home.store
    for turn in range(40):
        first = turn * 5 + 1
        write(store, *(Append(p, entries(first, 5, term=turn, size=p * 30)) for p in range(8)))
        write(store, *(SetHardState(p, turn, p) for p in range(0, 8, 2)))
    write(store, Compact(1, 50), Truncate(2, 60), InstallBoundary(3, 700, 7), Compact(4, 200))
    write(store, Append(2, entries(60, 3, term=77)), Append(4, entries(201, 1, term=77)))
    before = picture(store)
    assert picture(home.reopen()) == before
    assert picture(home.reopen()) == before
    write(home.store, Append(3, entries(701, 2, term=78)), Truncate(5, 100))
    before = picture(home.store)
    assert picture(home.reopen()) == before


def test_entries_written_without_sync_are_there_after_a_close(home: Home) -> None:
    assert home.store.write([Append(1, entries(1, 9))], sync=False) == {}
    assert everything(home.reopen(), 1) == entries(1, 9)


def test_a_second_open_names_the_holder(home: Home) -> None:
    import os

    with pytest.raises(AlreadyOpen, match=f"process {os.getpid()}"):
        home.open()
    home.reopen()


def test_an_unknown_kind_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="memory, rocksdb, segment, sqlite"):
        open_store("lmdb", tmp_path)


def test_sqlite_refuses_another_number_of_shards(tmp_path: Path) -> None:
    open_store("sqlite", tmp_path, shards=2).close()
    with pytest.raises(Rejected, match=r"made with shards=2 .*shards=3"):
        open_store("sqlite", tmp_path, shards=3)
    open_store("sqlite", tmp_path, shards=2).close()


def picture(store: LogStore) -> dict[int, object]:
    return {
        p: (store.bounds(p), store.hard_state(p), everything(store, p), terms(store, p))
        for p in store.partitions()
    }


def terms(store: LogStore, partition: int) -> list[int]:
    bounds = store.bounds(partition)
    span = range(bounds.boundary_index, bounds.last_index + 1)
    return [store.term_at(partition, index) for index in span]


class FailingCommit:
    """A connection to SQLite whose next commit fails after it was done."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self.inner = inner

    def execute(self, text: str) -> Any:
        done = self.inner.execute(text)
        if text == "commit":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR  # type: ignore[misc]
            raise error
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class FailingBatch:
    """RocksDB, whose next batch fails after it was written."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def write(self, batch: Any, options: Any) -> None:
        self.inner.write(batch, options)
        raise OSError("IO error: Input/output error: While fdatasync: 000004.log")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("kind", ["sqlite", "rocksdb"])
def test_a_group_whose_commit_failed_is_unknown_and_the_next_is_refused(
    kind: str, tmp_path: Path
) -> None:
    if kind == "rocksdb":
        pytest.importorskip("rocksdict")
    home = Home(kind, tmp_path / "store")
    write(home.store, Append(0, tuple(entries(1, 1))))
    store: Any = home.store
    if kind == "sqlite":
        shard = store._shards[0]
        shard._writer = FailingCommit(shard._writer)
    else:
        store._db = FailingBatch(store._db)
    failed = store.write([Append(0, tuple(entries(2, 1)))], sync=True)
    assert isinstance(failed[0], SyncFailed)
    assert isinstance(store.write([Append(0, tuple(entries(2, 1)))], sync=True)[0], ReadOnly)
    assert store.bounds(0).last_index == 1, "the log does not count on it"
    if kind == "sqlite":
        shard._writer = shard._writer.inner
    else:
        store._db = store._db.inner
    assert everything(home.reopen(), 0) == entries(1, 2), "here it was done"
    home.store.close()
