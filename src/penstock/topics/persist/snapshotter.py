"""Snapshots of a running node: when to make them, and how to adopt a new one.

Another process does the work (`snapshot_worker`). A step that fails has no lasting effect: the log
is truncated only after the snapshot is durable, and only up to the previous snapshot, which is kept
too; older snapshots are removed only after the log is truncated, and segments only when no snapshot
names them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Corrupt, PenstockError, Unavailable
from penstock.kernel.units import KIB, MIB
from penstock.log.executor import WorkKind
from penstock.log.store import Compact, LogStore, Operation, Sync
from penstock.raft.journal import ReplicatedJournal
from penstock.topics.core.cold_row import ColdBlock, Tags
from penstock.topics.core.registry import Registry
from penstock.topics.engine.writers import PartitionWriter
from penstock.topics.persist.backup import BackupList, OnProgress, Pin, copy_data, silent
from penstock.topics.persist.data_dir import ColdFiles, SnapshotFiles
from penstock.topics.persist.segments import SealOptions
from penstock.topics.persist.snapshot_worker import (
    END,
    JOB,
    LENGTH,
    PAYLOADS,
    PIECE,
    Manifest,
    Sealed,
    SnapshotJob,
)

_BACKUP: Final = -2
"""The read scheduler's key for the copy of a backup, which belongs to no partition."""
_LOGGER: Final = logging.getLogger("penstock.topics")
CHECK_S: Final = 1.0
BUSY_FROM: Final = 0.75
PATIENCE: Final = 4
QUICK_BYTES_MAX: Final = 32 * MIB
"""On a clean shutdown a snapshot is made if at most this much has to be read for it …"""
QUICK_BYTES_MIN: Final = MIB
"""… and if the next start saves at least this much of replay."""
QUICK_S: Final = 5.0
_RETRIES: Final = Backoff(base_ms=5_000, cap_ms=300_000, jitter=0.0, window_ms=math.inf)
_READ_ENTRIES: Final = 128
_PIECE_BYTES: Final = 256 * KIB
_PAUSE_S: Final = 0.001
"""The thread that feeds the process sleeps after each piece: it shares the interpreter with the
event loop, and is not urgent.
"""
_SEAL_SLICE_S: Final = 0.005


class CompactionFailed(Unavailable):
    """No snapshot was made; nothing has changed, and it is retried later."""

    code = "compaction_failed"


class Progress(NamedTuple):
    """The state of compaction for people."""

    running: bool
    log_bytes: int
    due_bytes: int
    snapshot_bytes: int
    done_total: int
    failures: int
    error: str | None
    backup: dict[str, Any] | None = None
    """The progress of the backup being made: `what`, and `done` of `total`."""


class Snapshotter:
    """Makes snapshots of the partitions of a node, one run at a time."""

    def __init__(
        self,
        journal: ReplicatedJournal,
        writers: Sequence[PartitionWriter],
        registry: Registry,
        snapshots: SnapshotFiles,
        cold: ColdFiles,
        *,
        seal: SealOptions | None,
        log_bytes_min: int,
        clock: Clock,
        member: int = 0,
    ) -> None:
        """`member` is the id of this node in its cluster; 0 for a node alone."""
        self._journal = journal
        self._store: LogStore = journal.store
        self._writers = writers
        self._registry = registry
        self._snapshots = snapshots
        self._cold = cold
        self._seal = seal
        self._log_bytes_min = log_bytes_min
        self._clock = clock
        self._member = member
        self._loop = asyncio.get_running_loop()
        self.lock = asyncio.Lock()  # held while files are created, or must not change
        self._timer: asyncio.TimerHandle | None = None
        self._run: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._indexes: dict[int, int] = {}  # the last snapshot of each partition
        self._sizes: dict[int, int] = {}
        self._counted_bytes = 0  # of the log, at the last run
        self._is_busy = False
        self._streak = 0
        self._retry_ms = 0
        self.done = self._failures = 0
        self._error: str | None = None
        self._copying: tuple[str, int, int] | None = None

    def start(self, indexes: dict[int, int], sizes: dict[int, int], log_bytes: int) -> None:
        """Start watching the log, with the given number of bytes after these snapshots."""
        self._indexes, self._sizes = indexes, sizes
        self._counted_bytes = self._journal.counters.bytes_written - log_bytes
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def start_again(self) -> None:
        """Make snapshots now: an expected one is damaged."""
        if self._run is None:
            self._run = self._loop.create_task(self._run_due())

    @property
    def log_bytes(self) -> int:
        """The bytes logged since the last snapshots."""
        return self._journal.counters.bytes_written - self._counted_bytes

    @property
    def due_bytes(self) -> int:
        """The bytes logged before a snapshot is worth the work; more while the loop is busy."""
        enough = max(self._log_bytes_min, sum(self._sizes.values()))
        return PATIENCE * enough if self._is_busy else enough

    @property
    def is_due(self) -> bool:
        """Whether the log has grown enough."""
        return self.log_bytes > self.due_bytes

    def set_busy(self, share: float) -> None:
        """Set the recent share of its time that the loop was busy."""
        self._is_busy = share > BUSY_FROM

    def view(self) -> dict[str, Any]:
        """The state of compaction, for people."""
        return Progress(
            self.lock.locked(),
            self.log_bytes,
            self.due_bytes,
            sum(self._sizes.values()),
            self.done,
            self._failures,
            self._error,
            self._copying and dict(zip(("what", "done", "total"), self._copying, strict=True)),
        )._asdict()

    async def compact(self) -> int:
        """Snapshot everything logged since the last ones; return how many partitions had any.

        Raises `CompactionFailed` on failure, with no effect.
        """
        async with self.lock:
            try:
                done = await self._compact()
            except (OSError, PenstockError) as error:
                self._failures += 1
                self._error = str(error)
                raise CompactionFailed(f"a snapshot could not be made: {error}") from error
            self._error = None
            self._streak = 0
            return done

    async def backup(self, dest: Path, on_progress: OnProgress = silent) -> BackupList:
        """Copy what is committed now; no snapshot is made or removed meanwhile.

        The applied indexes of all partitions are taken in one iteration of the loop: everything a
        router has copied is also in its source, where it was committed before.
        """
        async with self.lock:
            self._ending.clear()
            for writer in self._writers:
                writer.check()  # a copy without this partition could not be restored
            pins = [self._pin(writer) for writer in self._writers]

            def progress(what: str, done: int, total: int) -> None:
                if self._ending.is_set():
                    raise Unavailable("the node is shutting down")
                self._copying = what, done, total
                on_progress(what, done, total)

            copy = partial(
                copy_data,
                self._store,
                pins,
                self._cold,
                dest,
                now_ms=self._clock.now_ms(),
                on_progress=progress,
            )
            try:
                listed: BackupList = await self._journal.reads.run(_BACKUP, copy)
                return listed
            finally:
                self._copying = None

    def _pin(self, writer: PartitionWriter) -> Pin:
        """What a backup copies of a partition: nothing that is not applied."""
        number = writer.number
        index = self._indexes.get(number, 0)
        found = (each for each in self._snapshots.found(number) if each.index == index)
        return Pin(number, next(found, None), writer.applied_index)

    def stop(self) -> None:
        """Start no more snapshots, and cancel the current one."""
        if self._timer is not None:
            self._timer.cancel()
        self._stop_process()

    async def finish(self) -> None:
        """Make a last snapshot at shutdown if that is quick and worth it."""
        self.stop()
        async with self.lock:
            pass  # its waiter has seen the shutdown
        work_bytes = self.log_bytes + sum(self._sizes.values())
        if self.log_bytes >= QUICK_BYTES_MIN and work_bytes <= QUICK_BYTES_MAX:
            self._ending.clear()
            timer = self._loop.call_later(QUICK_S, self._stop_process)
            try:
                await self.compact()
            except CompactionFailed as error:
                _LOGGER.info("no snapshot at shutdown: %s", error)
            finally:
                timer.cancel()

    def _check(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._check)
        if self.is_due and self._run is None and self._clock.monotonic_ms() >= self._retry_ms:
            self._run = self._loop.create_task(self._run_due())

    async def _run_due(self) -> None:
        try:
            await self.compact()
        except CompactionFailed as error:
            self._streak += 1
            wait_ms = int(_RETRIES.nominal_ms(self._streak))
            self._retry_ms = self._clock.monotonic_ms() + wait_ms
            _LOGGER.warning("%s; tried again in %d ms", error, wait_ms)
        finally:
            self._run = None

    async def _compact(self) -> int:
        counted_bytes = self._journal.counters.bytes_written
        jobs = []
        for writer in self._writers:
            if writer.is_out_of_service:
                continue
            job = await writer.run(WorkKind.MAINTENANCE, partial(self._job, writer))
            if job is not None:
                jobs.append(job)
        if not jobs:
            self._counted_bytes = counted_bytes
            return 0
        self._ending.clear()  # a stop from here on takes effect, even while this waits
        # A power loss must not remove from the log what a snapshot contains.
        await asyncio.gather(*(self._logged(Sync(job.partition)) for job in jobs))
        with tempfile.TemporaryFile() as errors:
            process = await self._loop.run_in_executor(None, self._spawn, errors)
            try:
                for job in jobs:
                    feed = partial(self._feed, process, job, errors)
                    await self._take(await self._loop.run_in_executor(None, feed))
            finally:
                self._process = None
                await self._loop.run_in_executor(None, _close, process)
        self._counted_bytes = counted_bytes
        if not any(writer.is_out_of_service for writer in self._writers):
            await self._loop.run_in_executor(None, self._tidy, self._files_in_use())
        self.done += 1
        return len(jobs)

    def _job(self, writer: PartitionWriter) -> SnapshotJob | None:
        number = writer.number
        index = writer.applied_index  # the log may go on after it, with what is not committed
        previous = self._indexes.get(number, 0)
        if index <= previous:
            return None
        found = [each for each in self._snapshots.found(number) if each.index == previous]
        if previous and not found:
            raise Corrupt(f"the snapshot of partition {number} at index {previous} is gone")
        return SnapshotJob(
            number,
            index,
            str(found[0].path) if found else None,
            str(self._snapshots.path),
            str(self._cold.path),
            self._seal,
            self._clock.now_ms(),
            self._member,
        )

    async def _take(self, manifest: Manifest) -> None:
        """Adopt a new snapshot: drop cold records, truncate the log, remove older snapshots.

        The previous one is kept, and the log since then: if the new one becomes unreadable, nothing
        is lost.
        """
        number, index = manifest.partition, manifest.index
        previous = self._indexes.get(number, 0)
        self._indexes[number] = index
        self._sizes[number] = manifest.size_bytes
        self._journal.snapshotted(number, index)
        await self._seal_live(manifest)
        upto = self._journal.may_compact_to(number, previous)
        if upto > self._store.bounds(number).boundary_index:
            await self._logged(Compact(number, upto))
            self._journal.compacted(number, upto)
        keep = partial(self._snapshots.keep, number, (previous, index))
        await self._loop.run_in_executor(None, keep)

    def adopted(self, partition: int, index: int, size_bytes: int) -> None:
        """A snapshot of another member has replaced a partition's state."""
        self._indexes[partition], self._sizes[partition] = index, size_bytes

    async def _logged(self, operation: Operation) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)

        executor = self._writers[operation.partition].executor
        executor.submit(WorkKind.MAINTENANCE, partial(self._journal.submit, operation, done), done)
        await future

    async def _seal_live(self, manifest: Manifest) -> None:
        """Drop the records that segments now hold, a few at a time.

        Where the log never had a record, a segment has a gap: such a topic, which was once
        ephemeral, keeps its records in memory.
        """
        began_s = time.monotonic()
        by_topic: dict[tuple[str, int], list[ColdBlock]] = {}
        for sealed in manifest.sealed:
            by_topic.setdefault((sealed.topic, sealed.epoch), []).extend(_blocks_of(sealed))
        for (name, epoch), blocks in by_topic.items():
            topic = self._registry.topics.get(name)
            if topic is None or topic.epoch != epoch:
                continue
            topic.row.seal([block for block in blocks if block.first_seq > topic.unlogged_seq])
            self._registry.recount(topic)
            if time.monotonic() - began_s > _SEAL_SLICE_S:
                await asyncio.sleep(0)
                began_s = time.monotonic()

    def _files_in_use(self) -> set[str]:
        """The segments that this node may still read, whatever the snapshots say."""
        slots = (topic.row for topic in self._registry.topics.values())
        return set().union(*(each.cold.files() for each in slots if each.cold.blocks))

    def _tidy(self, in_use: set[str]) -> None:
        """Remove files that are not needed any more. Failures are retried next time."""
        try:
            self._store.reclaim()
            self._cold.sweep(in_use | self._snapshots.files_named())
        except (OSError, PenstockError) as error:
            _LOGGER.warning("unused files could not be removed, tried again later: %s", error)

    # In a thread

    def _spawn(self, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.topics.persist.snapshot_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        return self._process

    def _feed(
        self, process: subprocess.Popen[bytes], job: SnapshotJob, errors: IO[bytes]
    ) -> Manifest:
        """Let the worker process run a job; its last output is the reason for a failure."""
        try:
            return self._send(process, job)
        except OSError as error:
            process.kill()
            code = process.wait()
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip().splitlines()
            reason = said[-1] if said else str(error)
            raise Unavailable(f"the snapshot worker ended with {code}: {reason}") from error

    def _send(self, process: subprocess.Popen[bytes], job: SnapshotJob) -> Manifest:
        assert process.stdin is not None
        assert process.stdout is not None
        send = process.stdin.write
        body = msgspec.json.encode(job)
        send(PIECE.pack(JOB, len(body)) + body)
        index = self._indexes.get(job.partition, 0) + 1
        while index <= job.index:
            if self._ending.is_set():
                raise BrokenPipeError("the node is shutting down")
            entries = self._store.read(
                job.partition, index, max_entries=_READ_ENTRIES, max_bytes=_PIECE_BYTES
            )
            parts: list[bytes] = []
            for entry in entries[: job.index - index + 1]:
                parts += (LENGTH.pack(len(entry.payload)), entry.payload)
            data = b"".join(parts)
            send(PIECE.pack(PAYLOADS, len(data)) + data)
            index = entries[-1].index + 1
            time.sleep(_PAUSE_S)
        send(PIECE.pack(END, 0))
        process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise BrokenPipeError("the worker sent no answer")
        return msgspec.json.decode(line, type=Manifest)

    def _stop_process(self) -> None:
        self._ending.set()
        process = self._process
        if process is not None:
            process.kill()


def _blocks_of(sealed: Sealed) -> list[ColdBlock]:
    """The blocks of a new segment, with their tags."""
    return [
        ColdBlock(
            sealed.file,
            place.offset,
            place.length,
            first_seq=place.first_seq,
            last_seq=place.last_seq,
            tags=None if tags is None else Tags(tuple(tags[0]), array("H", tags[1])),
        )
        for place, tags in zip(sealed.blocks, sealed.tags, strict=True)
    ]


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except OSError:
            continue
    try:
        process.wait(QUICK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
