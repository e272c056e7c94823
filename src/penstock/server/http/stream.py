"""A streamed HTTP/1.1 answer body, one chunk per write, bypassing the transport where that is safe.

Over HTTP/1.0, which has no chunks, the body is plain and ends with the connection. While nothing is
buffered, a plain TCP socket is written directly, which saves the transport's bookkeeping for each
of many watchers. The rest, if the socket takes less, goes to the transport.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Final

from penstock.server.http.budget import Stall
from penstock.server.http.message import Direct, as_chunk
from penstock.server.http.service import Service


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


_LAST_CHUNK: Final = b"0\r\n\r\n"


class SocketStream:
    """A stream that has its connection to itself, once earlier requests are answered."""

    def __init__(
        self,
        service: Service,
        head: bytes,
        on_end: Callable[[], None],
        *,
        is_chunked: bool = True,
    ) -> None:
        self.on_room: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._service = service
        self._on_end = on_end
        self._is_chunked = is_chunked
        self._bytes_max = service.limits.stream_buffer_bytes_max
        self._writer: SocketWriter | None = None
        self._transport: asyncio.Transport | None = None
        self._early = [head]
        self._early_bytes = 0
        self._closed = False
        self._lagged = False
        self._stall = Stall()
        self._added = 0  # to a non-empty buffer, since the last check
        self._bodyless = False
        service.counters.streams_open += 1

    @property
    def buffered(self) -> int:
        """Bytes that the socket did not take yet."""
        if self._closed:
            return 0
        return self._early_bytes if self._writer is None else self._writer.buffered

    def write(self, data: bytes) -> bool:
        """Send bytes, or take none of them and return False.

        The first lines are the usual case for each of many watchers: the socket takes all bytes.
        """
        writer = self._writer
        if not data:
            return not self._closed
        if self._is_chunked:
            data = as_chunk(data)
        if (
            writer is not None
            and not self._closed
            and not self._bodyless
            and writer.write_now(data)
        ):
            self._service.counters.bytes_out += len(data)
            return True
        return self._write(data)

    def _write(self, data: bytes) -> bool:
        if self._closed:
            return False
        if self._bodyless:
            return True
        buffered = self.buffered
        if buffered and buffered + len(data) > self._bytes_max:
            self._lagged = True
            return False
        if self._writer is None:
            self._early.append(data)
            self._early_bytes += len(data)
            return True
        self._service.counters.bytes_out += len(data)
        self._added += len(data)
        self._writer.write(data)
        return True

    def has_room(self) -> bool:
        """Whether a write of any size is taken now; if not, `on_room` is called when it is."""
        if self._closed:
            return False
        self._lagged = self._lagged or self.buffered > 0
        return not self._lagged

    def direct(self) -> Direct | None:
        """The socket itself; None if it must not be used directly, or not yet."""
        transport = self._transport
        if self._writer is None or self._closed or self._bodyless or transport is None:
            return None
        if not self._is_chunked:
            return None
        fd = plain_descriptor(transport)
        if fd < 0:
            return None
        return Direct(fd, transport.is_closing, transport.get_write_buffer_size, self._count)

    def rest(self, data: memoryview) -> None:
        """Send the remainder of a direct write that the socket did not take."""
        if self._transport is not None:
            self._transport.write(data)

    def _count(self, size: int) -> None:
        self._service.counters.bytes_out += size

    def close(self) -> None:
        """End the body; the connection continues if keep-alive allows it."""
        if not self._end():
            return
        if self._writer is None:
            self._early.append(self._last_chunk())
        else:
            self._writer.write(self._last_chunk())
            self._on_end()

    def _last_chunk(self) -> bytes:
        return _LAST_CHUNK if self._is_chunked and not self._bodyless else b""

    def refuse_body(self) -> None:
        """Send the head only: the request is a HEAD."""
        self._bodyless = True

    def begin(self, transport: asyncio.Transport) -> None:
        """Earlier requests are answered: send the head and the bytes written so far."""
        self._transport = transport
        if self._bodyless:
            # Only after the application could set `on_gone`.
            self._service.loop.call_soon(self.lost)
        early = b"".join(self._early)
        self._early.clear()
        self._service.counters.bytes_out += len(early)
        self._writer = SocketWriter(transport)
        transport.write(early)
        if self._closed or self._bodyless:
            self._on_end()
        elif not transport.get_write_buffer_size():
            self._service.loop.call_soon(self.resume_writing)

    def resume_writing(self) -> None:
        """The buffer is empty."""
        self._stall.lasted_s(0, self._service.now_s)
        if self._lagged and not self._closed:
            self._lagged = False
            self._service.call(self.on_room)

    def stalled_s(self, now_s: float) -> float:
        """How long the peer has read nothing of the buffered bytes."""
        added, self._added = self._added, 0
        return self._stall.lasted_s(self.buffered, now_s, added)

    def lost(self) -> None:
        """The peer disconnected."""
        on_gone = self.on_gone
        if self._end():
            self._service.call(on_gone)

    def _end(self) -> bool:
        if self._closed:
            return False
        self._closed = True
        self.on_room = self.on_gone = None  # break the reference cycle with the listener
        self._service.counters.streams_open -= 1
        return True
