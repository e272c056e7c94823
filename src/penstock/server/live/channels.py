"""What is looked at: sections that pages share, and the channels of pages that viewers share.

No IO. The hub asks for sections and hands in what it was told; a channel's frame is encoded once,
for everything that looks at the same page with the same rights.

All sections advance together, in ticks: a viewer that joins between two ticks gets the values of
the last one, and the next frame fits on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.kernel.units import KIB
from penstock.protocol.pages import EVENTS, HISTORY, NAV, PEEK, Page, Source, sources
from penstock.server.api.answers import encode
from penstock.server.api.auth import Grant
from penstock.server.live.frames import PUSH, SET, Change, changes, joined, last_time, later_points
from penstock.server.live.peek import Peek

REST_BYTES: Final = 2 * KIB
"""A section whose change is larger rests a tick for each of these: so frames stay small."""
REST_TICKS_MAX: Final = 4
"""It rests no longer, however much changed: a page says of everything that it is of now."""

Rights = tuple[int, tuple[str, ...]] | None
"""What two keys must have in common to be told the same: scopes and prefixes."""
GROWING: Final = (HISTORY, EVENTS, PEEK)
"""Kinds of sections that a viewer is told when it joins, and that then only grow."""


def rights_of(grant: Grant | None) -> Rights:
    """The rights of a key, without its identity."""
    return None if grant is None else (grant.scopes, grant.prefixes)


class Address(NamedTuple):
    """A page as a viewer asked for it; `on` names it in every event."""

    on: str
    page: Page
    names: tuple[tuple[str, str], ...]
    query: tuple[tuple[str, str], ...]

    def sources(self) -> list[Source]:
        """Where its sections come from."""
        return sources(self.page, dict(self.names), dict(self.query))


class Question(NamedTuple):
    """What is asked for one section, or for several that show the same answer."""

    path: str
    query: str
    rights: Rights
    alone: str
    """The section's name, if its answer is no other's: one since a time of its own, or of many."""


class Compared(NamedTuple):
    """A new value of a section, and how it differs from the one before."""

    value: Any
    change: Change
    rests: int
    """For how many ticks a change of that size lets the section rest."""


class SharedSection:
    """One section, for all channels that show it with the same rights."""

    def __init__(self, source: Source, grant: Grant | None) -> None:
        self.source, self.grant = source, grant
        section = source.section
        alone = section.name if section.since or section.kind == NAV else ""
        self.question = Question(source.path, source.query, rights_of(grant), alone)
        self.waits = False
        """Whether its answer was seen to wait for something."""
        self.users = 0
        self.is_known = False
        self.value: Any = None
        self.change: Change = {}
        """How it changed at the last tick."""
        self.since_ms = 0
        """For history: the time of its last point."""
        self._rests_until = 0
        self._told_ms = 0
        """`since_ms` before the last tick."""
        self._is_unsure = False
        """Whether viewers may lack its last change."""

    @property
    def kind(self) -> str:
        """Of which kind it is."""
        return self.source.section.kind

    def is_due(self, tick: int) -> bool:
        """Whether the hub should ask for it at a tick."""
        every = self.source.section.every_s
        return (
            self.is_known
            and self.kind not in (EVENTS, PEEK)
            and every > 0
            and tick % every == 0
            and tick >= self._rests_until
        )

    def begin(self, value: Any) -> None:
        """Its first value, unless it has one."""
        if not self.is_known:
            self.is_known = True
            self.since_ms = last_time(value)
            self.value = value

    def rest(self) -> None:
        """A tick begins: it has not changed, as far as viewers know what it was."""
        self._told_ms = self.since_ms
        self.change = {SET: self.value} if self._is_unsure else {}
        self._is_unsure = False

    def lose(self) -> None:
        """Its change was not told: the next one is told whole, and points again."""
        if self.kind == HISTORY:
            self.since_ms = self._told_ms
        else:
            self._is_unsure = self.kind not in GROWING

    def compared(self, value: Any) -> Compared:
        """A value that was told, with what differs. Only `advance` makes it the section's."""
        if self.kind == HISTORY:
            return Compared(value, {}, 0)
        change = changes(self.value, value)
        return Compared(value, change, min(REST_TICKS_MAX, len(encode(change)) // REST_BYTES))

    def advance(self, told: Compared, tick: int) -> None:
        """Take the value of a tick."""
        if self.kind == HISTORY:
            self._grow(told.value)
            return
        self.change = {SET: told.value} if SET in self.change else told.change
        self.value = told.value
        if self.change:
            self._rests_until = tick + 1 + told.rests

    def _grow(self, value: Any) -> None:
        points = later_points(value, self.since_ms) if isinstance(value, dict) else {}
        self.since_ms = last_time(points) or self.since_ms
        self.change = {PUSH: points} if points else {}


class Channel:
    """One page as all viewers with the same rights see it."""

    def __init__(self, address: Address, grant: Grant | None, facts: Mapping[str, Any]) -> None:
        self.address, self.grant, self.facts = address, grant, facts
        self.sections: dict[str, SharedSection] = {}
        self.viewers: dict[Any, int] = {}
        """Each with the move of the values that it was last told of whole."""
        self.opened = 0
        """How many viewers there are, those included that are not told the state yet."""
        self.peek: Peek | None = None
        """What follows the records of its topic."""
        self.peek_error: Any = None
        """Why nothing does."""
        self._on = encode(address.on)

    def plain(self) -> list[SharedSection]:
        """The sections that frames replace or change."""
        return [shown for shown in self.sections.values() if shown.kind not in GROWING]

    def frame(self, at_ms: int) -> bytes:
        """What changed at the last tick, as the data of a `frame`."""
        parts = ((name, shown.change) for name, shown in self.sections.items() if shown.change)
        return self.told(encode({"at": at_ms, **joined(parts)})[1:-1])

    def nothing(self, at_ms: int) -> bytes:
        """A frame that only says that the server is there."""
        return self.told(b'"at":%d' % at_ms)

    def told(self, members: bytes) -> bytes:
        """Members as the data of an event of this page."""
        return b'{"on":%b,%b}' % (self._on, members)

    def state(self, at_ms: int, grown: Mapping[str, Any]) -> bytes:
        """The whole twin; `grown` are the sections of growing kinds."""
        return encode(self.twin(at_ms, grown))

    def twin(self, at_ms: int, grown: Mapping[str, Any]) -> dict[str, Any]:
        """The same as an object."""
        values = {name: grown.get(name, shown.value) for name, shown in self.sections.items()}
        return {"on": self.address.on, **self.facts, "at": at_ms, "sections": values}

    def again(self, at_ms: int, grown: Mapping[str, Change]) -> bytes:
        """A frame for a viewer that missed some: every plain section, and what others grew by."""
        plain = (
            (name, {SET: shown.value})
            for name, shown in self.sections.items()
            if shown.kind not in GROWING
        )
        return self.told(encode({"at": at_ms, **joined((*plain, *grown.items()))})[1:-1])
