"""One watch shared by all watchers of a topic that are caught up and want the same fields.

Most watchers of a busy topic watch only that topic, want the same fields, and have everything up to
its head. They are grouped into batches. A batch has one cursor: its records are read and encoded
once, and then only written to each member. Batches take turns, and the loop reads and answers
requests in between; each batch gets the records committed before its turn, at most a page of them,
so that while a page holds them all a record waits for one round at most. A watcher that falls
behind leaves its batch and is served alone until it reaches the head again.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from penstock.kernel.errors import PenstockError
from penstock.protocol.watchers import ReaderState
from penstock.server.http.message import Direct, as_chunk
from penstock.server.push import sse
from penstock.server.push.readers import Identity, Reading
from penstock.topics.core.topic import Topic
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.watch import Behind, PageShape, SharedPage

BATCH_MEMBERS_MAX: Final = 50
"""How many watchers are written to before the loop does other work.

With 100, a completed sync waited for a hundred writes to sockets, and the next group for the sync:
100 watchers had their records 1.2 times as late, 1,000 watchers 1.1 times (`bench delivery`).
"""

_LOGGER: Final = logging.getLogger("penstock.server")
_Line = tuple[Callable[[], bool], Callable[[], int], int, "Member"]
Later = Callable[[Callable[[], None]], object]
"""Schedules a call for the next iteration of the event loop."""


class WatchCursor(NamedTuple):
    """How far a watcher has read, and whether it was notified that this is the head."""

    seq: int
    epoch: int
    told_caught_up: bool = True


class Member(Protocol):
    """A watcher that can join a batch; `batch` is None while it is served alone."""

    batch: EventBatch | None

    def identity(self) -> Identity:
        """What is known of the watcher."""
        ...

    def offer(self, frames: bytes) -> bool:
        """Send bytes; False if the peer has no room and none were taken."""
        ...

    def direct(self) -> Direct | None:
        """The socket itself; None if it must not be used directly."""
        ...

    def rest(self, data: memoryview) -> None:
        """Send what the socket itself did not take."""
        ...

    def left_behind(self, cursor: WatchCursor) -> None:
        """The watcher left its batch at this cursor: serve it alone, at once."""
        ...


class EventBatch:
    """Watchers that share one cursor."""

    __slots__ = ("_count", "_lines", "cursor", "members", "spoke_s", "watch")

    def __init__(self, watch: SharedWatch, cursor: WatchCursor) -> None:
        self.watch = watch
        self.cursor = cursor
        self.members: dict[Member, None] = {}
        self.spoke_s = 0.0
        self._lines: list[_Line] = []  # empty when it must be rebuilt
        self._count: Callable[[int], None] = _count_nothing

    @property
    def topic(self) -> str:
        """The topic they watch."""
        return self.watch.topic

    def take(self, member: Member) -> None:
        """Add a watcher at this cursor."""
        self.members[member] = None
        member.batch = self
        self._lines = []

    def lose(self, member: Member) -> None:
        """Remove a watcher."""
        member.batch = None
        del self.members[member]
        self._lines = []

    def write(self, frames: bytes) -> list[Member]:
        """Send bytes to each; returns those that took none.

        Bypasses the watchers' objects: a socket write evicts most of the CPU caches, so every
        object touched costs.
        """
        chunk = as_chunk(frames)
        size, slow, behind = len(chunk), 0, []
        lines = self._lines or self._line_up()
        for is_closing, unsent, fd, member in lines:
            if not (is_closing() or unsent()):
                try:
                    sent = os.write(fd, chunk)
                except OSError:
                    sent = 0  # the stream meets the same error and handles it
                if sent == size:
                    continue
                if sent:
                    member.rest(memoryview(chunk)[sent:])
                    continue
            slow += 1
            if not _offered(member, frames):
                behind.append(member)
        self._count((len(lines) - slow) * size)
        return behind

    def _line_up(self) -> list[_Line]:
        lines = []
        for member in self.members:
            direct = member.direct()
            if direct is None:
                lines.append((_always, _nothing, -1, member))
            else:
                lines.append((direct.is_closing, direct.unsent, direct.fd, member))
                self._count = direct.wrote
        self._lines = lines
        return lines

    def is_behind(self, topic: Topic) -> bool:
        """Whether the topic has records that they lack."""
        seq, epoch, _ = self.cursor
        return seq != topic.head_seq or epoch != topic.told_epoch

    def fits_with(self, other: EventBatch) -> bool:
        """Whether both have the same cursor and are small enough to merge."""
        few = len(self.members) + len(other.members) <= BATCH_MEMBERS_MAX
        return few and self.cursor == other.cursor


class SharedWatch:
    """Watchers of one topic and one shape, in batches, least recently served first."""

    def __init__(self, topic: str, shape: PageShape, watches: SharedWatches) -> None:
        self.topic = topic
        self.shape = shape
        self.batches: deque[EventBatch] = deque()
        self.is_going = False  # whether batches are waiting for their turn
        self._watches = watches
        self._engine = watches.engine

    @property
    def audience(self) -> int:
        """How many watchers this listener stands for."""
        return sum(len(batch.members) for batch in self.batches)

    def behind(self, _topic: str) -> Behind:
        """How many of them lack existing records, and get them in their turn."""
        topic = self._engine.registry.topics.get(self.topic)
        if topic is None:
            return Behind()
        return Behind(sum(len(batch.members) for batch in self.batches if batch.is_behind(topic)))

    def readings(self, topic: Topic) -> Iterator[Reading]:
        """The watchers, by their batches."""
        for batch in self.batches:
            seq, epoch, _ = batch.cursor
            state: ReaderState = "waiting" if batch.is_behind(topic) else "ok"
            yield Reading(batch.members, seq, state, epoch)

    def push(self, _topic: str) -> None:
        """The topic's turn. A round in progress continues instead of starting again."""
        if not self.is_going and self.step():
            self._watches.go_on(self)

    def step(self) -> bool:
        """Serve one batch, or several small ones; whether others are still behind."""
        topic = self._engine.registry.topics.get(self.topic)
        if topic is None:
            for batch in tuple(self.batches):
                self._dissolve(batch)
            return False
        written, last = 0, None
        for batch in tuple(self.batches):
            if written >= BATCH_MEMBERS_MAX:
                break
            if not batch.members or not batch.is_behind(topic):
                continue
            written += len(batch.members)
            self.batches.remove(batch)
            self.batches.append(batch)
            self._serve(batch, topic)
            if not batch.members:
                continue  # all members fell behind, and the batch was removed
            if last is not None and last.members and last.fits_with(batch):
                self._merge(batch, last)
            else:
                last = batch
        return any(batch.is_behind(topic) for batch in self.batches)

    def find(self, cursor: WatchCursor) -> EventBatch:
        """A batch at a cursor with room for one more."""
        for batch in reversed(self.batches):
            if batch.cursor == cursor and len(batch.members) < BATCH_MEMBERS_MAX:
                return batch
        self.batches.append(EventBatch(self, cursor))
        return self.batches[-1]

    def _serve(self, batch: EventBatch, topic: Topic) -> None:
        """Send a batch the records it lacks, at most a page."""
        before = batch.cursor
        now_ms, find = self._engine.clock.now_ms(), self._engine.watchers.page
        try:
            page = find(topic, before.seq, before.epoch, self.shape, now_ms)
        except PenstockError:  # each member is sent the reason when it is served alone
            self._dissolve(batch)
            return
        diff = page.diff
        if page.waits or diff.tombstone is not None:
            self._dissolve(batch)
            return
        is_news = bool(diff.found.records) or not before.told_caught_up
        told = diff.caught_up if is_news else True
        batch.cursor = WatchCursor(diff.next_from_seq, before.epoch, told)
        frames = self._frames(page, before) if is_news else b""
        if frames:
            told_to = self._send(batch, frames, before)
            self._engine.watchers.push(topic, diff.found, told_to, self._engine.clock.now_ms())

    def _frames(self, page: SharedPage, before: WatchCursor) -> bytes:
        """The events of a page: records, and caught-up for members that have not had it."""
        frames = page.frames.get(before)
        if frames is not None:
            return frames
        diff = page.diff
        event_id = sse.event_id({self.topic: diff.next_from_seq})
        frames = b""
        if diff.found.records:
            data = sse.record_data(self.topic, page.records, before.seq, diff)
            frames = sse.frame(event_id, b"record", data)
        if diff.caught_up:
            caught_up = sse.caught_up_data(self.topic, diff)
            frames += sse.frame(event_id, b"caught-up", caught_up)
        page.frames[before] = frames
        return frames

    def _send(self, batch: EventBatch, frames: bytes, before: WatchCursor) -> int:
        """Write to every member; those that took nothing leave. Returns how many took it."""
        batch.spoke_s = self._watches.now_s()
        told_to = len(batch.members)
        behind = batch.write(frames)
        for member in behind:
            if member in batch.members:
                self._watches.leave(member)
                member.left_behind(before)
        return told_to - len(behind)

    def _merge(self, batch: EventBatch, into: EventBatch) -> None:
        for member in tuple(batch.members):
            batch.lose(member)
            into.take(member)
        self.batches.remove(batch)

    def _dissolve(self, batch: EventBatch) -> None:
        for member in tuple(batch.members):
            if member.batch is batch:
                self._watches.leave(member)
                member.left_behind(batch.cursor)


class SharedWatches:
    """Every shared watch of a server by topic and shape, and those in the middle of a round."""

    def __init__(self, engine: Engine, now_s: Callable[[], float], later: Later) -> None:
        self.engine = engine
        self.now_s = now_s
        self._later = later
        self._watches: dict[tuple[str, PageShape], SharedWatch] = {}
        self._going: deque[SharedWatch] = deque()

    @property
    def watches(self) -> list[SharedWatch]:
        """All there are."""
        return list(self._watches.values())

    def join(self, member: Member, topic: str, shape: PageShape, cursor: WatchCursor) -> None:
        """Put a watcher that is caught up into a batch at its cursor."""
        key = (topic, shape)
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = SharedWatch(topic, shape, self)
            self.engine.watchers.listen(topic, watch.push)
        watch.find(cursor).take(member)

    def leave(self, member: Member) -> None:
        """Remove a watcher; an empty batch, or an empty watch, is removed with it."""
        batch = member.batch
        assert batch is not None, "only a member of a batch leaves"
        batch.lose(member)
        if batch.members:
            return
        watch = batch.watch
        watch.batches.remove(batch)
        if not watch.batches:
            del self._watches[watch.topic, watch.shape]
            self.engine.watchers.leave(watch.topic, watch.push)

    def go_on(self, watch: SharedWatch) -> None:
        """Serve the other batches of a watch, with other work of the loop in between."""
        if not self._going:
            self._later(self._step)
        watch.is_going = True
        self._going.append(watch)
        self._tell_engine()

    def _tell_engine(self) -> None:
        self.engine.serving(sum(watch.audience for watch in self._going))

    def _step(self) -> None:
        """Serve a batch of one watch; the next call serves another watch."""
        watch = self._going[0]
        try:
            watch.is_going = watch.step()
        except Exception:
            _LOGGER.exception("topic %r could not be pushed to its watchers", watch.topic)
            watch.is_going = False
        self._going.popleft()
        if watch.is_going:
            self._going.append(watch)
        else:
            self._tell_engine()
        if self._going:
            self._later(self._step)
        else:
            self.engine.watchers.forget_pages()


def _offered(member: Member, frames: bytes) -> bool:
    try:
        return member.offer(frames)
    except Exception:  # served alone it fails again and is disconnected; others continue
        return False


def _always() -> bool:
    """Treat a socket that must not be used as closing."""
    return True


def _nothing() -> int:
    return 0


def _count_nothing(_size: int) -> None:
    """A member without a socket counts its own bytes."""
