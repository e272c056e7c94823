"""Every topic, queue and router of one partition, and the commands that span several of them.

A command becomes a `Change`: entries that are in the log together or not at all. The shell
`stage`s a change when it hands it to the log and `commit`s it when the log has it, in the same
order; readers see what is committed. After a restart, `replay` takes the logged entries.
Commands that make, change or remove topics and routers are decided while nothing is staged;
writes that create their topic are not among these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.topics.config import TopicConfig, check_change, parse_config
from penstock.topics.entries import (
    Acked,
    Advanced,
    Appended,
    Claimed,
    Configured,
    Created,
    Deleted,
    Dropped,
    Extended,
    Nacked,
    QueueEntry,
    TopicEntry,
)
from penstock.topics.errors import (
    NotAQueue,
    RecordTooLarge,
    Throttled,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
)
from penstock.topics.forward import Step, step
from penstock.topics.leases import ClaimRequest
from penstock.topics.model import Record, TopicLimits, check_batch, check_text, check_topic_name
from penstock.topics.predicate import Predicate
from penstock.topics.queues import Queue, QueueState
from penstock.topics.read import Diff, ReadRequest, read
from penstock.topics.routers import (
    Router,
    RouterConfig,
    RouterEntry,
    RouterPut,
    RouterRemoved,
    RouterTable,
    topics_to_create,
)
from penstock.topics.topic import Topic, TopicState, Written, check_selector

Entry = Created | Dropped | TopicEntry | QueueEntry | RouterEntry


class Change(NamedTuple):
    """A decided command: all of `entries` takes effect, `to_log` must be in the log for that."""

    entries: tuple[Entry, ...]
    to_log: tuple[Entry, ...]


class Write(NamedTuple):
    """A write as it was asked for. `config` counts only if the write creates its topic."""

    topic: str
    records: Sequence[Record]
    key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None


class PartitionState(NamedTuple):
    """A partition as plain values: equal states answer every question alike."""

    epoch: int
    topics: tuple[TopicState, ...]
    queues: tuple[tuple[str, QueueState], ...]
    routers: tuple[Router, ...]


class Partition:
    """The state of one partition. Not thread-safe: its executor runs one command at a time."""

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self.limits = limits or TopicLimits()
        self.topics: dict[str, Topic] = {}
        self.queues: dict[str, Queue] = {}
        self.routers = RouterTable(self.limits)
        self._creating: dict[str, Topic] = {}  # staged, not committed
        self._epoch = 0  # the last one given to a topic
        self._staged_epoch = 0  # the last one given to a topic that is on its way
        self._size_bytes = 0
        self._counted: dict[str, int] = {}  # the bytes of each topic when it was last touched

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

    def read(self, name: str, request: ReadRequest, now_ms: int) -> Diff:
        """One page of what is committed."""
        topic = self.topic(name)
        diff = read(topic, request, now_ms, self.limits)
        self._recount(topic)
        return diff

    # Decisions

    def put_topic(self, name: str, body: dict[str, Any], now_ms: int) -> Change:
        """Make a topic, or change the named keys of one; no entries if there is no change."""
        changes = parse_config(body)
        topic = self.topics.get(name)
        if topic is None:
            return _change(self._create(name, TopicConfig().merged(changes), now_ms))
        configured = topic.configure(changes, now_ms)
        is_same = topic.config.merged(changes) == topic.config
        return _change() if is_same else _change(configured)

    def drop_topic(self, name: str, now_ms: int, *, if_empty: bool = False) -> Change:
        """Remove a topic and the routers at its ends; no entries if there is none."""
        topic = self.topics.get(name)
        if topic is None:
            return _change()
        topic.expire(now_ms)
        if if_empty and topic.count:
            raise TopicNotEmpty(name, topic.count)
        return _change(Dropped(name, tuple(self.routers.touching(name))))

    def write(self, write: Write, now_ms: int) -> Change | Written:
        """Append a batch, making its topic if need be; or the answer of the write it repeats."""
        check_batch(write.records, self.limits)
        if write.key is not None:
            check_text("idempotency_key", write.key, self.limits.key_bytes_max)
        topic = self.topics.get(write.topic) or self._creating.get(write.topic)
        entries: tuple[Entry, ...] = ()
        if topic is None:
            created = self._create_for(write, now_ms)
            topic, entries = _new_topic(created), (created,)
        appended = topic.append(write.records, now_ms, key=write.key)
        self._recount(topic)
        if isinstance(appended, Written):
            return appended
        self._check_total(appended.size_bytes)
        return _change(*entries, appended)

    def delete(
        self,
        name: str,
        now_ms: int,
        *,
        before_seq: int | None = None,
        match: Predicate | None = None,
    ) -> Change:
        """Delete records by prefix, by tag, or by both at once."""
        check_selector(before_seq, match)
        return _change(self.topic(name).delete(now_ms, before_seq=before_seq, match=match))

    def put_router(self, config: RouterConfig, now_ms: int, *, create_dest: bool = True) -> Change:
        """Make a router with the topics it lacks, or change it where it stands."""
        is_new = self.routers.check(config)
        missing = topics_to_create(config, self.topics.__contains__, create_dest=create_dest)
        created: list[Created] = []
        for name in missing:
            self._check_topics(len(missing))
            entry = self._create(name, TopicConfig(), now_ms)
            created.append(entry._replace(epoch=entry.epoch + len(created)))
        if not is_new:
            return _change(*created, RouterPut(config, 0, 0))
        source = self.topics.get(config.source)
        if source is None:
            return _change(*created, RouterPut(config, created[0].epoch, 0))
        return _change(*created, RouterPut(config, source.epoch, source.head_seq))

    def remove_router(self, name: str) -> Change:
        """Remove a router; no entries if there is none."""
        return _change(RouterRemoved(name)) if self.routers.find(name) else _change()

    def forward(self, router: str, now_ms: int) -> Step:
        """The next step of a router. Its entry is staged and committed as any other change."""
        found = self.routers.get(router)
        source, dest = self.topic(found.config.source), self.topic(found.config.dest)
        decided = step(found, source, dest, now_ms, self.limits)
        self._recount(source)
        return decided

    def claim(self, name: str, requests: Sequence[ClaimRequest], now_ms: int, token: int) -> Change:
        """Lease jobs, and bury those delivered too often if their topic takes them."""
        queue = self.queue(name)
        claimed = queue.claim(requests, now_ms, token)
        letters: tuple[Entry, ...] = ()
        if claimed.buried:
            try:
                letters = self._bury(queue, claimed, now_ms)
            except (TopicFull, RecordTooLarge, Throttled):
                claimed = claimed.without_dead_letters()
        logged = queue.to_log(claimed)
        return Change((claimed, *letters), (logged, *letters) if logged else letters)

    def settle(self, entry: Acked | Nacked | Extended) -> Change:
        """What a queue decided, with the part of it that must be logged."""
        logged = self.queue(entry.topic).to_log(entry)
        return Change((entry,), (logged,) if logged else ())

    # Changes

    def stage(self, change: Change) -> None:
        """A change is on its way: later decisions count on it. What queues do happens now."""
        for entry in change.entries:
            match entry:
                case Created():
                    self._creating[entry.topic] = _new_topic(entry)
                    self._staged_epoch = max(self._staged_epoch, entry.epoch)
                case Appended():
                    topic = self.topics.get(entry.topic) or self._creating[entry.topic]
                    topic.pend(entry)
                case Configured():
                    self.topics[entry.topic].pend(entry)
                case Claimed() | Acked() | Nacked() | Extended():
                    self._apply(entry)
                case _:
                    pass

    def commit(self, change: Change) -> list[Written | int]:
        """The log has a staged change: let it take effect. One answer for each entry."""
        answers: list[Written | int] = []
        for entry in change.entries:
            is_done = isinstance(entry, Claimed | Acked | Nacked | Extended)
            answers.append(0 if is_done else self._apply(entry))
        return answers

    def replay(self, entries: Iterable[Entry]) -> None:
        """Take logged entries, as they were before the restart."""
        for entry in entries:
            self._apply(entry)

    def state(self) -> PartitionState:
        """Everything that is committed, for a snapshot or to compare; nothing may be staged."""
        return PartitionState(
            self._epoch,
            tuple(self.topics[name].state() for name in sorted(self.topics)),
            tuple((name, self.queues[name].state()) for name in sorted(self.queues)),
            tuple(self.routers),
        )

    @classmethod
    def restored(cls, state: PartitionState, limits: TopicLimits | None = None) -> Partition:
        """The partition a snapshot was taken of."""
        partition = cls(limits)
        partition._epoch = state.epoch
        for topic_state in state.topics:
            topic = Topic.restored(topic_state)
            partition.topics[topic.name] = topic
            partition._recount(topic)
        for name, queue_state in state.queues:
            partition.queues[name] = Queue.restored(partition.topics[name], queue_state)
        for router in state.routers:
            partition.routers.restore(router)
        return partition

    def abandon(self) -> None:
        """No staged change reached the log: forget them all.

        What queues did is done; a shell whose log failed builds the partition again from the log.
        """
        self._creating.clear()
        self._staged_epoch = 0
        for topic in self.topics.values():
            topic.abandon()

    def _apply(self, entry: Entry) -> Written | int:
        match entry:
            case Created():
                return self._install(entry)
            case Dropped():
                return self._drop(entry)
            case RouterPut() | RouterRemoved():
                return int(self.routers.apply(entry))
            case Claimed() | Acked() | Nacked() | Extended():
                queue = self.queues[entry.topic]
                queue.apply(entry)
                self._recount(queue.topic)
                return 0
            case Appended() | Deleted() | Configured() | Advanced():
                return self._apply_to_topic(entry)

    def _apply_to_topic(self, entry: TopicEntry) -> Written | int:
        topic = self.topics[entry.topic]
        answer = topic.apply(entry)
        if isinstance(entry, Appended) and entry.feed is not None:
            self.routers.advance(entry.feed, len(entry.records))
        self._recount(topic)
        return answer

    def _install(self, entry: Created) -> int:
        topic = self._creating.pop(entry.topic, None) or _new_topic(entry)
        self.topics[entry.topic] = topic
        self._epoch = max(self._epoch, entry.epoch)
        if entry.config.type == "queue":
            self.queues[entry.topic] = Queue(topic)
        return 1

    def _drop(self, entry: Dropped) -> int:
        for router in entry.routers:
            self.routers.apply(RouterRemoved(router))
        del self.topics[entry.topic]
        self.queues.pop(entry.topic, None)
        self._size_bytes -= self._counted.pop(entry.topic, 0)
        return 1

    def _create_for(self, write: Write, now_ms: int) -> Created:
        """The topic a write brings with it, unless it said that there must be one."""
        changes = parse_config(write.config or {})
        if write.create is False or not changes.get("auto_create", True):
            raise TopicNotFound(write.topic)
        return self._create(write.topic, TopicConfig().merged(changes), now_ms)

    def _create(self, name: str, config: TopicConfig, now_ms: int) -> Created:
        check_topic_name(name)
        check_change(name, None, {"type": config.type, "dead_letter": config.dead_letter})
        self._check_topics(1)
        epoch = max(self._epoch, self._staged_epoch) + 1
        return Created(name, now_ms, epoch, config)

    def _bury(self, queue: Queue, claimed: Claimed, now_ms: int) -> tuple[Entry, ...]:
        name = queue.topic.config.dead_letter
        assert name is not None, "jobs are buried only where there is a place"
        topic = self.topics.get(name) or self._creating.get(name)
        entries: tuple[Entry, ...] = ()
        if topic is None:
            created = self._create(name, TopicConfig(), now_ms)
            topic, entries = _new_topic(created), (created,)
        appended = topic.append(claimed.dead_letters, now_ms)
        assert isinstance(appended, Appended), "without a key nothing is a repetition"
        return (*entries, appended)

    def _check_topics(self, more: int) -> None:
        topics_max = self.limits.topics_max
        if topics_max and len(self.topics) + len(self._creating) + more > topics_max:
            raise Throttled(
                f"expected at most {topics_max} topics, found no room for another",
                limit="max_topics",
                max=topics_max,
            )

    def _check_total(self, more_bytes: int) -> None:
        bytes_max = self.limits.total_bytes_max
        if bytes_max and self._size_bytes + more_bytes > bytes_max:
            raise Throttled(
                f"expected at most {bytes_max} bytes in all, found {self._size_bytes}",
                limit="max_total_bytes",
                max=bytes_max,
            )

    def _recount(self, topic: Topic) -> None:
        counted = self._counted.get(topic.name, 0)
        if topic.size_bytes != counted:
            self._counted[topic.name] = topic.size_bytes
            self._size_bytes += topic.size_bytes - counted


def _change(*entries: Entry) -> Change:
    return Change(entries, entries)


def _new_topic(entry: Created) -> Topic:
    return Topic(entry.topic, entry.config, epoch=entry.epoch, now_ms=entry.now_ms)
