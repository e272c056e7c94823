"""A device's connection: bytes to the core, frames back, and reading only while there is credit."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from penstock.ingest.accept import EdgeCore
from penstock.ingest.frames import FrameError, encode_error
from penstock.ingest.sessions import Session

READ_BYTES_MAX: Final = 64 * 1024
WRITE_BYTES_MAX: Final = 64 * 1024
LINGER_MS: Final = 2_000
"""How long a closed connection is still read, so that its device can read the reason."""


class DeviceConnection(asyncio.BufferedProtocol):
    """One connection. All share one buffer to read into, so an idle one costs next to nothing."""

    __slots__ = (
        "_buffer", "_core", "_ended", "_members", "_reading", "_stalled_since_ms", "_transport",
        "_view", "_writes_paused", "peer", "session",
    )  # fmt: skip

    def __init__(self, core: EdgeCore, buffer: bytearray, members: set[DeviceConnection]) -> None:
        self._core = core
        self._members = members
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._transport = cast(asyncio.Transport, None)
        self.session = cast(Session, None)
        self.peer = ""
        self._reading = True
        self._writes_paused = False
        self._ended = False
        self._stalled_since_ms: int | None = None

    # the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        found = transport.get_extra_info("peername")
        self.peer = f"{found[0]}:{found[1]}" if isinstance(found, tuple) else ""
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # The operating system notices a peer that vanished without closing.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._members.add(self)
        self.session = self._core.opened(self)
        self._settle()

    def get_buffer(self, sizehint: int) -> bytearray:
        """The buffer to read into: free again as soon as `buffer_updated` returns."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self._core.feed(self.session, bytes(self._view[:nbytes]))

    def eof_received(self) -> bool:
        """The device sends no more; its acknowledgements may still go out, then it ends."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._members.discard(self)
        self._core.closed(self.session)

    def pause_writing(self) -> None:
        """The device does not read its acknowledgements: stop reading from it."""
        self._writes_paused = True
        self._settle()

    def resume_writing(self) -> None:
        """The device reads again."""
        self._writes_paused = False
        self._stalled_since_ms = None
        self._settle()

    # the core's calls

    def send(self, data: bytes) -> None:
        """Send frames."""
        self._transport.write(data)

    def pause(self) -> None:
        """Read no more for now: the kernel's window closes and the device waits."""
        self._settle()

    def resume(self) -> None:
        """Read on."""
        self._settle()

    def end(self, error: FrameError) -> None:
        """Say what was wrong and close.

        What the device still sends is read and thrown away for a moment: closing at once would
        reset the connection, and the device might never read what was wrong.
        """
        if self._ended or self._transport.is_closing():
            return
        self._ended = True
        self._transport.write(encode_error(error))
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the device has gone
                self._transport.abort()
                return
            self._read(True)
        else:
            self._transport.close()

    # the server's calls

    def sweep(self, now_ms: int, stall_ms: int) -> None:
        """Close if the device has not read for too long, or has not gone after an error."""
        if not (self._writes_paused or self._ended or self._transport.is_closing()):
            return
        if self._stalled_since_ms is None:
            self._stalled_since_ms = now_ms
        elif now_ms - self._stalled_since_ms > (LINGER_MS if self._ended else stall_ms):
            self._transport.abort()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def _settle(self) -> None:
        """Read if and only if the core has room and the device takes its answers."""
        if not self._ended:
            self._read(not (self.session.paused or self._writes_paused))

    def _read(self, wanted: bool) -> None:
        if wanted == self._reading or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
