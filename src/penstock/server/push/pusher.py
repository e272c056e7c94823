"""Pushes topics to one connection: topics take turns, and pause while the peer does not read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Iterator
from typing import Final, Literal

from penstock.kernel.errors import PenstockError
from penstock.protocol.watchers import ReaderState
from penstock.server.api.call import Call
from penstock.server.push import sse
from penstock.server.push.readers import Identity, Reading, Stuck, identity_of
from penstock.server.push.watching import Follower, PushEvent, named_by
from penstock.topics.core.topic import Topic
from penstock.topics.engine.watch import Behind, SharedPage

_LOGGER: Final = logging.getLogger("penstock.server")
PAGES_A_TURN_MAX: Final = 8
SLICE_NS: Final = 2_000_000
"""How many pages one peer is sent, and for how long, before others get a turn."""
LEFT_OUT_MAX: Final = 1_024
"""How many topics without room are remembered, to be followed when there is room."""


class Pusher:
    """The common part of a watch and a WebSocket.

    A page that the peer does not take whole is read again after the last event that it took.

    Subclasses define how events are sent (`send`), what happens when a topic is deleted (`lost`) or
    cannot be read (`unreadable`), how topics of a prefix are added (`admit`, `left_out`), and how
    the connection is closed after a failure (`abort`).
    """

    kind: Literal["sse", "websocket"] = "sse"
    """How it is connected."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.context = context = call.context
        self.engine = context.engine
        self.name = named_by(call.request.headers)
        self._number = next(context.reader_numbers)
        self._since_ms = context.engine.clock.now_ms()
        self.followers: dict[str, Follower] = {}
        self.is_over = False
        self._waiting: dict[str, None] = {}  # topics to push, one page of each in turn
        self._is_full = False  # they wait for the peer to read
        self._full_ms = 0  # since when
        self._is_serving = False  # or for their turn
        # An empty dict is less than a third of the size of an empty set, and most watchers use
        # neither.
        self._gone: dict[str, None] = {}
        self._left_out: dict[str, None] = {}  # topics of a prefix without room
        self._owing: dict[asyncio.Task[None], None] = {}

    def watches(self, topic: str) -> bool:
        """Whether the peer is told of a topic's records."""
        return topic in self.followers

    def end(self, farewell: sse.Farewell = sse.SHUTDOWN) -> None:
        """Tell the peer why the connection ends, and close it."""
        raise NotImplementedError

    def send(self, follower: Follower, page: SharedPage, events: list[PushEvent]) -> int:
        """Send the events of a page; returns how many the peer had room for."""
        raise NotImplementedError

    def lost(self, follower: Follower) -> bool:
        """A topic was deleted; False if there was no room to send that to the peer."""
        raise NotImplementedError

    def unreadable(self, follower: Follower, error: PenstockError) -> None:
        """The next records of a topic cannot be read: report it, and stop pushing the topic."""
        raise NotImplementedError

    def admit(self, topic: str) -> Follower | None:
        """The follower for a topic of a prefix; None if there is no room for it."""
        raise NotImplementedError

    def left_out(self, topics: list[str]) -> None:
        """Report that there is no room for topics of a prefix."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close the connection after a failure, and forget it."""
        raise NotImplementedError

    def follow(self, follower: Follower) -> None:
        """Push a topic whenever it changes; `begin` pushes the records that exist already."""
        follower.since_ms = follower.since_ms or self.engine.clock.now_ms()
        self.followers[follower.topic] = follower
        self.engine.watchers.listen(follower.topic, self.push)

    def leave(self, topic: str) -> None:
        """Stop pushing a topic."""
        if self.followers.pop(topic, None) is not None:
            self.engine.watchers.leave(topic, self.push)
            self._waiting.pop(topic, None)
            self._gone.pop(topic, None)

    def forget_gone(self, keep: Container[str] = ()) -> None:
        """Make room: drop the topics that the peer knows to be deleted."""
        topics = self.engine.registry.topics
        for topic in list(self._gone):
            if topic not in topics and topic not in keep:
                self.leave(topic)

    def take_in(self, topics: Iterable[str]) -> list[str]:
        """Push topics of a prefix, now or once there is room; returns those followed now."""
        wanted = [topic for topic in topics if topic not in self.followers]
        taken: list[str] = []
        for topic in wanted:
            follower = self.admit(topic)
            if follower is None:
                break
            self._left_out.pop(topic, None)
            self.follow(follower)
            taken.append(topic)
        left = [topic for topic in wanted[len(taken) :] if topic not in self._left_out]
        if left:
            room = LEFT_OUT_MAX - len(self._left_out)
            self._left_out |= dict.fromkeys(left[:room])
            self.left_out(left)
        return taken

    def _take_in_left_out(self) -> None:
        """Retry the topics that had no room."""
        topics = self.engine.registry.topics
        self._left_out = {topic: None for topic in self._left_out if topic in topics}
        if not self.is_over:
            self.begin(self.take_in(list(self._left_out)))

    def made_room(self) -> None:
        """Another topic may be followed now."""
        if self._left_out:
            asyncio.get_running_loop().call_soon(self._take_in_left_out)

    def leave_all(self) -> None:
        """Stop pushing all topics."""
        self.is_over = True
        if self._is_full and not self.context.draining:
            self.context.events.let_go(next(iter(self._waiting), None), self.kind)
        self._set_full(False)
        for topic in list(self.followers):
            self.leave(topic)
        for task in self._owing:
            task.cancel()

    def begin(self, topics: Iterable[str]) -> None:
        """Push existing records, after routers have delivered their backlog to the topics."""
        for topic in topics:
            if self.engine.forwarder.owes(topic):
                task = asyncio.ensure_future(self._drained(topic))
                self._owing[task] = None
                task.add_done_callback(self._owing.pop)
            else:
                self._waiting[topic] = None
        self._serve()

    def on_room(self) -> None:
        """The peer has read: continue."""
        self._set_full(False)
        self._serve()

    def push(self, topic: str) -> None:
        """Send the unsent records of a topic; called as its listener in each turn."""
        if topic in self.followers and not self.is_over:
            self._waiting.setdefault(topic)
            self._serve()

    def _serve(self) -> None:
        """Push waiting topics, one page of each in turn, for a time slice; then yield to others.

        A topic that was sent a page goes to the end of the line; one without room for its page
        stays first.
        """
        if self._is_full or self._is_serving:
            return
        self._is_serving = True
        clock = self.context.clock
        until_ns, pages = clock.monotonic_ns() + SLICE_NS, 0
        try:
            while self._waiting and self._may_push() and pages < PAGES_A_TURN_MAX:
                topic = next(iter(self._waiting))
                del self._waiting[topic]
                if self._push(topic):
                    self._waiting.setdefault(topic)
                pages += 1 if clock.monotonic_ns() < until_ns else PAGES_A_TURN_MAX
        finally:  # after any failure, later records are still pushed
            self._is_serving = bool(self._waiting) and self._may_push()
            if self._is_serving:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _may_push(self) -> bool:
        return not (self._is_full or self.is_over)

    def _go_on(self) -> None:
        self._is_serving = False
        self._serve()

    def _push(self, topic: str) -> bool:
        """Send one page of a topic; whether there may be another.

        A peer for which that fails is disconnected, so that the others get theirs.
        """
        follower = self.followers.get(topic)
        if follower is None:
            return False
        try:
            return self._push_page(follower)
        except PenstockError as error:
            self.unreadable(follower, error)
        except Exception:
            _LOGGER.exception("topic %r could not be pushed to a watcher", topic)
            self.abort()
        return False

    def _push_page(self, follower: Follower) -> bool:
        """Send one page; whether there may be another."""
        found = self.engine.registry.topics.get(follower.topic)
        if found is None:
            if not self.engine.is_arriving(follower.topic):  # else it gets a turn when it is there
                self._tell_gone(follower)
            return False
        self._gone.pop(follower.topic, None)
        self.load(follower)
        before = (follower.cursor, follower.epoch, follower.fresh, follower.told_caught_up)
        watchers, now_ms = self.engine.watchers, self.engine.clock.now_ms()
        page = watchers.page(found, follower.cursor, follower.epoch, follower.shape, now_ms)
        if page.waits:  # the topic gets another turn when its cold records are loaded
            return False
        events = follower.take(page)
        taken = self.send(follower, page, events) if events else 0
        if any(event.kind == "record" for event in events[:taken]):
            now_ms = self.engine.clock.now_ms()
            watchers.push(found, page.diff.found, 1, now_ms, follower.since_ms)
        if taken == len(events):
            self.store(follower)
            if page.diff.caught_up:
                self.arrived(follower)
            return not page.diff.caught_up
        if taken:
            follower.cursor = events[taken - 1].cursor
            follower.told_caught_up = False
            self.store(follower)
        else:
            follower.cursor, follower.epoch, follower.fresh, follower.told_caught_up = before
        self._pause(follower.topic)
        return False

    def behind(self, topic: str) -> Behind:
        """Whether the peer lacks records of a topic, and what they wait for."""
        follower, found = self.followers.get(topic), self.engine.registry.topics.get(topic)
        if follower is None or found is None:
            return Behind()
        if topic in self._waiting:
            return Behind(readers=1) if self._is_full else Behind(turns=1)
        self.load(follower)
        return Behind(loads=int(follower.cursor < found.head_seq))

    def readings(self, topic: Topic) -> Iterator[Reading]:
        """The peer itself, as a reader of a topic."""
        follower = self.followers.get(topic.name)
        if follower is not None:
            self.load(follower)
            yield Reading((self,), follower.cursor, self._state(follower, topic), follower.epoch)

    def _state(self, follower: Follower, topic: Topic) -> ReaderState:
        if topic.name in self._waiting:
            return "slow" if self._is_full else "waiting"
        return "loading" if follower.cursor < topic.head_seq else "ok"

    def stuck(self) -> Stuck | None:
        """What the peer does not read, and since when; None if it reads, or lacks nothing."""
        topic = next(iter(self._waiting), None)
        return Stuck(topic, self._full_ms) if self._is_full and topic is not None else None

    def identity(self) -> Identity:
        """What is known of the peer."""
        return identity_of(self._call, self.kind, self._number, self.name, self._since_ms)

    def arrived(self, follower: Follower) -> None:
        """The peer has received every record of a topic."""

    def load(self, follower: Follower) -> None:
        """Load the cursor from shared state; here it belongs to the follower."""

    def store(self, follower: Follower) -> None:
        """Store the cursor in shared state; here it belongs to the follower."""

    @property
    def all_gone(self) -> bool:
        """Whether every topic was deleted."""
        return all(topic in self._gone for topic in self.followers)

    def _tell_gone(self, follower: Follower) -> None:
        if follower.topic in self._gone:
            return
        self._gone[follower.topic] = None
        if self.lost(follower):
            self.made_room()
        else:
            self._gone.pop(follower.topic, None)
            self._pause(follower.topic)

    def _pause(self, topic: str) -> None:
        if not self.is_over:
            self._set_full(True)
            self._waiting = {topic: None, **self._waiting}

    def _set_full(self, is_full: bool) -> None:
        """Note whether the peer does not read, and count it among those that do not."""
        if is_full and not self._is_full:
            self._full_ms = self.engine.clock.now_ms()
        self.engine.watchers.slow += is_full - self._is_full
        self._is_full = is_full

    async def _drained(self, topic: str) -> None:
        await self.engine.forwarder.drain(topic)
        self.push(topic)
