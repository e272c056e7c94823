"""Writes bytes to a socket, bypassing the transport where that is safe.

While nothing is buffered, a plain TCP socket is written directly, which saves the transport's
bookkeeping for each of many watchers. The rest, if the socket takes less, goes to the transport.
"""

from __future__ import annotations

import asyncio
import os
import ssl


class SocketWriter:
    """Writes to one connection's socket until it closes; never to a closed descriptor."""

    __slots__ = ("_fd", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._fd = plain_descriptor(transport)
        # So that `pause_writing` and `resume_writing` report when the buffer fills and empties.
        transport.set_write_buffer_limits(high=0)

    @property
    def buffered(self) -> int:
        """Bytes that the socket did not take yet."""
        return self._transport.get_write_buffer_size()

    def write_now(self, data: bytes) -> bool:
        """Send bytes if the buffer is empty; what the socket does not take is buffered.

        False if nothing was sent.
        """
        transport = self._transport
        if self._fd < 0 or transport.is_closing() or transport.get_write_buffer_size():
            return False
        try:
            sent = os.write(self._fd, data)
        except OSError:
            return False
        if sent < len(data):
            transport.write(memoryview(data)[sent:])
        return True

    def write(self, data: bytes) -> None:
        """Send all bytes, buffering what the socket does not take."""
        transport = self._transport
        if transport.is_closing():
            # The transport may have closed its descriptor, and the number may have been reused.
            return
        if self._fd < 0 or transport.get_write_buffer_size():
            transport.write(data)
            return
        try:
            sent = os.write(self._fd, data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # The transport meets the same error and reports it in the usual way.
            sent = 0
        if sent < len(data):
            transport.write(memoryview(data)[sent:] if sent else data)


def plain_descriptor(transport: asyncio.Transport) -> int:
    """The descriptor of a transport's non-blocking TCP socket, or -1 if it must not be used."""
    secure: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    socket = transport.get_extra_info("socket")
    if secure is not None or transport.get_extra_info("sslcontext") is not None or socket is None:
        return -1
    fd: int = socket.fileno()
    return fd
