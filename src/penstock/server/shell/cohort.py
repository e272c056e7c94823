"""Watchers of one topic that have everything and want the same, served together.

Most watchers of a busy topic watch it alone, want the same fields, and have everything up to its
head. They stand in ranks. A rank has one cursor: what it gets is read, encoded and dressed once,
and then only written, to each of its watchers. Ranks take turns, and the loop reads and answers
requests in between; each gets all that was committed up to its own turn. So a record waits for one
round at most, however many come meanwhile. Whoever falls out of step leaves and is served alone
until it is at the head again.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.kernel.errors import PenstockError
from penstock.server import sse
from penstock.server.message import Direct, as_chunk
from penstock.topics.shell.engine import Engine
from penstock.topics.shell.watch import Behind, Page, Shape
from penstock.topics.topic import Topic

RANK_MEMBERS_MAX: Final = 100
"""So many are written to before the loop does something else."""

_LOGGER: Final = logging.getLogger("penstock.server")
_Line = tuple[Callable[[], bool], Callable[[], int], int, "Member"]
Later = Callable[[Callable[[], None]], object]
"""Has something called in the next turn of the loop."""


class Stand(NamedTuple):
    """Where a watcher stands, and whether it knows that this is the head."""

    cursor: int
    epoch: int
    told_caught_up: bool = True


class Member(Protocol):
    """A watcher in a cohort. `rank` is where it stands, None while it is served alone."""

    rank: Rank | None

    def offer(self, frames: bytes) -> bool:
        """Send bytes; False if the peer has no room and none were taken."""
        ...

    def direct(self) -> Direct | None:
        """The socket itself; None if it must not be used."""
        ...

    def rest(self, data: memoryview) -> None:
        """Send what the socket itself did not take."""
        ...

    def left_behind(self, stand: Stand) -> None:
        """It is in the cohort no more, and stands here. It is to be served alone, at once."""
        ...


class Rank:
    """Watchers who stand at one place."""

    __slots__ = ("_count", "_lines", "cohort", "members", "spoke_s", "stand")

    def __init__(self, cohort: Cohort, stand: Stand) -> None:
        self.cohort = cohort
        self.stand = stand
        self.members: dict[Member, None] = {}
        self.spoke_s = 0.0
        self._lines: list[_Line] = []  # empty when they are to be made anew
        self._count: Callable[[int], None] = _count_nothing

    @property
    def topic(self) -> str:
        """The topic they watch."""
        return self.cohort.topic

    def take(self, member: Member) -> None:
        """Have a watcher stand here."""
        self.members[member] = None
        member.rank = self
        self._lines = []

    def lose(self, member: Member) -> None:
        """A watcher stands here no more."""
        member.rank = None
        del self.members[member]
        self._lines = []

    def write(self, frames: bytes) -> list[Member]:
        """Send bytes to each; those who took none.

        Past all that a watcher is made of: what is written to a socket leaves little in the
        caches, and every object that has to be looked at costs.
        """
        chunk = as_chunk(frames)
        size, slow, behind = len(chunk), 0, []
        lines = self._lines or self._line_up()
        for is_closing, unsent, fd, member in lines:
            if not (is_closing() or unsent()):
                try:
                    sent = os.write(fd, chunk)
                except OSError:
                    sent = 0  # the stream meets the same, and knows what to do
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
        """Whether there is something they do not have."""
        cursor, epoch, _ = self.stand
        return cursor != topic.head_seq or epoch != topic.told_epoch

    def is_beside(self, other: Rank) -> bool:
        """Whether both stand at one place and are few enough to be one."""
        few = len(self.members) + len(other.members) <= RANK_MEMBERS_MAX
        return few and self.stand == other.stand


class Cohort:
    """Watchers of one topic and one shape, in ranks. The first rank was served longest ago."""

    def __init__(self, topic: str, shape: Shape, cohorts: Cohorts) -> None:
        self.topic = topic
        self.shape = shape
        self.ranks: deque[Rank] = deque()
        self.is_going = False  # ranks have their turn before them
        self._cohorts = cohorts
        self._engine = cohorts.engine

    @property
    def audience(self) -> int:
        """How many watchers this listener stands for."""
        return sum(len(rank.members) for rank in self.ranks)

    def behind(self, _topic: str) -> Behind:
        """How many of them do not have all that is there, and get it when it is their turn."""
        topic = self._engine.registry.topics.get(self.topic)
        if topic is None:
            return Behind()
        return Behind(sum(len(rank.members) for rank in self.ranks if rank.is_behind(topic)))

    def push(self, _topic: str) -> None:
        """The topic's turn. If ranks are being served one after another, they go on with it."""
        if not self.is_going and self.step():
            self._cohorts.go_on(self)

    def step(self) -> bool:
        """Serve one rank, or several that are small; whether others are still behind."""
        topic = self._engine.registry.topics.get(self.topic)
        if topic is None:
            for rank in tuple(self.ranks):
                self._dissolve(rank)
            return False
        written, last = 0, None
        for rank in tuple(self.ranks):
            if written >= RANK_MEMBERS_MAX:
                break
            if not rank.members or not rank.is_behind(topic):
                continue
            written += len(rank.members)
            self.ranks.remove(rank)
            self.ranks.append(rank)
            self._serve(rank, topic)
            if not rank.members:
                continue  # all of them fell behind, and the rank is gone with them
            if last is not None and last.members and last.is_beside(rank):
                self._merge(rank, last)
            else:
                last = rank
        return any(rank.is_behind(topic) for rank in self.ranks)

    def find(self, stand: Stand) -> Rank:
        """A rank at a place that has room for one more."""
        for rank in reversed(self.ranks):
            if rank.stand == stand and len(rank.members) < RANK_MEMBERS_MAX:
                return rank
        self.ranks.append(Rank(self, stand))
        return self.ranks[-1]

    def _serve(self, rank: Rank, topic: Topic) -> None:
        """Send a rank what it does not have, a page at most."""
        before = rank.stand
        now_ms, find = self._engine.clock.now_ms(), self._engine.watchers.page
        try:
            page = find(topic, before.cursor, before.epoch, self.shape, now_ms)
        except PenstockError:  # each of them is told why, when it is served alone
            self._dissolve(rank)
            return
        diff = page.diff
        if page.waits or diff.tombstone is not None:
            self._dissolve(rank)
            return
        is_news = bool(diff.found.records) or not before.told_caught_up
        told = diff.caught_up if is_news else True
        rank.stand = Stand(diff.next_from_seq, before.epoch, told)
        frames = self._frames(page, before) if is_news else b""
        if frames:
            self._send(rank, frames, before)

    def _frames(self, page: Page, before: Stand) -> bytes:
        """The events of a page: records, and that these are all, for who does not know it."""
        frames = page.frames.get(before)
        if frames is not None:
            return frames
        diff = page.diff
        event_id = sse.event_id({self.topic: diff.next_from_seq})
        frames = b""
        if diff.found.records:
            data = sse.record_data(self.topic, page.records, before.cursor, diff)
            frames = sse.frame(event_id, b"record", data)
        if diff.caught_up:
            caught_up = sse.caught_up_data(self.topic, diff)
            frames += sse.frame(event_id, b"caught-up", caught_up)
        page.frames[before] = frames
        return frames

    def _send(self, rank: Rank, frames: bytes, before: Stand) -> None:
        rank.spoke_s = self._cohorts.now_s()
        for member in rank.write(frames):
            if member in rank.members:
                self._cohorts.leave(member)
                member.left_behind(before)

    def _merge(self, rank: Rank, into: Rank) -> None:
        for member in tuple(rank.members):
            rank.lose(member)
            into.take(member)
        self.ranks.remove(rank)

    def _dissolve(self, rank: Rank) -> None:
        for member in tuple(rank.members):
            if member.rank is rank:
                self._cohorts.leave(member)
                member.left_behind(rank.stand)


class Cohorts:
    """Every cohort of a server, by topic and shape, and those whose ranks take turns now."""

    def __init__(self, engine: Engine, now_s: Callable[[], float], later: Later) -> None:
        self.engine = engine
        self.now_s = now_s
        self._later = later
        self._cohorts: dict[tuple[str, Shape], Cohort] = {}
        self._going: deque[Cohort] = deque()

    @property
    def cohorts(self) -> list[Cohort]:
        """All there are."""
        return list(self._cohorts.values())

    def join(self, member: Member, topic: str, shape: Shape, stand: Stand) -> None:
        """Put a watcher that is caught up into a rank at its place."""
        key = (topic, shape)
        cohort = self._cohorts.get(key)
        if cohort is None:
            cohort = self._cohorts[key] = Cohort(topic, shape, self)
            self.engine.watchers.listen(topic, cohort.push)
        cohort.find(stand).take(member)

    def leave(self, member: Member) -> None:
        """Take a watcher out; the last one takes its rank, or the cohort, with it."""
        rank = member.rank
        assert rank is not None, "who leaves is in a rank"
        rank.lose(member)
        if rank.members:
            return
        cohort = rank.cohort
        cohort.ranks.remove(rank)
        if not cohort.ranks:
            del self._cohorts[cohort.topic, cohort.shape]
            self.engine.watchers.leave(cohort.topic, cohort.push)

    def go_on(self, cohort: Cohort) -> None:
        """Serve the other ranks of a cohort, with other things of the loop in between."""
        if not self._going:
            self._later(self._step)
        cohort.is_going = True
        self._going.append(cohort)
        self._tell_engine()

    def _tell_engine(self) -> None:
        self.engine.serving(sum(cohort.audience for cohort in self._going))

    def _step(self) -> None:
        """Serve a rank of one cohort; the next time it is another cohort's turn."""
        cohort = self._going[0]
        try:
            cohort.is_going = cohort.step()
        except Exception:
            _LOGGER.exception("topic %r could not be pushed to its watchers", cohort.topic)
            cohort.is_going = False
        self._going.popleft()
        if cohort.is_going:
            self._going.append(cohort)
        else:
            self._tell_engine()
        if self._going:
            self._later(self._step)
        else:
            self.engine.watchers.forget_pages()


def _offered(member: Member, frames: bytes) -> bool:
    try:
        return member.offer(frames)
    except Exception:  # served alone it fails again, and is let go; the others get theirs
        return False


def _always() -> bool:
    """A socket that must not be used might as well be closing."""
    return True


def _nothing() -> int:
    return 0


def _count_nothing(_size: int) -> None:
    """Whoever has no socket counts for itself."""
