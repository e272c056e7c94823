"""The rocksdb store: a group is one WriteBatch and one synced write. Needs `penstock[rocksdb]`."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.kernel.errors import Rejected, Unavailable
from penstock.log.disk import lock_directory, make_directory
from penstock.log.store import (
    Append,
    Bounds,
    Compact,
    Damaged,
    DiskFull,
    HardState,
    InstallBoundary,
    LogEntry,
    Operation,
    ReadOnly,
    SetHardState,
    StoreClosed,
    StoreStatus,
    Sync,
    SyncFailed,
    Truncate,
    UnknownFormat,
)
from penstock.log.stores import rules

try:
    import rocksdict
except ImportError as error:
    raise Rejected(
        "the rocksdb store needs the package rocksdict, which is not installed: "
        "pip install penstock[rocksdb]"
    ) from error

FORMAT_VERSION: Final = 1
_VERSION_KEY: Final = b"v"
_ENTRY_KEY: Final = struct.Struct(">cIQ")  # big-endian: keys sort as indexes do
_STATE_KEY: Final = struct.Struct(">cI")
_STATE: Final = struct.Struct("<QQQQQQ")
_TERM: Final = struct.Struct("<Q")
_State = tuple[Bounds, HardState]
_NO_STATE: Final = (Bounds(), HardState())


def open_rocksdb(path: str | Path) -> RocksdbStore:
    """A rocksdb store in a directory of this machine."""
    return RocksdbStore(Path(path))


class RocksdbStore:
    """Entries and states under sorted keys. Reads use a snapshot taken after each write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_directory(path)
        self._release = lock_directory(path)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._refusal: ReadOnly | None = None
        self._syncs = 0
        try:
            self._db: Any = rocksdict.Rdict(str(path / "db"), _options())
            self._check_format()
            self._states = self._load_states()
            self._view: Any = self._db.snapshot()
        except BaseException as error:
            self._release()
            if type(error) is Exception:  # the only type that rocksdict raises
                kind = Damaged if "orruption" in str(error) else Unavailable
                raise kind(f"cannot open {path}: {error}") from error
            raise

    def stage(self, group: Sequence[Operation], bytes_max: int) -> Sequence[Operation] | None:
        """Only checks the size: this store prepares nothing."""
        return group if rules.payload_bytes(group) <= bytes_max else None

    def begin(self, group: Sequence[Operation], *, sync: bool) -> None:
        """None: every write here is a call."""

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group as one batch; see `Store.write`."""
        with self._writing:
            self._check_open()
            if self._refusal is not None and not isinstance(self._refusal, DiskFull):
                return rules.all_failed(group, self._refusal)
            failed = rules.refusals(group, lambda partition: self._state(partition)[0])
            admitted = [op for op in group if op.partition not in failed]
            batch = _Batch(self)
            for op in admitted:
                batch.add(op)
            options = rocksdict.WriteOptions()
            options.sync = sync
            try:
                self._db.write(batch.sealed(), options)
            except Exception as error:
                failed |= rules.all_failed(admitted, self._not_written(error))
                return failed
            self._syncs += sync
            self._refusal = None
            with self._reading:
                self._states = self._states | batch.changed
                self._view = self._db.snapshot()
            return failed

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Entries from an index on; see `Store.read`."""
        view, (bounds, _) = self._look(partition)
        rules.check_read(partition, first_index, bounds.boundary_index)
        count = min(max(max_entries, 1), bounds.last_index - first_index + 1)
        found: list[LogEntry] = []
        total = 0
        at = view.iter()
        at.seek(_ENTRY_KEY.pack(b"e", partition, min(first_index, rules.NUMBER_MAX)))
        for index in range(first_index, first_index + count):
            entry = _entry(partition, index, at)
            total += len(entry.payload)
            if found and total > max_bytes:
                break
            found.append(entry)
            at.next()
        return found

    def term_at(self, partition: int, index: int) -> int:
        """The term of an entry or of the boundary."""
        view, (bounds, _) = self._look(partition)
        rules.check_term_at(partition, index, bounds)
        if index == bounds.boundary_index:
            return bounds.boundary_term
        return _term(view[_ENTRY_KEY.pack(b"e", partition, index)])

    def bounds(self, partition: int) -> Bounds:
        """Boundary and last entry."""
        return self._look(partition)[1][0]

    def hard_state(self, partition: int) -> HardState:
        """Term and vote."""
        return self._look(partition)[1][1]

    def partitions(self) -> list[int]:
        """Every partition ever written, in order."""
        self._check_open()
        return sorted(self._states)

    def damaged(self) -> Mapping[int, Exception]:
        """Empty: damage is detected on read."""
        return {}

    def reclaim(self) -> int:
        """Returns 0: the space of compacted entries is reused."""
        return 0

    def status(self) -> StoreStatus:
        """A snapshot for people."""
        states = self._states
        return StoreStatus(
            kind="rocksdb",
            path=str(self._path),
            partitions=len(states),
            entries=sum(b.last_index - b.boundary_index for b, _ in states.values()),
            bytes_on_disk=sum(f.stat().st_size for f in self._path.rglob("*") if f.is_file()),
            syncs=self._syncs,
            read_only_reason=self._refusal.message if self._refusal else None,
        )

    def close(self) -> None:
        """Close the database and release the lock."""
        with self._writing, self._reading:
            if self._db is None:
                return
            self._view = None
            self._db.close()
            self._db = None
            self._release()

    def stored_term(self, partition: int, index: int) -> int:
        """The term of an entry as the writer sees it."""
        return _term(self._db.get(_ENTRY_KEY.pack(b"e", partition, index)))

    def knows(self, partition: int) -> bool:
        """Whether the partition was ever written."""
        return partition in self._states

    def state(self, partition: int) -> _State:
        """Bounds and hard state as the writer sees them."""
        return self._state(partition)

    def _state(self, partition: int) -> _State:
        return self._states.get(partition, _NO_STATE)

    def _look(self, partition: int) -> tuple[Any, _State]:
        with self._reading:
            self._check_open()
            return self._view, self._state(partition)

    def _check_format(self) -> None:
        found = self._db.get(_VERSION_KEY)
        if found is None:
            options = rocksdict.WriteOptions()
            options.sync = True
            self._db.put(_VERSION_KEY, bytes([FORMAT_VERSION]), options)
        elif found[0] != FORMAT_VERSION:
            raise UnknownFormat(
                f"{self._path}: expected format version {FORMAT_VERSION}, found {found[0]}"
            )

    def _load_states(self) -> dict[int, _State]:
        states: dict[int, _State] = {}
        at = self._db.iter()
        at.seek(b"s")
        while at.valid() and at.key()[:1] == b"s":
            fields = _STATE.unpack(at.value())
            partition = _STATE_KEY.unpack(at.key())[1]
            states[partition] = (Bounds(*fields[:4]), HardState(*fields[4:]))
            at.next()
        return states

    def _not_written(self, error: Exception) -> ReadOnly | SyncFailed:
        """The error of a batch: unless there was no space for it, its log may have it."""
        refusal = self._refuse(error)
        if isinstance(refusal, DiskFull) and "sync" not in str(error).lower():
            return refusal
        return SyncFailed(f"{refusal}; this group may or may not be durable")

    def _refuse(self, error: Exception) -> ReadOnly:
        if "No space left" in str(error) or "File too large" in str(error):
            self._refusal = DiskFull(f"no space left for {self._path}: {error}")
        else:
            self._refusal = ReadOnly(f"{self._path} takes no more writes: {error}")
        return self._refusal

    def _check_open(self) -> None:
        if self._db is None:
            raise StoreClosed(f"the store in {self._path} is closed")


class _Batch:
    """A group being collected in one WriteBatch, with the resulting states."""

    def __init__(self, store: RocksdbStore) -> None:
        self._store = store
        self._batch: Any = rocksdict.WriteBatch(raw_mode=True)
        self._terms: dict[tuple[int, int], int] = {}
        self.changed: dict[int, _State] = {}

    def add(self, op: Operation) -> None:
        if type(op) is Sync and not self._store.knows(op.partition):
            return  # its partition has failed
        # A sync writes the current state again: an empty batch would not be synced.
        bounds, hard = self.changed.get(op.partition) or self._store.state(op.partition)
        match op:
            case Append(partition, entries):
                for index, term, payload in entries:
                    key = _ENTRY_KEY.pack(b"e", partition, index)
                    self._batch.put(key, _TERM.pack(term) + payload)
                    self._terms[partition, index] = term
                    bounds = bounds._replace(last_index=index, last_term=term)
            case SetHardState(_, term, vote):
                hard = HardState(term, vote)
            case Truncate(partition, from_index):
                if from_index <= bounds.last_index:
                    self._drop(partition, from_index, bounds.last_index)
                    term = self._term(partition, from_index - 1, bounds)
                    bounds = bounds._replace(last_index=from_index - 1, last_term=term)
            case Compact(partition, upto):
                if upto > bounds.boundary_index:
                    term = self._term(partition, upto, bounds)
                    self._drop(partition, bounds.boundary_index + 1, upto)
                    bounds = bounds._replace(boundary_index=upto, boundary_term=term)
            case InstallBoundary(partition, index, term):
                self._drop(partition, bounds.boundary_index + 1, bounds.last_index)
                bounds = Bounds(index, term, index, term)
        self.changed[op.partition] = bounds, hard

    def sealed(self) -> Any:
        """The batch including the new states."""
        for partition, (bounds, hard) in self.changed.items():
            self._batch.put(_STATE_KEY.pack(b"s", partition), _STATE.pack(*bounds, *hard))
        return self._batch

    def _term(self, partition: int, index: int, bounds: Bounds) -> int:
        if index == bounds.boundary_index:
            return bounds.boundary_term
        staged = self._terms.get((partition, index))
        return self._store.stored_term(partition, index) if staged is None else staged

    def _drop(self, partition: int, first: int, last: int) -> None:
        # One by one: a range tombstone would slow down every later read of the partition.
        for index in range(first, last + 1):
            self._batch.delete(_ENTRY_KEY.pack(b"e", partition, index))


def _options() -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def _entry(partition: int, index: int, at: Any) -> LogEntry:
    key = _ENTRY_KEY.pack(b"e", partition, index)
    if not at.valid() or at.key() != key:
        raise Damaged(f"entry {index} of partition {partition} is missing")
    value = at.value()
    return LogEntry(index, _term(value), value[_TERM.size :])


def _term(value: bytes | None) -> int:
    if value is None or len(value) < _TERM.size:
        raise Damaged(f"malformed entry: {value!r}")
    return int(_TERM.unpack_from(value)[0])
