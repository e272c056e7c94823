"""The write path of one partition: staged at once, logged together, answered in order.

All changes of one iteration of the event loop become one entry of the log, or a few where they are
large, and changes that arrive while entries are being written form the next one: the higher the
load, the more writes share a sync.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from penstock.commits.sessions import CommitAnswer
from penstock.kernel.errors import (
    Busy,
    PenstockError,
    Rejected,
    Unavailable,
    Unknown,
    without_traceback,
)
from penstock.kernel.units import MIB
from penstock.log.executor import Phase, RestoreInProgress, WorkKind
from penstock.log.reads import resolve
from penstock.log.store import DiskFull, LogEntry
from penstock.protocol.errors import UpgradePending
from penstock.raft.journal import ReplicatedJournal
from penstock.raft.ready import NotLeader, NotServing
from penstock.topics.core.batch import Batch
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import Appended, Began, MembersChanged, Passed, SpaceCommitted
from penstock.topics.core.partition import DecidedChange, Entry, Partition
from penstock.topics.core.registry import partition_of
from penstock.topics.core.router import RouterEntry
from penstock.topics.core.space import TopicSpace
from penstock.topics.core.topic import AppendResult, Topic
from penstock.topics.core.versions import COMPLETE

Done = Callable[[list[Any] | Exception], None]
OnWritten = Callable[[AppendResult | Exception], None]
OnCommitted = Callable[[CommitAnswer | Exception], None]
T = TypeVar("T")
Waiting = list[tuple[DecidedChange | Appended | SpaceCommitted, Any]]

_LOGGER: Final = logging.getLogger("penstock.topics")
_NOTHING: Final = DecidedChange((), ())
_NOT_WRITTEN: Final = (Busy, Rejected, Unavailable)
"""Errors with which the log says that it has nothing of an entry. Any other one leaves it open."""
_DEFINITE: Final = (NotLeader, NotServing, Busy)
"""Of these, the ones that tell the caller what to do next."""
UNSYNCED_SEQS_MAX: Final = 4_096
"""The most seqs of a topic assigned without a sync: half of them while a sync is in flight, half
before the next begins. This many are skipped after a crash of the machine.
"""
ENTRY_BYTES: Final = 4 * MIB
"""What one entry of the log holds, unless a single change has more: another node takes an entry as
a whole."""


class Audience(NamedTuple):
    """The callbacks for commits: for all entries, and for appends to watched topics."""

    committed: Callable[[tuple[Entry, ...]], None]
    appended: Callable[[str], None]
    listened: Container[str]
    routed: Container[str]
    partition_failed: Callable[[Partition], None] = lambda _partition: None
    leads: Callable[[Partition], None] = lambda _partition: None


class Exclusive:
    """`async with` for holding a writer."""

    def __init__(self, writer: PartitionWriter) -> None:
        self._writer = writer

    async def __aenter__(self) -> Partition:
        await self._writer.hold()
        return self._writer.partition

    async def __aexit__(self, *_error: object) -> None:
        try:
            await self._writer.until_idle()
        finally:
            self._writer.release()


class LogFailed(Unavailable):
    """The log refused a write: nothing of it was kept, and it may be retried later."""

    code = "log_failed"


class LogFull(LogFailed):
    """The log's disk has no room: nothing of the write was kept, and space makes it possible."""

    code = "log_full"


class LogUncertain(Unknown):
    """The log failed in the middle of a write: it is not visible, but may be after a restart."""

    code = "log_uncertain"


class Steps:
    """The commits of a command that needs several: it is done in part if a later one fails."""

    def __init__(self) -> None:
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.done and isinstance(error, PenstockError) and not isinstance(error, Unknown):
            raise LogUncertain(f"only a part of this was done: {error}") from error


class PartitionWriter:
    """The pipeline of one partition. Used only on the loop's thread."""

    def __init__(
        self,
        number: int,
        partition: Partition,
        journal: ReplicatedJournal,
        *,
        loop: asyncio.AbstractEventLoop,
        audience: Audience,
    ) -> None:
        self.number = number
        self.partition = partition
        self._registry = partition.registry
        self.applied_index = 0  # of the log: its entries up to here are in the partition's state
        self.waiting_bytes = 0  # staged, submitted to the log, or behind an exclusive command
        self._staged_bytes = 0  # of these, not yet submitted; estimated on arrival
        self._backlog = journal.backlog
        self.is_held = False  # an exclusive command runs or waits: others must go through `later`
        self._journal = journal
        self.executor = journal.executors[number]
        self.executor.on_failed = self._on_partition_failed
        self._wal = journal.wal
        self._loop = loop
        self._committed = audience.committed
        self._appended = audience.appended
        self._listened = audience.listened
        self._routed = audience.routed
        self._partition_failed = audience.partition_failed
        self._tell_leads = audience.leads
        self._pending: Waiting = []
        self._entries: list[Entry] = []
        self._sync = False
        self._scheduled = False
        self._flying: deque[Waiting] = deque()  # entries submitted to the log, oldest first
        self._flying_indexes: deque[int] = deque()  # of these, in the log
        self._refused: Callable[[], None] | None = None  # fails the last of these, if refused
        self._committing = False  # consequences of an answer run after the current commits
        self._failed: Exception | None = None  # until nothing is in flight
        self._follows: PenstockError | None = None  # why changes are refused: another one leads
        self.refusal: PenstockError | None = None  # why changes are refused at present
        self._held: deque[Callable[[], None]] | None = None  # commands behind an exclusive one
        self._held_bytes = 0
        self._idle: list[asyncio.Future[None]] = []
        self._exclusive = asyncio.Lock()
        self._unsynced_seqs: dict[str, int] = {}  # of each topic, since the last sync began
        self._sync_round = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is staged."""
        return not self._pending and not self._flying

    # What the group says: see `raft.group.Replica`

    @property
    def leads(self) -> bool:
        """Whether this node decides for the partition."""
        return self._follows is None

    def apply_entry(self, entry: LogEntry) -> None:
        """Apply a committed entry that was not proposed here."""
        entries = tuple(decode_entries(entry.payload))
        self.partition.apply_all(entries)
        self.applied_index = entry.index
        self._committed(entries)
        self._check_hot()

    def lead(self) -> None:
        """Decide from now on."""
        self._follows = None
        if self._failed is None:
            self.refusal = None
        self.is_held = self._held is not None
        self._tell_leads(self.partition)

    def follow(self, refusal: PenstockError) -> None:
        """Refuse changes: what is not submitted yet, and commands that wait."""
        if self.is_out_of_service:
            return
        self._follows = refusal
        self.is_held = True  # so that every command calls `_check_leads` first
        if self._failed is None:
            self.refusal = refusal
        if not self._flying:
            self._drop_pending(refusal)
            self._wake_idle()

    def _check_leads(self) -> None:
        """Raise if this node cannot decide for the partition."""
        self.check()
        if self._follows is not None:
            raise without_traceback(self._follows)

    def later(self, command: Callable[[], None], size_bytes: int = 0) -> None:
        """Run a command after the exclusive one, in order of arrival.

        Its bytes count as waiting until then. Raises if it will never run.
        """
        self._check_leads()
        assert self._held is not None, "only while it is held"
        self._held.append(command)
        self._held_bytes += size_bytes
        self._count(size_bytes)

    def is_synced(self, change: DecidedChange) -> bool:
        """Whether a change must be synced before it is answered."""
        topics = self.partition.topics
        for entry in change.to_log:
            if type(entry) is not Appended:
                return True
            topic = topics.get(entry.topic)
            if topic is None or topic.config.durability == "fsync":
                return True
            if entry.seqs > UNSYNCED_SEQS_MAX:
                return True
        return False

    def submit(self, change: DecidedChange, done: Done, *, sync: bool) -> None:
        """Stage a change and log it together with all others of this loop iteration."""
        if self.refusal is not None:
            done(without_traceback(self.refusal))
            return
        written = self._registry.written
        if written.version < COMPLETE:
            try:
                written.check(change.to_log)
            except UpgradePending as error:
                done(error)
                return
        self.partition.stage(change)
        if not change.to_log and self.is_idle and not self._committing:
            self._commit(change, done)
            return
        self._pending.append((change, done))
        self._entries.extend(change.to_log)
        self._stage_bytes(_size_of(change))
        if sync:
            self._sync = True
        self._wal.writes += 1
        if not self._scheduled:
            self._scheduled = True
            self._wal.join(self)

    def submit_append(self, topic: Topic, batch: Batch, now_ms: int, done: OnWritten) -> None:
        """Fast path of `submit` for one append that cannot be refused.

        In a profile of single writes `DecidedChange`, `stage` and `commit` were most of the engine.
        """
        if self.refusal is not None:
            done(without_traceback(self.refusal))
            return
        entry = topic.stage_append(batch, now_ms)
        self._pending.append((entry, done))
        self._entries.append(entry)
        self._stage_bytes(batch.size_bytes)
        if topic.config.durability == "fsync":
            self._sync = True
        self._wal.writes += 1
        if not self._scheduled:
            self._scheduled = True
            self._wal.join(self)

    def submit_commit(self, space: TopicSpace, entry: SpaceCommitted, done: OnCommitted) -> None:
        """Fast path of `submit` for one commit that was just decided, as `submit_append`."""
        if self.refusal is not None:
            done(without_traceback(self.refusal))
            return
        space.stage(entry)
        self._pending.append((entry, done))
        self._entries.append(entry)
        self._sync = True
        self._wal.writes += 1
        if not self._scheduled:
            self._scheduled = True
            self._wal.join(self)

    def after(self, done: Done) -> None:
        """Call back once everything staged now is committed or failed."""
        self.submit(_NOTHING, done, sync=False)

    async def commit(self, change: DecidedChange, *, sync: bool) -> list[Any]:
        """Submit a change and wait for its answers."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.submit(change, partial(resolve, future), sync=sync)
        return await future

    def check(self) -> None:
        """Raise why the partition's topics are not known: it failed, or takes in a snapshot."""
        if self.is_out_of_service:
            raise self.executor.failure()
        if self.executor.phase is Phase.RESTORING and not self.leads:
            raise RestoreInProgress(f"partition {self.number} takes in a snapshot: try again")

    @property
    def is_out_of_service(self) -> bool:
        """Whether only this partition has failed; its executor says why."""
        return self.executor.phase is Phase.FAILED

    async def run(self, kind: WorkKind, call: Callable[[], T]) -> T:
        """Run a call as one piece of the executor's work, and wait for it."""
        future: asyncio.Future[T] = self._loop.create_future()

        def turn() -> None:
            try:
                result = call()
            except Exception as error:
                resolve(future, error)
            else:
                resolve(future, result)

        self.executor.submit(kind, turn, partial(resolve, future))
        return await future

    async def settled(self) -> None:
        """Wait until everything staged now is committed or failed, and nothing is held."""
        self._check_leads()
        while self._held is not None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._held.append(partial(resolve, waiter, None))
            await waiter
        if not self.is_idle:
            if self._failed is not None:  # it would accept nothing to wait for
                await self.until_idle()
                return
            waiter = self._loop.create_future()
            self.after(lambda _outcome: resolve(waiter, None))
            await waiter

    def exclusive(self) -> Exclusive:
        """Run one command with nothing staged; other commands wait in `later`."""
        return Exclusive(self)

    async def hold(self) -> None:
        """Begin an exclusive command: hold back others, and wait until nothing is staged."""
        await self._exclusive.acquire()
        try:
            self._check_leads()
            self._held = deque()
            self.is_held = True
            await self.until_idle()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """End an exclusive command: waiting commands run now, in order of arrival."""
        self._exclusive.release()
        if self.executor.phase is Phase.FAILED:
            return
        held, self._held = self._held, None
        self._count(-self._held_bytes)  # they must not be refused for each other's bytes
        self._held_bytes = 0
        self.is_held = self._follows is not None
        for command in held or ():
            self._guarded(command)

    async def until_idle(self) -> None:
        """Wait until nothing is staged: a drain barrier in the executor's order."""
        while not self.is_idle:
            waiter: asyncio.Future[None] = self._loop.create_future()
            wait = partial(self._wake_when_idle, waiter)
            self.executor.submit(WorkKind.MAINTENANCE, wait, partial(resolve, waiter))
            await waiter

    def _wake_when_idle(self, waiter: asyncio.Future[None]) -> None:
        if self.is_idle:
            resolve(waiter, None)
        else:
            self._idle.append(waiter)

    def flush(self) -> None:
        """Submit what is staged to the group commit being formed, in the executor's turn."""
        try:
            self.executor.submit(WorkKind.CLIENT, self._flush)
        except PenstockError as error:
            self._scheduled = False
            self._fail_pending(error)

    def _flush(self) -> None:
        """Submit what is staged to the log."""
        self._scheduled = False
        waiting, entries, sync = self._pending, self._entries, self._sync
        if not waiting:
            return
        self._pending, self._entries, self._sync = [], [], False
        self._stage_bytes(-self._staged_bytes)
        if self._refused is not None:  # and these were decided on it
            self._flying[-1].extend(waiting)
            return
        if not entries:
            if self._flying:
                self._flying[-1].extend(waiting)
            else:
                self._commit_all(waiting)
                self._settle()
            return
        if sync or self._is_far(entries):
            # Later changes of this writer are answered after this sync, so counting restarts here.
            self._unsynced_seqs.clear()
            sync = True
        try:
            parts = _payloads(waiting, entries, self._registry.written.version)
        except Exception as error:
            self._flying.append(waiting)
            self._refuse(error, 0)
        else:
            self._log(parts, sync=sync)

    def _log(self, parts: Sequence[tuple[Waiting, bytes]], *, sync: bool) -> None:
        """Append entries to the log, until it refuses one: later ones were decided on that."""
        for place, (waiting, payload) in enumerate(parts):
            size_bytes = len(payload)
            self._flying.append(waiting)
            self._count(size_bytes)
            try:
                index = self._journal.append(
                    self.number, payload, partial(self._written, size_bytes), sync=sync
                )
            except Exception as error:
                for later, _ in parts[place + 1 :]:
                    waiting.extend(later)
                self._refuse(error, size_bytes)
                return
            self._flying_indexes.append(index)

    def _refuse(self, error: Exception, size_bytes: int) -> None:
        """The log refused what was to fly last."""
        refused = error if isinstance(error, _NOT_WRITTEN) else LogFailed(str(error))
        self._flying_indexes.append(0)
        self._refused = partial(self._written, size_bytes, refused)
        self._tell_refused()

    def _count(self, size_bytes: int) -> None:
        """Change the number of waiting bytes."""
        self.waiting_bytes += size_bytes
        self._backlog.waiting += size_bytes

    def _stage_bytes(self, size_bytes: int) -> None:
        """As `_count`, for changes not yet submitted."""
        self._staged_bytes += size_bytes
        self.waiting_bytes += size_bytes
        self._backlog.waiting += size_bytes

    def _tell_refused(self) -> None:
        """Fail what the log refused, once nothing accepted before it is in flight."""
        if self._refused is not None and len(self._flying) == 1:
            refused, self._refused = self._refused, None
            refused()

    def _is_far(self, entries: list[Entry]) -> bool:
        """Whether a topic would have too many assigned seqs that a power loss could take."""
        counts, far = self._unsynced_seqs, False
        if self._sync_round != self._journal.sync_round:
            self._sync_round = self._journal.sync_round
            counts.clear()
        for entry in entries:
            if type(entry) is Appended:
                seqs = entry.batch.count if entry.feed is None else entry.seqs
                counts[entry.topic] = count = counts.get(entry.topic, 0) + seqs
                far = far or count > UNSYNCED_SEQS_MAX // 2
        return far

    def _written(self, size_bytes: int, error: Exception | None) -> None:
        """Commit or fail the oldest entry in flight, in the executor's turn."""
        self._count(-size_bytes)
        if self.is_out_of_service:  # and everyone who waits was told
            return
        waiting, index = self._flying.popleft(), self._flying_indexes.popleft()
        if error is not None and self._failed is None:
            self._journal.failed(self.number, error)  # failures that follow from it are not counted
            self._failed = error
            kind = LogFull if isinstance(error, DiskFull) else LogFailed
            self.refusal = (
                error
                if isinstance(error, _DEFINITE)
                else kind(f"the log did not take a write: {error}")
            )
            self.partition.abandon(_topics_of((waiting, *self._flying, self._pending)))
        if self._failed is not None:
            self._fail(waiting, error)
        else:
            self.applied_index = index
            self._backlog.finished += size_bytes
            self._commit_all(waiting)
            self._check_hot()
        if self._flying:
            self._tell_refused()
        else:
            self._settle()

    def _check_hot(self) -> None:
        registry = self._registry
        if registry.totals.hot_bytes > registry.hot_bytes_max:
            registry.on_hot()

    def _fail(self, waiting: Waiting, error: Exception | None) -> None:
        """Fail one entry in flight: later ones were decided on the one that failed first.

        `error` is the log's about this entry. Unless it says that the entry was not written, the
        entry may be there after a restart; what was not submitted yet surely is not.
        """
        assert self.refusal is not None
        answer: PenstockError = without_traceback(self.refusal)
        if not isinstance(error, _NOT_WRITTEN):
            answer = LogUncertain(f"this may or may not have been written: {error or self._failed}")
        for _, done in waiting:
            self._guarded(partial(done, answer))
        if not self._flying:
            self._fail_pending(self.refusal)

    def _drop_pending(self, error: Exception) -> None:
        """Fail what is staged and not yet submitted, and let later decisions not count on it.

        This node may lead again: a seq that was left counted would then be missing on all nodes.
        Nothing is in flight.
        """
        self.partition.abandon(_topics_of((self._pending,)))
        self._fail_pending(error)

    def _fail_pending(self, error: Exception) -> None:
        """Fail what is staged and not yet submitted."""
        waiting, self._pending, self._entries, self._sync = self._pending, [], [], False
        self._stage_bytes(-self._staged_bytes)
        for _, done in waiting:
            self._guarded(partial(done, error))

    def _on_partition_failed(self, error: Exception) -> None:
        """Answer every waiter: the executor took the partition out of service."""
        unexpected = None if isinstance(error, PenstockError) else error
        text = "partition %d is out of service: %s"
        _LOGGER.error(text, self.number, error, exc_info=unexpected)
        self.refusal = self.executor.failure()
        self.is_held = True  # so that every command calls `check` first
        flying, self._flying = self._flying, deque()
        self._flying_indexes.clear()
        unknown = LogUncertain(f"this may or may not have been written: {self.refusal}")
        for waiting in flying:
            for _, done in waiting:
                self._guarded(partial(done, unknown))
        self._fail_pending(self.refusal)
        held, self._held = self._held, None
        self._count(-self._held_bytes)
        self._held_bytes = 0
        for command in held or ():
            self._guarded(command)  # each finds the partition out of service
        idle, self._idle = self._idle, []
        for waiter in idle:
            resolve(waiter, self.refusal)
        self._partition_failed(self.partition)

    def _settle(self) -> None:
        """Reset after a failure and wake waiters: nothing is in flight."""
        if self._failed is not None:
            self._failed, self.refusal = None, self._follows
        if self._follows is not None:
            self._drop_pending(self._follows)
        if not self._pending:
            self._wake_idle()

    def _wake_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            resolve(waiter, None)

    def _commit_all(self, waiting: Waiting) -> None:
        apply, listened, routed = self.partition.apply, self._listened, self._routed
        self._committing = True
        for change, done in waiting:
            if type(change) is not Appended and type(change) is not SpaceCommitted:
                self._commit(change, done)  # type: ignore[arg-type]
                continue
            written = apply(change)
            topic = change.topic
            if topic in listened or topic in routed:
                self._appended(topic)  # else its turn would have no effect
            try:
                done(written)
            except Exception:
                _LOGGER.exception("the callback of a command raised")
        self._committing = False

    def _commit(self, change: DecidedChange, done: Done) -> None:
        answers = self.partition.apply_all(change.entries)
        self._committed(change.entries)
        try:
            done(answers)
        except Exception:
            _LOGGER.exception("the callback of a command raised")

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            _LOGGER.exception("the callback of a command raised")


def _size_of(change: DecidedChange) -> int:
    """The bytes of records in a change."""
    return sum(
        entry.batch.size_bytes
        for entry in change.to_log
        if type(entry) is Appended and entry.feed is None
    )


def _payloads(
    waiting: Waiting, entries: Sequence[Entry], version: int
) -> list[tuple[Waiting, bytes]]:
    """What is staged as payloads of the log, each with its changes: one, unless it is too large."""
    payload = encode_entries(entries, version)
    if len(payload) <= ENTRY_BYTES or len(waiting) == 1:
        return [(waiting, payload)]
    parts: list[tuple[Waiting, list[Entry]]] = [([], [])]
    taken_bytes = 0
    for each in waiting:
        logged = each[0].to_log if isinstance(each[0], DecidedChange) else (each[0],)
        size_bytes = len(encode_entries(logged, version)) if logged else 0
        if taken_bytes and taken_bytes + size_bytes > ENTRY_BYTES:
            parts.append(([], []))
            taken_bytes = 0
        parts[-1][0].append(each)
        parts[-1][1].extend(logged)
        taken_bytes += size_bytes
    return [(part, encode_entries(logged, version)) for part, logged in parts]


def _topics_of(staged: Iterable[Waiting]) -> set[str]:
    """The topics of changes in flight."""
    entries = (
        entry
        for waiting in staged
        for change, _ in waiting
        for entry in (change.entries if isinstance(change, DecidedChange) else (change,))
    )
    return {
        entry.topic
        for entry in entries
        if not isinstance(entry, RouterEntry | Passed | Began | MembersChanged)
    }


class Writers:
    """The writers of a node's partitions, by number and by topic."""

    def __init__(self, writers: Sequence[PartitionWriter]) -> None:
        self._writers = tuple(writers)
        self.by_topic: dict[
            str, PartitionWriter
        ] = {}  # of existing topics: saves hashing their names

    def __iter__(self) -> Iterator[PartitionWriter]:
        return iter(self._writers)

    def of(self, topic: str) -> PartitionWriter:
        """The writer of a topic, whether the topic exists or not.

        Raises `PartitionFailed` if its partition is out of service: then its topics are not known.
        """
        writer = self.by_topic.get(topic)
        if writer is None:
            writer = self._writers[partition_of(topic, len(self._writers))]
            writer.check()
        return writer

    def created(self, topic: str) -> None:
        """Remember a new topic."""
        self.by_topic[topic] = self.of(topic)

    def dropped(self, topic: str) -> None:
        """Forget a topic."""
        self.by_topic.pop(topic, None)
