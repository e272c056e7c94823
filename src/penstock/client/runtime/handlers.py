"""Which function handles which type of event, and in which lane."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import Any

import msgspec

from penstock.client.runtime.events import Event
from penstock.client.runtime.lanes import Entry
from penstock.client.runtime.transaction import Transaction
from penstock.protocol.errors import InvalidRequest

Handler = Callable[[Transaction, Event], Any]
LaneOf = str | Callable[[Any], object] | None


class Handlers:
    """One handler for each type."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Handler, LaneOf]] = {}

    def add(self, kind: str, handler: Handler, lane: LaneOf) -> None:
        """Handle a type of event from now on."""
        if kind in self._handlers:
            raise InvalidRequest(f"{kind!r} has a handler already")
        if iscoroutinefunction(handler):
            raise InvalidRequest(
                f"the handler of {kind!r} is a coroutine function; make it a plain one: it only "
                "reads and writes its transaction, and may run several times"
            )
        self._handlers[kind] = (handler, lane)

    def lane_of(self, kind: str, data: Any) -> str:
        """The lane that a type's handler assigns to such data."""
        lane = self._found(kind)[1]
        if callable(lane):
            return str(lane(data))
        return lane or ""

    def check(self, kind: str) -> None:
        """Refuse a type that has no handler."""
        self._found(kind)

    def run(self, entry: Entry) -> None:
        """Run the handler of an entry on its transaction, once for each event in it."""
        transaction, event = entry.transaction, entry.event
        if transaction is None:
            raise ValueError(f"expected an entry that is to run, found {entry!r}")
        if entry.derivation is not None:
            entry.derivation.function(transaction)
            return
        handler, _ = self._found(event.type)
        for data in (event.data, *entry.more):
            handler(
                transaction,
                msgspec.structs.replace(event, data=deepcopy(data), attempt=entry.conflicts + 1),
            )

    def _found(self, kind: str) -> tuple[Handler, LaneOf]:
        found = self._handlers.get(kind)
        if found is None:
            near = get_close_matches(kind, self._handlers, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"events of type {kind!r} have no handler{hint}")
        return found
