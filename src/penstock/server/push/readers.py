"""The readers of a topic: watchers, routers and workers, and how far each has come.

Watchers that share a watch share a cursor. They are counted by the batch, and only those that an
answer lists are looked at one by one: an answer costs its rows and the batches, not the watchers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, runtime_checkable

from penstock.protocol.watchers import ReaderState, TopicWatcher, TopicWatchers
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.server.api.call import Call
    from penstock.topics.engine.engine import Engine

REASONS: Final[dict[ReaderState, str]] = {
    "ok": "it has every record",
    "waiting": "its turn comes",
    "slow": "it does not read what it was sent",
    "loading": "its records are read from disk",
    "held": "it holds as many jobs as it asked for",
}


class Identity(NamedTuple):
    """What is known of a reader, however far it has come."""

    id: str
    kind: Literal["sse", "websocket", "router", "worker"]
    name: str | None = None
    peer: str | None = None
    key: str | None = None
    since_ms: int | None = None


def identity_of(
    call: Call,
    kind: Literal["sse", "websocket", "worker"],
    number: int,
    name: str | None,
    since_ms: int,
) -> Identity:
    """What is known of the connection of a call."""
    key = None if call.grant is None else call.grant.label
    return Identity(f"{kind}-{number}", kind, name, call.exchange.peer or None, key, since_ms)


class Reader(Protocol):
    """A connection that records are pushed to."""

    def identity(self) -> Identity:
        """What is known of it."""
        ...


class Stuck(NamedTuple):
    """A topic whose records a peer does not read, and since when."""

    topic: str
    since_ms: int


@runtime_checkable
class Pushed(Reader, Protocol):
    """A connection that may be stuck."""

    def stuck(self) -> Stuck | None:
        """What the peer does not read; None if it reads."""
        ...


class Reading(NamedTuple):
    """Readers at one place of a topic. `seq` is None where they have no place of their own."""

    readers: Collection[Reader]
    seq: int | None
    state: ReaderState
    epoch: int | None = None
    reason: str = ""
    dest: str | None = None
    held: int | None = None


class ReadBy(Protocol):
    """The owner of a listener that knows the readers behind it."""

    def readings(self, topic: Topic) -> Iterator[Reading]:
        """The readers of a topic, by their places."""
        ...


def topic_watchers(
    engine: Engine, name: str, limit: int, shown: Callable[[str], bool]
) -> TopicWatchers:
    """The readers of a topic, furthest behind first; routers to what is not `shown` are omitted."""
    topic = engine.topic(name)
    places = [_Place.of(topic, reading) for reading in _readings(engine, topic, shown)]
    places.sort(key=lambda place: (-place.behind, place.reading.dest is None))
    now_ms, rows = engine.clock.now_ms(), list[TopicWatcher]()
    for place in places:
        if len(rows) == limit:
            break
        rows += place.rows(topic, now_ms, limit - len(rows))
    return TopicWatchers(
        topic=name,
        head_seq=topic.head_seq,
        watchers=rows,
        count=sum(len(place.reading.readers) for place in places),
        routers=sum(place.reading.dest is not None for place in places),
        behind=sum(len(place.reading.readers) for place in places if place.behind),
    )


class _Place(NamedTuple):
    """Readers at one place, and how far that is behind."""

    reading: Reading
    behind: int
    next_seq: int
    """The first record that they lack."""

    @classmethod
    def of(cls, topic: Topic, reading: Reading) -> _Place:
        if reading.seq is None:
            return cls(reading, 0, 0)
        is_elsewhere = reading.epoch is not None and reading.epoch != topic.told_epoch
        next_seq = max(0 if is_elsewhere else reading.seq + 1, topic.earliest_seq)
        return cls(reading, max(0, topic.head_seq - next_seq + 1), next_seq)

    def rows(self, topic: Topic, now_ms: int, most: int) -> Iterator[TopicWatcher]:
        """The readers one by one, at most so many."""
        reading = self.reading
        behind_ms = self._behind_ms(topic, now_ms)
        for _, reader in zip(range(most), reading.readers, strict=False):
            who = reader.identity()
            yield TopicWatcher(
                id=who.id,
                kind=who.kind,
                name=who.name,
                peer=who.peer,
                key=who.key,
                since=who.since_ms,
                place=reading.seq,
                behind=self.behind,
                behind_ms=behind_ms,
                state=reading.state,
                reason=reading.reason or REASONS[reading.state],
                dest=reading.dest,
                held=reading.held,
            )

    def _behind_ms(self, topic: Topic, now_ms: int) -> int | None:
        """The age of the first record that they lack; None if that is not in memory."""
        if not self.behind:
            return 0
        try:
            slot = topic.slot(self.next_seq)
        except NotLoaded:
            return None
        return None if slot is None else max(0, now_ms - slot.ts_ms)


def _readings(engine: Engine, topic: Topic, shown: Callable[[str], bool]) -> Iterator[Reading]:
    for listener in tuple(engine.watchers.by_topic.get(topic.name, ())):
        owner: ReadBy | None = getattr(listener, "__self__", None)
        if hasattr(owner, "readings"):
            assert owner is not None
            yield from owner.readings(topic)
    for place in engine.forwarder.places(topic.name):
        if shown(place.dest):
            router = (_RouterReader(place.router),)
            yield Reading(router, place.seq, place.state, None, place.reason, place.dest)


class _RouterReader(NamedTuple):
    router: str

    def identity(self) -> Identity:
        return Identity(f"router:{self.router}", "router", self.router)
