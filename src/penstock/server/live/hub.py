"""Keeps the pages that are looked at fresh: asks for their sections once a second, tells viewers.

Nothing runs while no page is open. A section that takes long is asked for in the background: the
frame does without it, and no other section waits. A viewer that does not read is not written to; it
gets one frame with everything when it reads again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from penstock.kernel.errors import PenstockError
from penstock.protocol.pages import EVENTS, HISTORY, PEEK, RESUME_MS
from penstock.server.api.answers import encode
from penstock.server.api.auth import Grant
from penstock.server.live.ask import (
    WouldWait,
    answer_to,
    ask,
    at_once,
    error_of,
    section,
    trimmed,
)
from penstock.server.live.channels import (
    Address,
    Channel,
    Compared,
    Question,
    Rights,
    SharedSection,
    rights_of,
)
from penstock.server.live.frames import PUSH, SET, Change, is_error, later_points
from penstock.server.live.twins import Twins, newest

TICK_S: Final = 1.0
PATIENCE_S: Final = 0.4
"""How long a frame waits for a section."""
SLICE_NS: Final = 500_000
"""How long the loop is held at a time; what is to be pushed waits meanwhile."""
TASK_NS: Final = 50_000
"""What the beginning of a task counts of a slice."""
PAUSE: Final = 0.004
PAUSES_MAX: Final = 50
"""The share of a tick from one slice to the next, and how many there are at most: asked for without
pauses, the sections of ten pages held up all that was to be pushed meanwhile."""
BEGIN_S: Final = 1.0
"""How long the first event of a stream waits for a section: a returning client wants to see it."""
LATER: Final = {"error": {"code": "later", "message": "It is being looked up."}}
"""What stands for a section that takes longer; a frame brings it."""
PEEK_S: Final = 0.25
TURN: Final = 10
"""Viewers that are told before others get the loop."""
OVERLAP_MS: Final = 2_000
"""Points are told again this far back after a gap; viewers drop those that they have."""
EVENTS_PATH: Final = "/v0/events"
_LOGGER: Final = logging.getLogger("penstock.server")


Told = dict[SharedSection, Compared]


class Place(NamedTuple):
    """Up to where a viewer was told: the time of its last frame, and the last event."""

    at_ms: int
    event: int


class Viewer(Protocol):
    """One stream of a browser, as the hub sees it."""

    def tell(self, channel: Channel, event: bytes, data: bytes) -> bool:
        """Send an event; False if the viewer does not read, and got nothing."""

    async def room(self) -> None:
        """Wait until it reads again."""


class Missed(NamedTuple):
    """What a viewer was not told: points of history by section, and events."""

    grown: dict[str, Change]
    events: list[dict[str, Any]]


class Hub:
    """All channels of one server."""

    def __init__(self, twins: Twins, *, tick_s: float = TICK_S, peek_s: float = PEEK_S) -> None:
        self.twins = twins
        self._tick_s, self._peek_s = tick_s, peek_s
        self.context = twins.context
        self.at_ms = 0
        """Of when the values of sections are."""
        self.last_event = 0
        """Up to where events were told to all viewers. One that joins may know more: it drops those
        that it has."""
        self.channels: dict[tuple[Address, Rights], Channel] = {}
        self._sections: dict[tuple[Any, Rights], SharedSection] = {}
        self._asked: dict[Question, asyncio.Task[Told]] = {}
        self._at_once: Told = {}
        """What was told of this tick's sections as they were asked for."""
        self._ticks = 0
        self._moves = 0
        """How often the values of sections have moved on."""
        self._tasks: list[asyncio.Task[None]] = []

    # Viewers come and go

    async def join(
        self, viewer: Viewer, address: Address, grant: Grant | None, after: Place | None
    ) -> Channel:
        """Let a viewer look at a page: it is told the state, or what it missed after a place."""
        channel = self._open(address, grant)
        try:
            while not await self._begin(viewer, channel, after):
                await viewer.room()
        except BaseException:
            self._release(channel)
            raise
        self.told_all(viewer, channel)
        return channel

    def told_all(self, viewer: Viewer, channel: Channel) -> None:
        """A viewer knows the values of now: frames that are under way are not for it."""
        channel.viewers[viewer] = self._moves

    async def _begin(self, viewer: Viewer, channel: Channel, after: Place | None) -> bool:
        """Tell a viewer its first events; False if it does not read."""
        await self._know(channel)
        self._follow(channel)
        if after is None:
            grown = await self._growing(channel)
            return viewer.tell(channel, b"state", channel.state(self.at_ms, grown))
        missed = await self.missed(channel, after)
        return all(viewer.tell(channel, *piece) for piece in self.missing(channel, missed))

    def leave(self, viewer: Viewer, channel: Channel) -> None:
        """A viewer is gone."""
        if viewer in channel.viewers:
            del channel.viewers[viewer]
            self._release(channel)

    @property
    def is_busy(self) -> bool:
        """Whether it asks for anything."""
        return bool(self._tasks)

    def may_resume(self, place: Place) -> bool:
        """Whether what happened since a place can still be told."""
        return 0 <= self.context.clock.now_ms() - place.at_ms <= RESUME_MS

    async def missed(self, channel: Channel, after: Place) -> Missed:
        """What a viewer was not told since a place, besides the values of plain sections."""
        grown: dict[str, Change] = {}
        since_ms = after.at_ms - OVERLAP_MS
        for name, shown in channel.sections.items():
            if shown.kind == HISTORY:
                value = await section(self.context, shown.grant, shown.source, since_ms=since_ms)
                points = {} if is_error(value) else later_points(value, since_ms)
                if points:
                    grown[name] = {PUSH: points}
        return Missed(grown, await self._events(channel.grant, after.event))

    def missing(self, channel: Channel, missed: Missed) -> Iterator[tuple[bytes, bytes]]:
        """The events of what a viewer missed, with their data; the next frame fits on them."""
        yield b"frame", channel.again(self.at_ms, missed.grown)
        for event in missed.events:
            yield b"event", channel.told(encode(event)[1:-1])

    # Channels

    def _open(self, address: Address, grant: Grant | None) -> Channel:
        """The channel of a page, made if need be; it is there until it is released as often."""
        rights = rights_of(grant)
        channel = self.channels.get((address, rights))
        if channel is None:
            channel = Channel(address, grant, self.twins.facts(address))
            self.channels[address, rights] = channel
            for source in address.sources():
                key = source, rights
                shown = self._sections.get(key)
                if shown is None:
                    shown = self._sections[key] = SharedSection(source, grant)
                shown.users += 1
                channel.sections[source.section.name] = shown
        channel.opened += 1
        if not self._tasks:
            self.last_event = self.context.events.last_id
            self._tasks = [
                asyncio.ensure_future(self._repeat(self._tick_s, self._advance)),
                asyncio.ensure_future(self._repeat(self._peek_s, self._look)),
            ]
        return channel

    def _release(self, channel: Channel) -> None:
        channel.opened -= 1
        if channel.opened:
            return
        rights = rights_of(channel.grant)
        del self.channels[channel.address, rights]
        for shown in channel.sections.values():
            shown.users -= 1
            if not shown.users:
                del self._sections[shown.source, rights]
                self._drop(shown.question)
        if not self.channels:
            self.close()

    def _drop(self, question: Question) -> None:
        """Ask no more, if no section that is left shows the answer."""
        if question in self._asked and all(
            shown.question != question for shown in self._sections.values()
        ):
            self._asked.pop(question).cancel()

    def close(self) -> None:
        """Stop asking."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def _know(self, channel: Channel) -> None:
        """Ask for the sections of a channel that no tick has asked for yet."""
        asked = {
            shown: asyncio.ensure_future(
                self.twins.value(channel.address, shown.source, shown.grant)
            )
            for shown in channel.plain()
            if not shown.is_known
        }
        if asked:
            await asyncio.wait(asked.values(), timeout=BEGIN_S)
        for shown, task in asked.items():
            if task.done():
                shown.begin(task.result())
            elif shown.users and not shown.is_known and shown.question not in self._asked:
                shown.begin(LATER)
                self._asked[shown.question] = asyncio.ensure_future(_late(shown, task))
            else:
                task.cancel()
        if not self.at_ms or len(self.channels) == 1:
            self.at_ms = self.context.clock.now_ms()

    async def _growing(self, channel: Channel) -> dict[str, Any]:
        """The sections that only grow, as they are now."""
        found: dict[str, Any] = {}
        for name, shown in channel.sections.items():
            if shown.kind in (HISTORY, EVENTS):
                found[name] = await self.twins.value(channel.address, shown.source, shown.grant)
                shown.begin(found[name])
        for name, shown in channel.sections.items():
            if shown.kind == PEEK:
                now_ms = self.context.clock.now_ms()
                peek = channel.peek
                found[name] = channel.peek_error if peek is None else newest(peek, now_ms)
        return found

    def _follow(self, channel: Channel) -> None:
        """Look at the records of a channel's topic from now on, if its page shows them."""
        if channel.peek is None and any(each.kind == PEEK for each in channel.sections.values()):
            try:
                channel.peek = self.twins.peek(channel.address, channel.grant)
            except PenstockError as error:
                channel.peek_error = error_of(self.context, error)

    # Once a second

    async def _repeat(self, every_s: float, work: Any) -> None:
        """Do something at a steady pace, while there are channels."""
        loop = asyncio.get_running_loop()
        next_s = loop.time() + every_s
        while True:
            await asyncio.sleep(max(0.0, next_s - loop.time()))
            next_s = max(next_s + every_s, loop.time())
            try:
                await work()
            except Exception:
                _LOGGER.exception("a frame of the dashboard failed")

    async def _advance(self) -> None:
        """One tick: ask for what is due, and tell every viewer what changed."""
        self._ticks += 1
        told = await self._told()
        # No await from here to the list of frames: a viewer that joins meanwhile would be told
        # values, and then the change that led to them.
        self._moves += 1
        for shown in self._sections.values():
            shown.rest()
        for shown, value in told.items():
            shown.advance(value, self._ticks)
        self.at_ms = self.context.clock.now_ms()
        frames = [
            (channel, self._frame(channel), list(channel.viewers))
            for channel in self.channels.values()
        ]
        await asyncio.sleep(0)
        await self._tell_all(b"frame", frames, self._moves)

    def _frame(self, channel: Channel) -> bytes:
        """The frame of a channel. If there cannot be one, the next has its sections whole."""
        try:
            return channel.frame(self.at_ms)
        except Exception:
            _LOGGER.exception("a frame of the dashboard failed")
            for shown in channel.sections.values():
                shown.lose()
            return channel.nothing(self.at_ms)

    async def _told(self) -> Told:
        """The sections that are due and were told in time; others are waited for by later ticks."""
        await self._ask_due()
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=PATIENCE_S)
        found, self._at_once = self._at_once, {}
        for question, task in [each for each in self._asked.items() if each[1].done()]:
            del self._asked[question]
            try:
                found |= task.result()
            except Exception:
                _LOGGER.exception("section %s of the dashboard failed", question.path)
        return found

    async def _ask_due(self) -> None:
        """Ask for the sections that are due: a slice of the loop, a pause, and so on."""
        due: dict[Question, list[SharedSection]] = {}
        for shown in self._sections.values():
            if shown.is_due(self._ticks) and shown.question not in self._asked:
                due.setdefault(shown.question, []).append(shown)
        now_ns, pauses = self.context.clock.monotonic_ns, 0
        until_ns = now_ns() + SLICE_NS
        waiting_first = sorted(due.items(), key=_waits, reverse=True)
        for question, asking in waiting_first:
            if pauses < PAUSES_MAX and now_ns() >= until_ns:
                pauses += 1
                await asyncio.sleep(self._tick_s * PAUSE)
                until_ns = now_ns() + SLICE_NS
            until_ns -= self._begin_asking(question, [each for each in asking if each.users])

    def _begin_asking(self, question: Question, asking: list[SharedSection]) -> int:
        """Ask for sections with the same answer; how long work takes that only begins with it."""
        if not asking or question in self._asked:
            return 0
        if not asking[0].waits:
            try:
                self._at_once |= at_once(self._ask(asking))
            except WouldWait:
                for shown in asking:
                    shown.waits = True
            else:
                return 0
        self._asked[question] = asyncio.ensure_future(self._ask(asking))
        return TASK_NS

    async def _ask(self, asking: list[SharedSection]) -> Told:
        """Sections with the same answer as they are now."""
        first = asking[0]
        since_ms = first.since_ms - OVERLAP_MS if first.kind == HISTORY else None
        answer = await answer_to(self.context, first.grant, first.source, since_ms=since_ms)
        return {shown: _compared(shown, trimmed(shown.source.section, answer)) for shown in asking}

    async def _tell_events(self) -> None:
        """Tell what happened since the last time, to each as much as it may know."""
        by_rights: dict[Rights, list[Channel]] = {}
        for channel in self.channels.values():
            by_rights.setdefault(rights_of(channel.grant), []).append(channel)
        after, newest_id = self.last_event, self.last_event
        for channels in by_rights.values():
            for event in await self._events(channels[0].grant, after):
                newest_id = max(newest_id, event["id"])
                members = encode(event)[1:-1]
                told = [(each, each.told(members), list(each.viewers)) for each in channels]
                await self._tell_all(b"event", told)
        self.last_event = max(self.last_event, newest_id)

    async def _events(self, grant: Grant | None, after: int) -> list[dict[str, Any]]:
        """What happened after an event, oldest first."""
        try:
            page = await ask(self.context, grant, EVENTS_PATH, f"after_id={after}&limit=100")
        except PenstockError:
            return []
        return [event for event in reversed(page["events"]) if event["id"] > after]

    # Four times a second

    async def _look(self) -> None:
        """Tell viewers what has happened, and those of topics the newest records."""
        if self.context.events.last_id > self.last_event:
            await self._tell_events()
        await self._peek()

    async def _peek(self) -> None:
        now_ms = self.context.clock.now_ms()
        frames = []
        for channel in self.channels.values():
            members = None if channel.peek is None else channel.peek.look(now_ms)
            if members is not None:
                frames.append((channel, channel.told(members), list(channel.viewers)))
        await self._tell_all(b"peek", frames)

    async def _tell_all(
        self, event: bytes, frames: list[tuple[Channel, bytes, list[Any]]], moves: int | None = None
    ) -> None:
        """Tell viewers; frames of a move only those that were not told of it meanwhile."""
        for n, (channel, data, viewer) in enumerate(_each(frames)):
            if n and n % TURN == 0:
                await asyncio.sleep(0)
            known = channel.viewers.get(viewer)
            if known is not None and (moves is None or known < moves):
                viewer.tell(channel, event, data)


def _waits(due: tuple[Question, list[SharedSection]]) -> bool:
    return due[1][0].waits


async def _late(shown: SharedSection, value: Awaitable[Any]) -> Told:
    """A section that was asked for as a page began, and took long."""
    return {shown: _compared(shown, await value)}


def _compared(shown: SharedSection, value: Any) -> Compared:
    """What a section is told to be now; whole, if what changed cannot be said."""
    try:
        return shown.compared(value)
    except Exception:
        _LOGGER.exception("section %s of the dashboard is told whole", shown.source.path)
        return Compared(value, {SET: value}, 0)


def _each(
    frames: list[tuple[Channel, bytes, list[Any]]],
) -> Iterator[tuple[Channel, bytes, Any]]:
    for channel, data, viewers in frames:
        for viewer in viewers:
            yield channel, data, viewer
