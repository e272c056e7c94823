"""The topics of one node: commands in, answers out, everything durable in between.

Runs on one event loop. A command is decided against the partition's state, staged, logged together
with others of the same moment, committed and answered. Then its topic gets a turn, in which
watchers are pushed to and routers run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.flow.governor import Rung
from penstock.kernel.clock import Clock, SteadyClock
from penstock.kernel.errors import PenstockError, Rejected
from penstock.kernel.system import RunQueue, SystemClock
from penstock.log.executor import ExecutorStatus
from penstock.log.reads import resolve
from penstock.log.store import LogStore
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import (
    InvalidRequest,
    NotReady,
    TopicNotFound,
    TopicsApart,
)
from penstock.raft.journal import GroupOptions, ReplicatedJournal
from penstock.raft.messages import InstallSnapshot
from penstock.topics.core.batch import WriteRequest
from penstock.topics.core.codec import encode_entries
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.entries import (
    Appended,
    Began,
    Configured,
    Created,
    Deleted,
    Dropped,
    JobsAcked,
    JobsClaimed,
    Removed,
    SpaceCommitted,
)
from penstock.topics.core.partition import DecidedChange, Entry, Partition
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import DiffPage, ReadRequest, read
from penstock.topics.core.registry import Registry, partition_of
from penstock.topics.core.topic import AppendResult, Topic, check_selector
from penstock.topics.engine.admission import Admission
from penstock.topics.engine.digests import Digests
from penstock.topics.engine.forwarder import Forwarder, RouterCommands
from penstock.topics.engine.letters import LetterCommands
from penstock.topics.engine.options import EngineOptions
from penstock.topics.engine.passing import Passing
from penstock.topics.engine.queues import QueueCommands
from penstock.topics.engine.spaces import SpaceCommands
from penstock.topics.engine.turns import Recency, Turns
from penstock.topics.engine.views import Deletion
from penstock.topics.engine.watch import Watchers
from penstock.topics.engine.writers import (
    UNSYNCED_SEQS_MAX,
    Audience,
    OnWritten,
    PartitionWriter,
    Writers,
)
from penstock.topics.persist.backup import BackupList, OnProgress, silent
from penstock.topics.persist.cold import ColdCache
from penstock.topics.persist.data_dir import COLD_DIR, SNAPSHOT_DIR, ColdFiles, SnapshotFiles
from penstock.topics.persist.recovery import Recovery, close_clean
from penstock.topics.persist.snapshotter import Snapshotter
from penstock.topics.persist.spill import HotLimit

NOTICE_MS: Final = 10_000
"""A topic that was read or claimed from this recently has readers."""
_LOGGER: Final = logging.getLogger("penstock.topics")


class Engine:
    """Every topic of a node. Each method is called on the loop's thread."""

    def __init__(
        self,
        store: LogStore,
        options: EngineOptions | None = None,
        *,
        clock: Clock | None = None,
        boot_id: str | None = None,
    ) -> None:
        self.options = options or EngineOptions()
        self.limits = self.options.limits
        self.clock = SteadyClock(clock or SystemClock())
        self.registry = Registry(self.limits)
        self.registry.identity = self.options.identity
        self.registry.is_replicated = self.options.group is not None
        self._topics = self.registry.topics
        self._arriving: set[int] = set()  # partitions that are being read in from a snapshot
        self.watchers = Watchers(self.limits)
        self.ready = False
        self.closing = False
        self._run_queue = RunQueue()
        self._has_no_quota = not self.limits.total_bytes_max
        self._boot_id = boot_id
        self._loop = asyncio.get_running_loop()
        self._set_up_log(store)
        self._set_up_turns()
        self._set_up_files()
        self._set_up_commands()

    def _set_up_log(self, store: LogStore) -> None:
        """The journal, and a writer for each partition."""
        loop, count = self._loop, self.options.partitions
        group = self.options.group or GroupOptions()
        self._member = group.member if self.options.group else self.options.member
        self.journal = ReplicatedJournal(
            store,
            partitions=count,
            loop=loop,
            clock=self.clock,
            options=group,
            began=self._began,
            disk_sync_ms=self.options.disk_sync_ms,
        )
        self._backlog = self.journal.backlog
        audience = Audience(
            self._committed,
            self._mark,
            self.watchers.by_topic,
            self.registry.routers.by_source,
            self._partition_failed,
            self._leads,
        )
        self.writers = Writers(
            [
                PartitionWriter(
                    number,
                    Partition(self.registry, number=number, partitions=count),
                    self.journal,
                    loop=loop,
                    audience=audience,
                )
                for number in range(count)
            ]
        )
        self._writer_of = self.writers.by_topic

    def _set_up_turns(self) -> None:
        """What decides whether a write is taken now, and whose turn it is."""
        loop = self._loop
        self.admission = Admission(
            self.registry,
            self.journal,
            hot_bytes_max=self.options.hot_bytes_max,
            waiting_bytes_max=self.options.waiting_bytes_max,
            log_wait_ms_max=self.options.log_wait_ms_max,
        )
        self.recency = Recency(self.registry, self.clock, self._is_deferring)
        self.turns = Turns(
            self._serve,
            self.recency.urgency,
            loop=loop,
            clock=self.clock,
            on_rung=self._on_rung,
            on_busy=self._on_busy,
            drain=self.admission.sample,
            waited_ns=self._run_queue.waited_ns,
        )
        self.forwarder = Forwarder(self.registry, self.writers, self.turns.mark, self.clock)
        self.passing = Passing(
            self.writers, self.registry, self._is_noticed, clock=self.clock, loop=loop
        )

    def _set_up_files(self) -> None:
        options, directory = self.options, self.options.data_dir
        self.snapshots = self.cold_files = self.snapshotter = None
        count = options.partitions
        if directory is not None:
            self.snapshots = SnapshotFiles(directory / SNAPSHOT_DIR)
            self.cold_files = ColdFiles(options.cold_dir or directory / COLD_DIR)
            self.snapshotter = Snapshotter(
                self.journal,
                list(self.writers),
                self.registry,
                self.snapshots,
                self.cold_files,
                seal=replace(options.seal, node_bytes_max=options.hot_bytes_max // (2 * count)),
                log_bytes_min=options.compact_bytes_min,
                clock=self.clock,
                member=self._member,
            )
        cache_bytes = options.cold_cache_bytes
        self.cold = ColdCache(
            self.cold_files, self.journal.reads, bytes_max=cache_bytes, loop=self._loop
        )
        self.forwarder.cold = self.watchers.cold = self.cold
        self.hot = HotLimit(self.registry, directory, options.hot_bytes_max, loop=self._loop)
        self.watchers.mark = self.turns.mark
        self.recovery = Recovery(
            self.journal,
            list(self.writers),
            self.registry,
            directory=directory,
            snapshots=self.snapshots,
            cold=self.cold_files,
            hot=self.hot,
            clock=self.clock,
        )

    def _set_up_commands(self) -> None:
        """What takes the commands of queues, dead letters, spaces and routers."""
        self.digests = Digests(self.writers, self.cold)
        self.queues = QueueCommands(
            self.writers,
            self.forwarder,
            self.cold,
            clock=self.clock,
            touch=self.recency.touch,
            mark=self.turns.mark,
        )
        self.letters = LetterCommands(
            self.registry, self.writers, self.forwarder, self.cold, self.clock
        )
        self.spaces = SpaceCommands(
            self.registry,
            self.writers,
            self.admission,
            self.cold,
            clock=self.clock,
            touch=self.recency.touch,
        )
        self.routers = RouterCommands(
            self.registry, self.writers, self.forwarder, self.clock, self.put_topic
        )

    def _on_busy(self, share: float) -> None:
        self.journal.wal.window.set_busy(share)
        if self.snapshotter is not None:
            self.snapshotter.set_busy(share)

    def serving(self, watchers: int) -> None:
        """Set how many watchers are being written to, one batch after another; 0 at the end."""
        self.journal.wal.window.set_round(watchers)

    def _began(self, _partition: int, term: int) -> bytes:
        """The first entry of a term that this node leads."""
        now_ms, skipped_seqs = self.clock.now_ms(), self.recovery.skipped_seqs
        began = Began(term, self._member, now_ms, skipped_seqs)
        return encode_entries([began], self.registry.written.version)

    def _leads(self, partition: Partition) -> None:
        """Time does not go back where another member led before."""
        self.clock.go_on_from(partition.now_ms)
        for name in partition.topics:
            self.turns.mark(name)

    # Start and stop

    @property
    def replay_progress(self) -> float:
        """The share of the log that was replayed, 0 to 1."""
        return self.recovery.progress

    async def open(self) -> None:
        """Replay the log in slices, so that the loop can answer meanwhile; then serve."""
        self.journal.reads.start()
        await self.recovery.run()
        self.clock.go_on_from(max(writer.partition.now_ms for writer in self.writers))
        self.journal.start()
        for name in self._topics:
            self.writers.created(name)
        recovery = self.recovery
        await recovery.begin(self._boot_id)
        if self.snapshotter is not None:
            self.snapshotter.start(recovery.indexes, recovery.sizes, recovery.log_bytes)
            if recovery.damaged_snapshots:
                self.snapshotter.start_again()
        self.ready = True
        self.passing.start()
        self.turns.start()
        for name in self.registry.topics:
            if self.registry.routers.fed_by(name):
                self.turns.mark(name)

    async def close(self) -> None:
        """Run routers to the end, write what is only in memory, close the log."""
        self.closing = True
        self.passing.stop()
        self.digests.stop()
        self.turns.stop()
        if self.ready:
            try:
                for router in list(self.registry.routers):
                    await self.forwarder.drain(router.config.dest, strict=True)
            except PenstockError as error:
                _LOGGER.error("routers are behind and go on at the next start: %s", error)
            try:
                await close_clean(
                    list(self.writers), self.journal, self._boot_id, self.options.data_dir
                )
                if self.snapshotter is not None:
                    await self.snapshotter.finish()
            except PenstockError as error:
                _LOGGER.error("not a clean shutdown, the next start replays the log: %s", error)
        self.hot.close()
        self.journal.stop_timed_syncs()
        for writer in self.writers:
            writer.executor.stop()
        await self.journal.stop()
        for writer in self.writers:
            writer.executor.stopped()
        self._run_queue.close()

    async def install_snapshot(self, partition: int, message: InstallSnapshot) -> None:
        """Take in a snapshot of another member, at `snapshots.incoming` with its segments in place.

        Who brings the files holds `snapshotter.lock` meanwhile.
        """
        assert self.snapshotter is not None, "a node of a cluster has a data directory"
        writer = list(self.writers)[partition]
        before = set(writer.partition.topics)
        self._arriving.add(partition)
        try:
            path = await self.recovery.install(writer, message)
        finally:
            self._arriving.discard(partition)
        if path is None:
            return
        self.snapshotter.adopted(partition, message.mark.index, path.stat().st_size)
        for name in before:
            self.queues.forget(name)
        for name in before - writer.partition.topics.keys():
            self._forget(name)
        for name in writer.partition.topics:
            self.writers.created(name)
            self.watchers.created(name)  # also if it was there: who came meanwhile did not see it
            self.turns.mark(name)

    def partitions(self) -> list[ExecutorStatus]:
        """The published state of each partition's executor."""
        return [writer.executor.status for writer in self.writers]

    def _partition_failed(self, partition: Partition) -> None:
        """Stop showing a partition that is out of service: its content cannot be trusted."""
        names = list(partition.topics)
        partition.forget()
        for name in names:
            self._forget(name)

    def _forget(self, name: str) -> None:
        """A topic is gone."""
        self.writers.dropped(name)
        self.recency.forget(name)
        self.queues.forget(name)
        self.turns.mark(name)

    # Topics

    def writer(self, name: str) -> PartitionWriter:
        """The writer of a topic, whether the topic exists or not."""
        return self.writers.of(name)

    def topic(self, name: str) -> Topic:
        """A topic, or `TopicNotFound`."""
        topic = self.registry.topics.get(name)
        if topic is None:
            self.writers.of(name)  # raises if its partition is out of service
            self.check_not_arriving(name)
            raise TopicNotFound(name)
        return topic

    def check_not_arriving(self, name: str) -> None:
        """Raise `NotReady` while a topic is absent only because its partition is read in again."""
        if self.is_arriving(name):
            raise NotReady("the topic's partition takes in a snapshot: try again, or another node")

    def is_arriving(self, name: str) -> bool:
        """Whether a snapshot of a topic's partition is being read in: not all of it is there."""
        if not self._arriving:
            return False
        return partition_of(name, self.options.partitions) in self._arriving

    def write(self, name: str, write: WriteRequest, done: OnWritten) -> None:
        """Append a batch. `done` is called exactly once, possibly before this returns."""
        topic = self._topics.get(name)
        try:
            writer = self._writer_of.get(name) or self.writers.of(name)
            if writer.is_held:
                self.admission.check(writer, disable=write.disable_backpressure)
                writer.later(partial(self.write, name, write, done), write.batch.size_bytes)
                return
        except PenstockError as error:
            self.admission.count(error)
            done(error)
            return
        if (
            topic is not None
            and topic.is_simple
            and self._has_no_quota
            and write.key is None
            and write.batch.count <= UNSYNCED_SEQS_MAX
            and self._backlog.waiting <= self.admission.room_bytes
            and self.registry.totals.hot_bytes <= self.registry.refuse_bytes
        ):
            writer.submit_append(topic, write.batch, self.clock.now_ms(), done)
            return
        try:
            self.admission.check(writer, disable=write.disable_backpressure)
            decided = writer.partition.decide_write(name, write, self.clock.now_ms())
        except PenstockError as error:
            self.admission.count(error)
            done(error)
            return
        if isinstance(decided, AppendResult):
            self._answer_again(writer, name, decided, done)
            return
        finish = partial(_finish_write, done, decided)
        writer.submit(decided, finish, sync=writer.is_synced(decided))

    async def append(self, name: str, write: WriteRequest) -> AppendResult:
        """As `write`, awaitable."""
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        self.write(name, write, partial(resolve, future))
        return await future

    async def write_many(self, writes: Sequence[tuple[str, WriteRequest]]) -> list[AppendResult]:
        """Append to several topics of one partition, all or nothing."""
        try:
            return await self._write_many(writes)
        except PenstockError as error:
            self.admission.count(error)
            raise

    async def _write_many(self, writes: Sequence[tuple[str, WriteRequest]]) -> list[AppendResult]:
        writer = self.writer(writes[0][0])
        names = [name for name, _ in writes]
        if len(set(names)) < len(names):
            raise InvalidRequest("a topic is named twice: put its records into one write")
        for name in names:
            if self.writer(name) is not writer:
                raise TopicsApart(names[0], name)
        while writer.is_held:
            await writer.settled()
        self.registry.check_topics(len(set(names) - self._topics.keys()))
        now_ms = self.clock.now_ms()
        decided: list[DecidedChange | AppendResult] = []
        new_bytes = 0  # retries are answered again even without room
        for name, write in writes:
            self.admission.check(writer, disable=write.disable_backpressure)
            decided.append(writer.partition.decide_write(name, write, now_ms))
            new_bytes += write.batch.size_bytes if isinstance(decided[-1], DecidedChange) else 0
        self.registry.check_total(new_bytes)
        changes = [each for each in decided if isinstance(each, DecidedChange)]
        change = DecidedChange(
            tuple(entry for each in changes for entry in each.entries),
            tuple(entry for each in changes for entry in each.to_log),
        )
        answers = iter(await writer.commit(change, sync=writer.is_synced(change)))
        return [
            each
            if isinstance(each, AppendResult)
            else _written(each, [next(answers) for _ in each.entries])
            for each in decided
        ]

    def fsync_ms(self, name: str) -> float:
        """How long the last sync took, for a topic that waits for syncs; 0 for any other."""
        topic = self._topics.get(name)
        if topic is None or topic.config.durability != "fsync":
            return 0.0
        return self.journal.counters.last_fsync_us / 1e3

    async def put_topic(self, name: str, body: dict[str, Any]) -> tuple[bool, TopicConfig]:
        """Create a topic or change the named keys of one; return whether it is new, and a view."""
        writer = self.writer(name)
        async with writer.exclusive() as partition:
            change = partition.decide_config(name, body, self.clock.now_ms())
            if change.entries:
                await writer.commit(change, sync=True)
            created = bool(change.entries) and isinstance(change.entries[0], Created)
            self.turns.reconsider(name)
            return created, self.topic(name).config

    async def delete(
        self, name: str, *, before_seq: int | None = None, match: Predicate | None = None
    ) -> Deletion:
        """Delete records permanently, by prefix, by tag, or by both at once."""
        check_selector(before_seq, match)
        writer = self.writer(name)
        await self.forwarder.settled(name)
        topic = self.topic(name)
        change = writer.partition.decide_delete(
            name, self.clock.now_ms(), before_seq=before_seq, match=match
        )
        answers = await writer.commit(change, sync=topic.config.durability == "fsync")
        live = topic.at(self.clock.now_ms())
        return Deletion(answers[0], live.earliest_seq, topic.head_seq, live.count, live.size_bytes)

    async def diff(self, name: str, request: ReadRequest) -> DiffPage:
        """One page after a cursor; waits on request while there is nothing to report."""
        if self.forwarder.owes(name):
            await self.forwarder.drain(name)
        first = await self._read(name, request)
        if not request.wait_ms or not first.parks or self.closing:
            return first
        until_s = self._loop.time() + request.wait_ms / 1e3
        while await self.watchers.wait(name, until_s - self._loop.time()):
            if self.forwarder.owes(name):
                await self.forwarder.drain(name)
            again = await self._read(name, request)
            if not again.parks or again.next_from_seq != first.next_from_seq:
                return again  # else it was woken for a record of its first read
        return first

    async def _read(self, name: str, request: ReadRequest) -> DiffPage:
        """One page; cold records are loaded first."""
        try:
            return self.read(name, request)
        except NotLoaded as missing:
            with self.cold.hold() as hold:
                await hold.load(missing.block)
                diff = await hold.answer(lambda upto_seq: self.read(name, request, upto_seq))
                return diff._replace(cold_segments_read=len(hold.files))

    def read(self, name: str, request: ReadRequest, upto_seq: int | None = None) -> DiffPage:
        """One page of what is committed now, without what routers have not delivered yet.

        Raises `NotLoaded` for cold records that are not in memory; `diff` handles that.
        """
        topic = self.topic(name)
        now_ms = self.clock.now_ms()
        diff = read(topic, request, now_ms, self.limits, upto_seq)
        self.recency.touch(name)
        if diff.found.records:
            topic.out_records += len(diff.found.records)
            topic.last_out_ms = now_ms
        return diff

    # Snapshots

    async def compact(self) -> int:
        """Snapshot everything logged since the last snapshots; return how many partitions."""
        if self.snapshotter is None:
            raise Rejected("this node has no data directory, so there are no snapshots")
        return await self.snapshotter.compact()

    async def backup(self, dest: Path, on_progress: OnProgress = silent) -> BackupList:
        """Copy everything committed now to a directory, without interrupting service.

        No snapshot is made meanwhile, and nothing that the copy needs is removed. `on_progress` is
        called in another thread.
        """
        if self.snapshotter is None:
            raise Rejected("this node has no data directory, so there is nothing to back up")
        return await self.snapshotter.backup(dest, on_progress)

    # The scheduler

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait for the log."""
        return self._backlog.waiting

    def _serve(self, name: str) -> None:
        """Run the turn of a topic."""
        if self.watchers.has(name):
            self.watchers.wake(name)
            if name in self.registry.topics:
                self.recency.touch(name)
        self.forwarder.turn(name)

    def _mark(self, name: str) -> None:
        self.turns.mark(name)

    def _is_noticed(self, name: str) -> bool:
        """Whether a topic has readers, workers or routers, now or a short while ago."""
        read_ms = self.recency.last_ms(name)
        if read_ms is not None and self.clock.now_ms() - read_ms < NOTICE_MS:
            return True
        routers = self.registry.routers
        return self.watchers.has(name) or bool(routers.fed_by(name) or routers.feeders_of(name))

    def _is_deferring(self) -> bool:
        return self.turns.rung.deferring

    def _on_rung(self, rung: Rung) -> None:
        self.journal.wal.window.commit_ms = rung.commit_window_ms

    # Helpers

    def _answer_again(
        self,
        writer: PartitionWriter,
        name: str,
        written: AppendResult,
        done: OnWritten,
    ) -> None:
        """Repeat the answer of an earlier write once that write is committed."""
        topic = self._topics.get(name)
        if topic is not None and topic.head_seq >= written.last_seq:
            done(written)
        else:
            writer.after(
                lambda outcome: done(outcome if isinstance(outcome, Exception) else written)
            )

    def _committed(self, entries: tuple[Entry, ...]) -> None:
        """Mark the topics of committed entries as dirty."""
        for entry in entries:
            kind = type(entry)
            if kind is Appended or kind is SpaceCommitted:
                self.turns.mark(entry.topic)  # type: ignore[union-attr]
            elif kind is Created:
                name = entry.topic  # type: ignore[union-attr]
                self.writers.created(name)
                self.watchers.created(name)
            elif kind is Dropped:
                self._forget(entry.topic)  # type: ignore[union-attr]
            elif kind in _MAKE_ROOM:
                self.forwarder.made_room(entry.topic)  # type: ignore[union-attr]


_MAKE_ROOM: Final = frozenset({Deleted, Removed, JobsAcked, Configured, JobsClaimed})
"""Entries after which a router may deliver what its destination had no room for."""


def _finish_write(done: OnWritten, change: DecidedChange, outcome: list[Any] | Exception) -> None:
    done(outcome if isinstance(outcome, Exception) else _written(change, outcome))


def _written(change: DecidedChange, answers: list[Any]) -> AppendResult:
    """The answer to a write, including whether it created its topic."""
    written: AppendResult = answers[-1]
    return written._replace(created=type(change.entries[0]) is Created)
