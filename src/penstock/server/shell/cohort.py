"""Watchers that stand at one place and want the same, served as one.

Most watchers of a busy topic watch it alone, want the same fields, and have everything up to its
head. Such a cohort has one cursor; a push is read, encoded and dressed once, and then only written,
to each of them. Whoever falls out of step leaves and is served alone until it is at the head again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.server import sse
from penstock.topics.shell.engine import Engine
from penstock.topics.shell.watch import Page, Shape


class Member(Protocol):
    """A watcher in a cohort."""

    def offer(self, frames: bytes) -> bool:
        """Send bytes; False if the peer has no room and none were taken."""
        ...

    def left_behind(self, cursor: int, epoch: int) -> None:
        """It is in the cohort no more, and stands here. It is to be served alone, at once."""
        ...


class Cohort:
    """Watchers of one topic and one shape, all at one cursor, all told that they are caught up."""

    def __init__(self, topic: str, shape: Shape, cohorts: Cohorts) -> None:
        self.topic = topic
        self.shape = shape
        self.cursor = 0
        self.epoch = 0
        self.spoke_s = 0.0
        self.members: dict[Member, None] = {}
        self._cohorts = cohorts
        self._engine = cohorts.engine

    @property
    def audience(self) -> int:
        """How many watchers this listener stands for."""
        return len(self.members)

    def push(self, _topic: str) -> None:
        """The topic's turn."""
        engine = self._engine
        found = engine.registry.topics.get(self.topic)
        if found is None:
            self._dissolve()
            return
        page = engine.watchers.page(
            found, self.cursor, self.epoch, self.shape, engine.clock.now_ms()
        )
        diff = page.diff
        if page.waits or diff.tombstone is not None or not diff.caught_up:
            self._dissolve()
            return
        before, self.cursor = self.cursor, diff.next_from_seq
        if diff.found.records:
            self._send(self._frames(page, before), before)

    def _frames(self, page: Page, from_seq: int) -> bytes:
        diff = page.diff
        event_id = sse.event_id({self.topic: diff.next_from_seq})
        data = sse.record_data(
            self.topic,
            page.records,
            from_seq=from_seq,
            to_seq=diff.next_from_seq,
            head_seq=diff.head_seq,
        )
        caught_up = sse.caught_up_data(self.topic, diff.head_seq)
        return sse.frame(event_id, b"record", data) + sse.frame(event_id, b"caught-up", caught_up)

    def _send(self, frames: bytes, before: int) -> None:
        self.spoke_s = self._cohorts.now_s()
        behind = []
        for member in self.members:
            try:
                taken = member.offer(frames)
            except Exception:  # served alone it fails again, and is let go; the others get theirs
                taken = False
            if not taken:
                behind.append(member)
        for member in behind:
            if member in self.members:
                self._cohorts.leave(member, self)
                member.left_behind(before, self.epoch)

    def _dissolve(self) -> None:
        for member in list(self.members):
            self._cohorts.leave(member, self)
            member.left_behind(self.cursor, self.epoch)


class Cohorts:
    """Every cohort of a server, by topic and shape."""

    def __init__(self, engine: Engine, now_s: Callable[[], float]) -> None:
        self.engine = engine
        self.now_s = now_s
        self._cohorts: dict[tuple[str, Shape], Cohort] = {}

    def join(
        self, member: Member, topic: str, shape: Shape, *, cursor: int, epoch: int
    ) -> Cohort | None:
        """Put a watcher that is caught up into the cohort of its place; None if it is elsewhere."""
        key = (topic, shape)
        cohort = self._cohorts.get(key)
        if cohort is None:
            cohort = self._cohorts[key] = Cohort(topic, shape, self)
            cohort.cursor, cohort.epoch = cursor, epoch
            self.engine.watchers.listen(topic, cohort.push)
        elif (cohort.cursor, cohort.epoch) != (cursor, epoch):
            return None  # its own push of this turn is still to come
        cohort.members[member] = None
        return cohort

    def leave(self, member: Member, cohort: Cohort) -> None:
        """Take a watcher out; the last one takes the cohort with it."""
        cohort.members.pop(member, None)
        if not cohort.members and self._cohorts.get((cohort.topic, cohort.shape)) is cohort:
            del self._cohorts[cohort.topic, cohort.shape]
            self.engine.watchers.leave(cohort.topic, cohort.push)
