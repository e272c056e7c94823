"""A watch of a table without a connection: the next step, the meaning of frames, the position.

The position moves with whole commits only: parts of one that a lost connection cut off are dropped,
and come again. So a commit is returned once, as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgspec

from penstock.client import table_calls
from penstock.client.errors import NotPenstock
from penstock.client.event_stream import Frame, Reconnects, stream_error
from penstock.client.watching import SILENCE_HEARTBEATS, Open, Pause, Step, Stop
from penstock.client.wire import HttpRequest
from penstock.flow.backoff import Backoff
from penstock.protocol.errors import CallError, ServerUnavailable, Throttled
from penstock.protocol.events import (
    TABLE_EVENTS,
    RowChange,
    TableChanges,
    TableEvent,
    TableReset,
    TableRows,
)

HEARTBEAT_MS: Final = 15_000
_DECODERS: Final = {name: msgspec.json.Decoder(kind) for name, kind in TABLE_EVENTS.items()}


class TableWatchCore:
    """The state of one watch of a table. Feed it events; `next_step` says what to do."""

    silence_ms = HEARTBEAT_MS * SILENCE_HEARTBEATS

    def __init__(self, table: str, after: str | None, backoff: Backoff, random: Random) -> None:
        self.table = table
        self.position = after
        """The id of the last event that completed a commit; None before the first."""
        self._parts: list[RowChange] = []
        self._reconnects = Reconnects(backoff, random)
        self._step: Step = Open("")

    def next_step(self) -> Step:
        """What to do next. After a pause, call it again."""
        step = self._step
        if isinstance(step, Pause):
            self._step = Open("")
        return step

    def stream_request(self, _: Open) -> HttpRequest:
        """The request that opens the stream."""
        return table_calls.watch_request(self.table, self.position)

    def created(self, _: Any) -> Sequence[TableEvent]:
        """A table has no sessions."""
        return ()

    def heard(self) -> None:
        """The stream works: an event arrived, or only a heartbeat."""
        self._reconnects.heard()

    def frame(self, frame: Frame) -> TableEvent | None:
        """A frame arrived: returns the event, or None if it is only a part of one."""
        if frame.event == "error":
            raise stream_error(frame)
        decoder = _DECODERS.get(frame.event)
        if decoder is None:
            return None  # an event of a later protocol
        try:
            event: TableEvent = decoder.decode(frame.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotPenstock(
                f"the server sent a malformed {frame.event} frame: {frame.data[:80]!r}"
            ) from error
        whole = self._whole(event)
        if isinstance(event, TableReset) or (isinstance(event, TableRows) and not event.offset):
            self.position = None  # what follows replaces everything, and is not complete yet
        if frame.id:
            self.position = frame.id
        return whole

    def _whole(self, event: TableEvent) -> TableEvent | None:
        if not isinstance(event, TableChanges) or event.parts == 1:
            return event
        if event.part == 0:
            self._parts = []
        self._parts += event.changes
        if event.part < event.parts - 1:
            return None
        parts, self._parts = self._parts, []
        return msgspec.structs.replace(event, changes=parts, part=0, parts=1)

    def ended(self, now_ms: float, error: CallError | None = None) -> None:
        """The stream, or the try to open one, ended. Plan the next step."""
        self._parts = []
        error = error or ServerUnavailable("the server ended the stream")
        if not isinstance(error, Throttled | ServerUnavailable):
            self._step = Stop(error)
            return
        delay_ms = self._reconnects.failed(error, now_ms)
        self._step = Stop(error) if delay_ms is None else Pause(delay_ms)

    def opened(self) -> None:
        """The stream was opened."""
        self._reconnects.opened()

    @property
    def trouble(self) -> str | None:
        """Why there is no stream now, or None."""
        return self._reconnects.trouble

    @property
    def reconnects(self) -> int:
        """How often the stream was lost so far."""
        return self._reconnects.count
