"""Every topic, queue and space of one partition, and the commands that span several of them.

`decide_*` turns a command into a `DecidedChange`: entries that are logged together or not at all.
Or it refuses the command and changes nothing. The writer `stage`s a change when it submits it to
the log, and `apply`s its entries in the same order once they are durable; readers see only what is
applied. After a restart the logged entries are applied again. `_BY_KIND` maps each kind of entry to
its handlers. The state is a function of the applied entries: reads and decisions change nothing,
and time passes by the times in entries.

Commands that create, change or remove topics and routers are decided while nothing is staged; this
does not apply to writes that create their topic. A router is in its destination's partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.commits.sessions import CommitAnswer
from penstock.protocol.commits import Commit
from penstock.protocol.config import TopicConfig, check_change, parse_config
from penstock.protocol.errors import IsASpace, NotAQueue, NotASpace, TopicNotEmpty, TopicNotFound
from penstock.protocol.limits import TopicLimits
from penstock.protocol.own_topics import check_not_own, check_own, own_config
from penstock.protocol.values import check_topic_name
from penstock.raft.members import Members
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.dues import Dues
from penstock.topics.core.entries import (
    Advanced,
    Appended,
    Began,
    Configured,
    Created,
    Deleted,
    Dropped,
    JobsAcked,
    JobsClaimed,
    JobsExtended,
    JobsNacked,
    MembersChanged,
    Passed,
    QueueEntry,
    Removed,
    Skipped,
    SpaceCommitted,
    TopicEntry,
)
from penstock.topics.core.leases import ClaimRequest
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.queue import Queue, QueueState, jobs_of
from penstock.topics.core.read import DiffPage, ReadRequest, read
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import (
    Router,
    RouterConfig,
    RouterEntry,
    RouterRemoved,
    RouterStep,
    RouterStored,
    decide_step,
)
from penstock.topics.core.space import CONFIG, Rule, SpaceState, TopicSpace, restored, state_of
from penstock.topics.core.topic import AppendResult, Topic, check_selector
from penstock.topics.core.topic_state import TopicSnapshot

Entry = (
    Created
    | Dropped
    | TopicEntry
    | QueueEntry
    | RouterEntry
    | SpaceCommitted
    | Passed
    | Began
    | MembersChanged
)

RESERVE_SEQS: Final = 1_024
"""How many seqs one entry reserves for records kept only in memory."""


class DecidedChange(NamedTuple):
    """A decided command: all of `entries` take effect, once `to_log` is in the log."""

    entries: tuple[Entry, ...]
    to_log: tuple[Entry, ...]


class PartitionState(NamedTuple):
    """A partition as plain values: equal states behave identically."""

    epoch: int
    now_ms: int
    term: int
    topics: tuple[TopicSnapshot, ...]
    queues: tuple[tuple[str, QueueState], ...]
    routers: tuple[Router, ...]
    spaces: tuple[tuple[str, SpaceState], ...] = ()
    members: Members = Members(())


class Partition:
    """The state of one partition. Not thread-safe: its owner runs one command at a time."""

    def __init__(
        self, registry: Registry | None = None, *, number: int = 0, partitions: int = 1
    ) -> None:
        """`number` of `partitions`: epochs of different partitions differ."""
        self.registry = registry or Registry()
        self._number = number
        self._partitions = partitions
        self.limits: TopicLimits = self.registry.limits
        self.routers = self.registry.routers
        self.topics: dict[str, Topic] = {}
        self.queues: dict[str, Queue] = {}
        self.spaces: dict[str, TopicSpace] = {}
        self._creating: dict[str, Topic] = {}  # staged, not applied
        self._creating_spaces: dict[str, TopicSpace] = {}
        self.now_ms = 0  # the latest time of an applied entry
        self.term = 0  # of the last `Began`
        self.members = Members(())  # of the group, once they have changed
        self._dues = Dues()  # of topics with a ttl, and of queues
        self._epoch = 0  # the last one assigned to a topic
        self._has_quota = self.limits.total_bytes_max > 0
        self._staged_bytes = 0  # maintained only where bytes are limited

    def topic(self, name: str) -> Topic:
        """A topic, or `TopicNotFound`."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def queue(self, name: str) -> Queue:
        """A queue, or `TopicNotFound`, or `NotAQueue`."""
        self.topic(name)
        if name not in self.queues:
            raise NotAQueue(name)
        return self.queues[name]

    def space(self, name: str) -> TopicSpace:
        """A space, or `TopicNotFound`, or `NotASpace`."""
        topic = self.topic(name)
        if name not in self.spaces:
            raise NotASpace(name, topic.config.type)
        return self.spaces[name]

    def read(self, name: str, request: ReadRequest, now_ms: int) -> DiffPage:
        """One page of committed records."""
        return read(self.topic(name), request, now_ms, self.limits)

    def overdue(self, now_ms: int) -> Iterator[Topic]:
        """The topics that `Passed` would change at a time. Changes nothing."""
        for name in self._dues.upto(now_ms):
            topic = self.topics.get(name)
            if topic is not None and self._is_due(topic, now_ms):
                yield topic

    # Decisions

    def decide_config(self, name: str, body: dict[str, Any], now_ms: int) -> DecidedChange:
        """Create a topic, or change the named keys of one; no entries if nothing changes."""
        changes = parse_config(body)
        topic = self.topics.get(name)
        if topic is None:
            return _change(self._create(name, TopicConfig().merged(changes), now_ms))
        configured = topic.decide_configure(changes, now_ms)
        if topic.config.merged(changes) == topic.config:
            return _change()
        if topic.config.durability == "ephemeral" or topic.has_unlogged:
            # Records that were never logged have used seqs: continue after them.
            evicted_seq = topic.shed_seq(topic.config.merged(changes))
            return _change(Advanced(name, topic.head_seq, evicted_seq), configured)
        return _change(configured)

    def decide_drop(self, name: str, now_ms: int, *, if_empty: bool = False) -> DecidedChange:
        """Remove a topic and the routers into it; no entries if the topic does not exist.

        Routers out of it are in their destinations' partitions and must be removed first.
        """
        topic = self.topics.get(name)
        if topic is None:
            return _change()
        self.check_drop(name, now_ms, if_empty=if_empty)
        feeders = self.routers.feeders_of(name)
        return _change(*[RouterRemoved(each.config.name, name) for each in feeders], Dropped(name))

    def check_drop(self, name: str, now_ms: int, *, if_empty: bool) -> None:
        """With `if_empty`, refuse to remove a topic that has records."""
        topic = self.topics.get(name)
        if topic is not None:
            count = topic.at(now_ms).count
            if if_empty and count:
                raise TopicNotEmpty(name, count)

    def decide_write(
        self, name: str, write: WriteRequest, now_ms: int
    ) -> DecidedChange | AppendResult:
        """Append a batch, creating its topic if needed; or the answer of the write it repeats."""
        topic = self.topics.get(name) or self._creating.get(name)
        if topic is None:
            created = self._create_for(name, write, now_ms)
            return self._decide_append(_new_topic(created), write, now_ms, created)
        return self._decide_append(topic, write, now_ms)

    def decide_commit(
        self, name: str, commit: Commit, now_ms: int, rule: Rule | None = None
    ) -> DecidedChange | CommitAnswer:
        """Decide a commit, creating its space if needed; or the answer of the one it repeats."""
        space = self.spaces.get(name) or self._creating_spaces.get(name)
        before: tuple[Created, ...] = ()
        if space is None:
            topic = self.topics.get(name) or self._creating.get(name)
            if topic is None:
                check_not_own(name)
                before = (self._create(name, CONFIG, now_ms),)
                topic = _new_topic(before[0])
            space = TopicSpace(topic, self.limits)
        decided = space.decide(commit, now_ms, rule)
        if isinstance(decided, CommitAnswer):
            return decided
        if self._has_quota:
            self.registry.check_total(decided.batch.size_bytes)
        return _change(*before, decided)

    def decide_delete(
        self,
        name: str,
        now_ms: int,
        *,
        before_seq: int | None = None,
        match: Predicate | None = None,
    ) -> DecidedChange:
        """Delete records by prefix, by tag, or by both at once."""
        check_selector(before_seq, match)
        return _change(self.topic(name).decide_delete(now_ms, before_seq=before_seq, match=match))

    def decide_router(
        self, config: RouterConfig, now_ms: int, *, create_dest: bool = True
    ) -> DecidedChange:
        """Create a router into a topic of this partition, or change an existing one.

        Its source must exist; its destination is created if needed.
        """
        self.check_router(config, create_dest=create_dest)
        created: tuple[Created, ...] = ()
        if config.dest not in self.topics:
            check_not_own(config.dest)
            created = (self._create(config.dest, TopicConfig(), now_ms),)
        source = self.registry.topics.get(config.source)
        if source is None:
            raise TopicNotFound(config.source)
        return _change(*created, self.routers.decide_put(config, source.epoch, source.head_seq))

    def check_router(self, config: RouterConfig, *, create_dest: bool = True) -> None:
        """Refuse an invalid router, whether its source exists or is yet to be created."""
        self.routers.check(config)
        if config.dest in self.spaces:
            raise IsASpace(config.dest)
        if config.dest not in self.topics and not create_dest:
            raise TopicNotFound(config.dest)

    def decide_router_removal(self, name: str) -> DecidedChange:
        """Remove a router; no entries if it does not exist."""
        removed = self.routers.decide_removal(name)
        return _change() if removed is None else _change(removed)

    def decide_step(self, router: str, now_ms: int) -> RouterStep:
        """Decide the next step of a router; submit `change_of` its entry."""
        found = self.routers.get(router)
        source = self.registry.topics.get(found.config.source)
        if source is None or source.epoch != found.source_epoch:
            raise TopicNotFound(found.config.source)
        return decide_step(found, source, self.topic(found.config.dest), now_ms, self.limits)

    def decide_claim(
        self, name: str, requests: Sequence[ClaimRequest], now_ms: int, token: int
    ) -> DecidedChange:
        """Lease jobs. Dead letters are decided separately: see `decide_dead_letters`."""
        return self.change_of(self.queue(name).decide_claim(requests, now_ms, token))

    def decide_dead_letters(
        self, name: str, letters: Batch, now_ms: int, *, key: str | None = None
    ) -> DecidedChange:
        """Append dead letters to their topic in this partition, creating it if needed."""
        topic = self.topics.get(name) or self._creating.get(name)
        write = WriteRequest(letters, key)
        if topic is None:
            created = self._create(name, TopicConfig(), now_ms)
            decided = self._decide_append(_new_topic(created), write, now_ms, created)
        else:
            decided = self._decide_append(topic, write, now_ms)
        return _change() if isinstance(decided, AppendResult) else decided

    def decide_redrive(
        self, name: str, seqs: Sequence[int], to: str, jobs: Batch, now_ms: int
    ) -> DecidedChange:
        """Move records of a topic to another one of this partition, in one change."""
        source, target = self.topic(name), self.topic(to)
        appended = target.decide_append(jobs, now_ms)
        assert isinstance(appended, Appended), "only keyed writes are repeated"
        if self._has_quota:
            self.registry.check_total(jobs.size_bytes - sum(map(source.row.bytes_of, seqs)))
        moved, removed = self._with_log(target, appended), source.decide_remove(seqs, now_ms)
        return DecidedChange((*moved.entries, removed), (*moved.to_log, removed))

    def decide_removal(self, name: str, seqs: Sequence[int], now_ms: int) -> DecidedChange:
        """Take single records out of a topic."""
        return _change(self.topic(name).decide_remove(seqs, now_ms))

    def change_of(self, entry: Appended | QueueEntry) -> DecidedChange:
        """The change for one entry of a topic or queue, with the part that must be logged."""
        if isinstance(entry, Appended):
            return self._with_log(self.topics[entry.topic], entry)
        if not jobs_of(entry):
            return _change()  # else time would pass here and not where the log is replayed
        logged = entry if self.registry.is_replicated else self.queue(entry.topic).to_log(entry)
        return DecidedChange((entry,), (logged,) if logged else ())

    # Changes

    def stage(self, change: DecidedChange) -> None:
        """Count on a change that was submitted to the log in later decisions."""
        for entry in change.entries:
            if type(entry) is Appended:  # nearly always; 0.9 of the time by the table
                self._stage_appended(entry)
            else:
                _BY_KIND[type(entry)].stage(self, entry)

    def apply(self, entry: Entry) -> AppendResult | CommitAnswer | int:
        """Apply the next durable entry, staged or not: in replay nothing is staged.

        Returns the answer to a write or commit; for others, how many things it changed.
        """
        if type(entry) is Appended:
            return self._apply_appended(entry)
        return _BY_KIND[type(entry)].apply(self, entry)

    def apply_all(self, entries: Iterable[Entry]) -> list[AppendResult | CommitAnswer | int]:
        """Apply entries in order; return one answer for each."""
        return [self.apply(entry) for entry in entries]

    def state(self) -> PartitionState:
        """Everything committed, for a snapshot or a comparison; nothing may be staged."""
        return PartitionState(
            self._epoch,
            self.now_ms,
            self.term,
            tuple(self.topics[name].state() for name in sorted(self.topics)),
            tuple((name, self.queues[name].state()) for name in sorted(self.queues)),
            tuple(router for router in self.routers if router.config.dest in self.topics),
            tuple(
                (name, state_of(space.core, space.topic.earliest_seq))
                for name, space in sorted(self.spaces.items())
            ),
            self.members,
        )

    @classmethod
    def restored(cls, state: PartitionState, registry: Registry | None = None) -> Partition:
        """The partition of a snapshot."""
        partition = cls(registry)
        partition.adopt(state.epoch, state.now_ms)
        partition.term, partition.members = state.term, state.members
        for topic_state in state.topics:
            topic = Topic.restored(topic_state)
            partition.topics[topic.name] = topic
            partition.registry.add(topic)
        for name, queue_state in state.queues:
            partition.queues[name] = Queue.restored(partition.topics[name], queue_state)
        for topic in partition.topics.values():
            partition._note_due(topic)
        for router in state.routers:
            partition.routers.restore(router)
        for name, space_state in state.spaces:
            space = TopicSpace(partition.topics[name], partition.limits)
            restored(space.core, space_state)
            partition.spaces[name] = space
        return partition

    @property
    def epoch(self) -> int:
        """The last epoch assigned to a topic."""
        return self._epoch

    def adopt(
        self,
        epoch: int,
        now_ms: int,
        topic: Topic | None = None,
        queue: Queue | None = None,
        space: TopicSpace | None = None,
    ) -> None:
        """Add a topic from a snapshot, the last epoch assigned to one, and the latest time."""
        self._see_epoch(epoch)
        self._see_time(now_ms)
        if topic is not None:
            self.topics[topic.name] = topic
            self.registry.add(topic)
            if queue is not None:
                self.queues[topic.name] = queue
                queue.recount()
            if space is not None:
                self.spaces[topic.name] = space
            self._note_due(topic)

    def abandon(self, staged: Iterable[str] | None = None) -> None:
        """Return to the applied state: no staged change became durable.

        `staged` names the topics of these changes; without it all topics are checked.
        """
        self.registry.creating -= len(self._creating)
        self._creating.clear()
        self._creating_spaces.clear()
        self._count_staged(-self._staged_bytes)
        for name in self.topics if staged is None else staged:
            for found in (self.topics.get(name), self.queues.get(name), self.spaces.get(name)):
                if found is not None:
                    found.abandon()

    def forget(self) -> None:
        """Take the topics and routers out of the registry: the partition is out of service."""
        for router in list(self.routers):
            if router.config.dest in self.topics:
                removed = self.routers.decide_removal(router.config.name)
                if removed is not None:
                    self.routers.apply(removed)
        for name in self.topics:
            self.registry.remove(name)
        for held in (self.topics, self.queues, self.spaces):
            held.clear()

    def _see_epoch(self, epoch: int) -> None:
        self._epoch = max(self._epoch, epoch)

    def _see_time(self, now_ms: int) -> None:
        if now_ms > self.now_ms:
            self.now_ms = now_ms

    def _note_due(self, topic: Topic) -> None:
        """Note when time next changes a topic."""
        self._dues.note(topic.name, topic.due_ms)
        queue = self.queues.get(topic.name)
        if queue is not None:
            self._dues.note(topic.name, queue.next_due_ms())

    def _is_due(self, topic: Topic, now_ms: int) -> bool:
        due_ms, queue = topic.due_ms, self.queues.get(topic.name)
        return (due_ms is not None and due_ms <= now_ms) or (
            queue is not None and queue.is_due(now_ms)
        )

    def _count_staged(self, more_bytes: int) -> None:
        self._staged_bytes += more_bytes
        self.registry.staged_bytes += more_bytes

    def _decide_append(
        self, topic: Topic, write: WriteRequest, now_ms: int, *before: Entry
    ) -> DecidedChange | AppendResult:
        appended = topic.decide_append(write.batch, now_ms, key=write.key)
        if isinstance(appended, AppendResult):
            return appended
        if self._has_quota:
            # Its own records that are too old leave with this entry.
            freed_bytes = topic.size_bytes - topic.at(now_ms).size_bytes
            self.registry.check_total(write.batch.size_bytes - freed_bytes)
        return self._with_log(topic, appended, *before)

    def _with_log(self, topic: Topic, appended: Appended, *before: Entry) -> DecidedChange:
        """The change of an append: for records kept only in memory, just their seqs are logged."""
        evicted_seq = topic.shed_seq(topic.config, appended.batch.size_bytes)
        if topic.config.durability != "ephemeral":
            if evicted_seq:
                before = (*before, Advanced(topic.name, topic.reserved_seq, evicted_seq))
            return _change(*before, appended)
        last_seq = appended.first_seq + appended.batch.count - 1
        entries, to_log = [*before], [*before]
        if last_seq > topic.reserved_seq or evicted_seq:
            reserved_seq = max(topic.reserved_seq, last_seq + RESERVE_SEQS)
            reserved = Advanced(topic.name, reserved_seq, evicted_seq)
            entries.append(reserved)
            to_log.append(reserved)
        if appended.feed is not None:  # else its router would copy them again
            feed = appended.feed._replace(unlogged=appended.batch.count)
            to_log.append(replace(appended, batch=Batch.of([]), feed=feed))
        return DecidedChange((*entries, appended), tuple(to_log))

    # By kind of entry: see `_BY_KIND`

    def _stage_appended(self, entry: Appended) -> None:
        topic = self.topics.get(entry.topic) or self._creating[entry.topic]
        topic.stage(entry)
        if self._has_quota:
            self._count_staged(entry.batch.size_bytes)

    def _apply_appended(self, entry: Appended) -> AppendResult:
        if self._staged_bytes:
            self._count_staged(-entry.batch.size_bytes)
        topic, totals = self.topics[entry.topic], self.registry.totals
        answer = topic.apply_append(entry)
        if entry.feed is not None:
            self.routers.apply_feed(entry.feed, entry.topic, answer.records + entry.feed.unlogged)
        elif not topic.is_reserved:
            totals.in_records += answer.records
            totals.in_bytes += entry.batch.size_bytes
        if entry.now_ms > self.now_ms:
            self.now_ms = entry.now_ms
        if self.queues:
            self._after_removals(topic)
        if topic.config.ttl_ms:
            self._dues.note(topic.name, topic.due_ms)
        totals.recount(topic)
        return answer

    def _stage_committed(self, entry: SpaceCommitted) -> None:
        (self.spaces.get(entry.topic) or self._creating_spaces[entry.topic]).stage(entry)
        if self._has_quota:
            self._count_staged(entry.batch.size_bytes)

    def _apply_committed(self, entry: SpaceCommitted) -> CommitAnswer:
        if self._staged_bytes:
            self._count_staged(-entry.batch.size_bytes)
        space = self.spaces[entry.topic]
        answer = space.apply(entry)
        totals = self.registry.totals
        totals.in_records += 1
        totals.in_bytes += entry.batch.size_bytes
        self._see_time(entry.now_ms)
        if space.topic.config.ttl_ms:
            self._dues.note(entry.topic, space.topic.due_ms)
        totals.recount(space.topic)
        return answer

    def _stage_configured(self, entry: Configured) -> None:
        self.topics[entry.topic].stage(entry)

    def _apply_in_topic(self, entry: TopicEntry) -> AppendResult | int:
        topic = self.topics[entry.topic]
        answer = topic.apply(entry)
        if isinstance(entry, Deleted | Removed | Configured):
            self._see_time(entry.now_ms)
        self._after_removals(topic)
        self._note_due(topic)
        self.registry.recount(topic)
        return answer

    def _after_removals(self, topic: Topic) -> None:
        """Let a queue forget the jobs that have left its topic."""
        queue = self.queues.get(topic.name)
        if queue is not None:
            queue.forget_gone()

    def _apply_began(self, entry: Began) -> int:
        self.term = entry.term
        self._see_time(entry.now_ms)
        for queue in self.queues.values():
            if not queue.topic.config.leases_durable:
                queue.forget_leases()
        for topic in self.topics.values():
            topic.begin(entry.skipped_seqs)
            self._after_removals(topic)
            self.registry.recount(topic)
        return len(self.topics)

    def _apply_passed(self, entry: Passed) -> int:
        self._see_time(entry.now_ms)
        taken = (self.topics.get(name) for name in self._dues.take(entry.now_ms))
        topics = [topic for topic in taken if topic is not None]
        for topic in topics:
            # Only where something is due: dates that are too early must not show in the state.
            if self._is_due(topic, entry.now_ms):
                (self.queues.get(topic.name) or topic).pass_time(entry.now_ms)
                self.registry.recount(topic)
            self._note_due(topic)
        return len(topics)

    def _apply_members(self, entry: MembersChanged) -> int:
        self.members = entry.members
        return 1

    def _stage_in_queue(self, entry: QueueEntry) -> None:
        self.queues[entry.topic].stage(entry)

    def _apply_in_queue(self, entry: QueueEntry) -> int:
        queue = self.queues[entry.topic]
        queue.apply(entry)
        self._see_time(entry.now_ms)
        self._note_due(queue.topic)
        self.registry.recount(queue.topic)
        return 0

    def _apply_router(self, entry: RouterEntry) -> int:
        is_changed = self.routers.apply(entry)
        router, dest = (
            (entry.config.name, entry.config.dest)
            if isinstance(entry, RouterStored)
            else (entry.router, entry.dest)
        )
        if dest in self.topics and (is_changed or isinstance(entry, RouterRemoved)):
            self.topics[dest].fed.pop(router, None)  # the mark would be taken for another router's
        return int(is_changed)

    def _stage_created(self, entry: Created) -> None:
        topic = self._creating[entry.topic] = _new_topic(entry)
        if entry.config.type == "space":
            self._creating_spaces[entry.topic] = TopicSpace(topic, self.limits)
        self.registry.creating += 1

    def _apply_created(self, entry: Created) -> int:
        staged = self._creating.pop(entry.topic, None)
        self.registry.creating -= staged is not None
        topic = staged or _new_topic(entry)
        self.topics[entry.topic] = topic
        self.registry.add(topic)
        self._see_epoch(entry.epoch)
        self._see_time(entry.now_ms)
        if entry.config.type == "queue":
            self.queues[entry.topic] = Queue(topic)
        elif entry.config.type == "space":
            made = self._creating_spaces.pop(entry.topic, None)
            self.spaces[entry.topic] = made or TopicSpace(topic, self.limits)
        return 1

    def _apply_dropped(self, entry: Dropped) -> int:
        del self.topics[entry.topic]
        self.queues.pop(entry.topic, None)
        self.spaces.pop(entry.topic, None)
        self.registry.remove(entry.topic)
        return 1

    def _create_for(self, name: str, write: WriteRequest, now_ms: int) -> Created:
        """Create the topic for a write, unless the write requires it to exist."""
        changes = parse_config(write.config or {})
        if write.create is False or not changes.get("auto_create", True):
            raise TopicNotFound(name)
        check_own(name)
        config = own_config(name) or TopicConfig().merged(changes)
        return self._create(name, config, now_ms)

    def _create(self, name: str, config: TopicConfig, now_ms: int) -> Created:
        check_topic_name(name)
        fixed = ("type", "dead_letter", "durability")
        check_change(name, None, {key: getattr(config, key) for key in fixed})
        self.registry.check_topics(1)
        return Created(name, now_ms, self._next_epoch(), config)

    def _next_epoch(self) -> int:
        """A later epoch than any of this partition, which no other partition assigns.

        It is counted here alone, from applied entries: a name never changes its partition.
        """
        epoch = self._epoch + 1
        return epoch + (self._number - self._epoch) % self._partitions


def _change(*entries: Entry) -> DecidedChange:
    return DecidedChange(entries, entries)


def _new_topic(entry: Created) -> Topic:
    return Topic(entry.topic, entry.config, epoch=entry.epoch, now_ms=entry.now_ms)


class _Handlers(NamedTuple):
    """How to stage and apply one kind of entry."""

    stage: Callable[[Partition, Any], None]
    apply: Callable[[Partition, Any], AppendResult | CommitAnswer | int]


def _stage_nothing(_partition: Partition, _entry: Entry) -> None:
    """For entries that no decision depends on before they are durable."""


_BY_KIND: Final[dict[type, _Handlers]] = {
    Created: _Handlers(Partition._stage_created, Partition._apply_created),
    Dropped: _Handlers(_stage_nothing, Partition._apply_dropped),
    Appended: _Handlers(Partition._stage_appended, Partition._apply_appended),
    SpaceCommitted: _Handlers(Partition._stage_committed, Partition._apply_committed),
    Configured: _Handlers(Partition._stage_configured, Partition._apply_in_topic),
    **dict.fromkeys(
        (Deleted, Removed, Advanced, Skipped), _Handlers(_stage_nothing, Partition._apply_in_topic)
    ),
    **dict.fromkeys(
        (JobsClaimed, JobsAcked, JobsNacked, JobsExtended),
        _Handlers(Partition._stage_in_queue, Partition._apply_in_queue),
    ),
    Began: _Handlers(_stage_nothing, Partition._apply_began),
    MembersChanged: _Handlers(_stage_nothing, Partition._apply_members),
    Passed: _Handlers(_stage_nothing, Partition._apply_passed),
    **dict.fromkeys(
        (RouterStored, RouterRemoved), _Handlers(_stage_nothing, Partition._apply_router)
    ),
}
"""The only table of entries: which part of a partition handles which kind."""
