"""Processes the input of a connection in portions, one per loop iteration, for fairness.

One read may hold thousands of frames. A portion of them is processed at once; the rest is kept, and
nothing more is read, until other connections had their turn.
"""

from __future__ import annotations

import asyncio
from typing import cast


class InPortions(asyncio.Protocol):
    """A connection of frames. A base class: a component that calls back would be a reference cycle.

    Subclasses define how much is a portion (`_portion`), what is done with it (`_take_portion`),
    and whether reading is paused because the peer does not read (`_is_held`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._portions_loop = loop
        self._transport = cast(asyncio.Transport, None)
        self._inbox = b""

    def _portion(self, data: bytes) -> int:
        """How many of these bytes to process at once."""
        raise NotImplementedError

    def _take_portion(self, data: bytes) -> None:
        """Process a portion."""
        raise NotImplementedError

    def _is_held(self) -> bool:
        """Whether processing is paused; `_read_on` is called when the pause ends."""
        raise NotImplementedError

    def _arrived(self, data: bytes) -> None:
        """Bytes were read."""
        if self._inbox:
            self._inbox += data
        else:
            self._feed(data)

    def _read_on(self) -> None:
        """The peer reads again: continue with the input kept, or read."""
        if self._inbox:
            self._portions_loop.call_soon(self._go_on)
        else:
            self._transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        size = self._portion(data)
        if size < len(data):
            self._inbox = data[size:]
            self._transport.pause_reading()
            self._portions_loop.call_soon(self._go_on)
        self._take_portion(data[:size])

    def _go_on(self) -> None:
        """Continue after other connections had their turn: process more input, then read again."""
        if self._is_held() or not self._inbox:
            return
        data, self._inbox = self._inbox, b""
        self._feed(data)
        if not (self._inbox or self._is_held() or self._transport.is_closing()):
            self._transport.resume_reading()
