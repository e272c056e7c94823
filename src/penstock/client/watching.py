"""A watch without a connection: the next step, the meaning of frames, the cursor of each topic.

The cursors are kept here, not by the server. After anything that ends the stream a new session is
created from them: an old one could still be feeding a connection that is dead but not yet detected,
and two streams of one session take records from each other. Records at or below a cursor are
dropped, so each record is returned once, whatever happened in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.client import calls
from penstock.client.errors import NotPenstock
from penstock.client.event_stream import Frame, Reconnects, stream_error
from penstock.client.wire import HttpRequest
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected
from penstock.protocol.errors import (
    CallError,
    InvalidRequest,
    NotFound,
    ServerUnavailable,
    Throttled,
)
from penstock.protocol.events import CaughtUp, LeftOut, Records, Tombstone, TopicDeleted, WatchEvent
from penstock.protocol.requests import WatchBody, WatchPlace

TOPICS_MAX: Final = 256
"""Topics that one session can name."""
SILENCE_HEARTBEATS: Final = 2.5
"""Missed heartbeats after which a connection counts as dead."""


class Position(Struct, frozen=True):
    """The position of a watch in a topic, or its start. `tail` starts after existing records.

    `epoch` distinguishes the topic from a later one of the same name.
    """

    from_seq: int = 0
    epoch: int | None = None
    tail: bool = False


def starts_of(
    topics: str | Iterable[str] | Mapping[str, int | Position], *, tail: bool
) -> dict[str, Position]:
    """Where a watch begins in each topic."""
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Mapping):
        return {name: Position(tail=tail) for name in topics}
    if tail:
        raise InvalidRequest("a watch begins either at the tail or after seqs: name one of them")
    return {
        name: place if isinstance(place, Position) else Position(place)
        for name, place in topics.items()
    }


class Create(Struct, frozen=True):
    """Create a session: POST this body."""

    body: WatchBody
    lenient: bool


class Open(Struct, frozen=True):
    """Open the stream of this session."""

    wid: str


class Pause(Struct, frozen=True):
    """Wait before the next step."""

    delay_ms: float


class Stop(Struct, frozen=True):
    """The watch has ended: every topic is gone, or `error` says why."""

    error: CallError | None = None


Step = Create | Open | Pause | Stop


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is watched besides named topics, and how. `lenient` skips unknown topics."""

    node: str | list[str] | None = None
    limit: int = 256
    batch_bytes_max: int = 262_144
    heartbeat_ms: int = 15_000
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    lenient: bool = False
    tag: str | Sequence[str] | None = None
    prefixes: tuple[str, ...] = ()
    name: str | None = None

    def body(self, topics: dict[str, WatchPlace | None]) -> WatchBody:
        """The request for a session."""
        return WatchBody(
            topics=topics,
            node=self.node,
            limit=self.limit,
            max_batch_bytes=self.batch_bytes_max,
            heartbeat_ms=self.heartbeat_ms,
            include_meta=self.include_meta,
            include_tags=self.include_tags,
            include_data=self.include_data,
            tag=self.tag,
            prefixes=list(self.prefixes) or None,
            name=self.name,
        )


class WatchCore:
    """The state of one watch. Feed it events; `next_step` says what to do.

    It fails only after the back-off's window without a single frame, or when the server says that
    retrying is useless.
    """

    def __init__(
        self,
        topics: Mapping[str, Position],
        options: WatchOptions,
        backoff: Backoff,
        random: Random,
    ) -> None:
        if not topics and not options.prefixes:
            raise Rejected("there is nothing to watch: name topics or prefixes")
        if len(topics) > TOPICS_MAX:
            raise Rejected(
                f"{len(topics)} topics are too many for one watch: "
                f"name at most {TOPICS_MAX}, or prefixes"
            )
        self.positions = dict(topics)
        self.silence_ms = max(1_000, options.heartbeat_ms) * SILENCE_HEARTBEATS
        self._options = options
        self._reconnects = Reconnects(backoff, random)
        self._resuming = False
        self._step: Step = self._create()

    def next_step(self) -> Step:
        """What to do next. After a pause, call it again."""
        step = self._step
        if isinstance(step, Pause):
            self._step = self._create()
        return step

    def stream_request(self, step: Open) -> HttpRequest:
        """The request that opens the stream of a session."""
        return calls.watch_request(step.wid)

    def created(self, answer: Mapping[str, Any]) -> list[WatchEvent]:
        """The session was created. Events: topics of a resumed watch that are gone by now."""
        try:
            session = msgspec.convert(answer, _Session)
        except msgspec.ValidationError as error:
            raise NotPenstock(
                f"the server did not answer with a watch session: {str(answer)[:80]}"
            ) from error
        topics = session.topics
        gone: list[WatchEvent] = []
        for name in [name for name in self.positions if name not in topics]:
            del self.positions[name]
            if self._resuming:
                gone.append(TopicDeleted(topic=name))
        for name, given in topics.items():
            known = self.positions.get(name)
            if known is None or known.tail:
                self.positions[name] = Position(given.from_seq, given.epoch)
            elif known.epoch is None:
                self.positions[name] = Position(known.from_seq, given.epoch)
        self._resuming = True
        nothing_left = not self.positions and not self._options.prefixes
        self._step = Stop() if nothing_left else Open(session.wid)
        return gone

    def heard(self) -> None:
        """The stream works: an event arrived, or only a heartbeat."""
        self._reconnects.heard()

    def frame(self, frame: Frame) -> WatchEvent | None:
        """A frame arrived: returns the event, or None if it contains nothing new."""
        match frame.event:
            case "record":
                return self._records(_decode(_RECORDS, frame))
            case "tombstone":
                return self._tombstone(_decode(_TOMBSTONE, frame))
            case "caught-up":
                return self._caught_up(_decode(_CAUGHT_UP, frame))
            case "topic-deleted":
                return self._topic_deleted(_decode(_TOPIC_DELETED, frame))
            case "left-out":
                left_out: LeftOut = _decode(_LEFT_OUT, frame)
                return left_out
            case "error":
                raise stream_error(frame)
        return None  # an event of a later protocol

    def ended(self, now_ms: float, error: CallError | None = None) -> None:
        """The stream, or the try to open one, ended. Plan the next step."""
        if self._resuming and not self.positions and not self._options.prefixes:
            self._step = Stop()  # no topics are left to watch, however the stream ended
            return
        error = error or ServerUnavailable("the server ended the stream")
        if not self._worth_another(error):
            self._step = Stop(error)
            return
        delay_ms = self._reconnects.failed(error, now_ms)
        self._step = Stop(error) if delay_ms is None else Pause(delay_ms)

    def opened(self) -> None:
        """The stream of the session was opened."""
        self._reconnects.opened()

    @property
    def trouble(self) -> str | None:
        """Why there is no stream now, or None."""
        return self._reconnects.trouble

    @property
    def reconnects(self) -> int:
        """How often the stream was lost so far."""
        return self._reconnects.count

    def _create(self) -> Step:
        options = self._options
        topics: dict[str, WatchPlace | None] = {
            name: _sent(position) for name, position in self.positions.items()
        }
        # A topic that was deleted while the stream was down is an event, not the end of the watch.
        return Create(options.body(topics), lenient=options.lenient or self._resuming)

    def _worth_another(self, error: CallError) -> bool:
        if isinstance(error, NotFound):
            return self._resuming  # the session is lost: create another
        return isinstance(error, Throttled | ServerUnavailable)

    def _records(self, batch: Records) -> WatchEvent | None:
        position = self.positions.get(batch.topic, Position())
        cursor = position.from_seq
        epoch = batch.epoch if batch.epoch is not None else position.epoch
        if batch.to_seq > cursor:
            self.positions[batch.topic] = Position(batch.to_seq, epoch)
        if batch.from_seq >= cursor:
            return batch
        fresh = [record for record in batch.records if record.seq > cursor]
        if not fresh:
            return None
        return msgspec.structs.replace(batch, from_seq=cursor, records=fresh)

    def _tombstone(self, gap: Tombstone) -> WatchEvent:
        position = self.positions.get(gap.topic, Position())
        # A gap ends just before the remaining records. The gap of a recreated topic spans all of
        # the old one, and reading begins at the first record: the old cursor says nothing about its
        # seqs.
        from_seq = max(0, min(gap.gap_to, gap.earliest_seq - 1))
        if gap.reason != "recreated" and gap.gap_from > position.from_seq:
            from_seq = max(from_seq, position.from_seq)
        # The frame need not say which epoch this is; the next session will.
        self.positions[gap.topic] = Position(from_seq, gap.epoch)
        return gap

    def _caught_up(self, event: CaughtUp) -> WatchEvent:
        position = self.positions.get(event.topic, Position())
        if event.head_seq > position.from_seq or event.epoch is not None:
            epoch = event.epoch if event.epoch is not None else position.epoch
            self.positions[event.topic] = Position(max(event.head_seq, position.from_seq), epoch)
        return event

    def _topic_deleted(self, event: TopicDeleted) -> WatchEvent:
        self.positions.pop(event.topic, None)
        return event


class _Given(Struct):
    from_seq: int = 0
    epoch: int | None = None


class _Session(Struct):
    wid: str
    topics: dict[str, _Given]


_RECORDS: Final = msgspec.json.Decoder(Records)
_TOMBSTONE: Final = msgspec.json.Decoder(Tombstone)
_CAUGHT_UP: Final = msgspec.json.Decoder(CaughtUp)
_TOPIC_DELETED: Final = msgspec.json.Decoder(TopicDeleted)
_LEFT_OUT: Final = msgspec.json.Decoder(LeftOut)


def _decode(decoder: msgspec.json.Decoder[Any], frame: Frame) -> Any:
    try:
        return decoder.decode(frame.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotPenstock(
            f"the server sent a malformed {frame.event} frame: {frame.data[:80]!r}"
        ) from error


def _sent(position: Position) -> WatchPlace:
    if position.tail:
        return WatchPlace(tail=True)
    return WatchPlace(from_seq=position.from_seq, epoch=position.epoch)
