"""A small HTTP/2 client with prior knowledge on the `h2` library."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Self

import h2.config
import h2.connection
import h2.events

from tests.conformance.wire import DEADLINE_S, Address


@dataclass
class Reply:
    """What came back on one stream so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None


class H2Client:
    """One connection, many streams. Use it in a `with`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.authority = f"{address.host}:{address.port}"
        self.socket = socket.create_connection(address, timeout=DEADLINE_S)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.replies: dict[int, Reply] = {}
        self.h2.initiate_connection()
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _fields(self, method: str, path: str) -> list[tuple[str, str]]:
        return [
            (":method", method),
            (":path", path),
            (":scheme", "http"),
            (":authority", self.authority),
        ]

    def send_and_reset(self, method: str, path: str) -> None:
        """Send a request and cancel it in the same packet."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, self._fields(method, path), end_stream=True)
        self.reset(stream)

    def send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> int:
        """Send a request whole (waiting for the server's windows) and give its stream."""
        stream = self.h2.get_next_available_stream_id()
        self.replies[stream] = Reply()
        fields = self._fields(method, path)
        if body:
            fields.append(("content-type", "application/json"))
        fields += list((headers or {}).items())
        self.h2.send_headers(stream, fields, end_stream=not body)
        while body:
            room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if room == 0:
                self._receive(time.monotonic() + DEADLINE_S)
                continue
            chunk, body = body[:room], body[room:]
            self.h2.send_data(stream, chunk, end_stream=not body)
            self._flush()
        self._flush()
        return stream

    def reply(self, stream: int) -> Reply:
        """Wait for the end of a stream."""
        end = time.monotonic() + DEADLINE_S
        while not self.replies[stream].ended:
            self._receive(end)
        return self.replies[stream]

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        return self.reply(self.send(method, path, body, headers))

    def wait_for(self, stream: int, text: bytes) -> Reply:
        """Wait until a stream's body has a text."""
        end = time.monotonic() + DEADLINE_S
        while text not in self.replies[stream].body:
            assert not self.replies[stream].ended, self.replies[stream]
            self._receive(end)
        return self.replies[stream]

    def reset(self, stream: int) -> None:
        self.h2.reset_stream(stream, 8)
        self._flush()

    def _flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def _receive(self, end: float) -> None:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("nothing came within the deadline")
        self.socket.settimeout(left)
        received = self.socket.recv(65536)
        assert received, "the server closed the connection"
        for event in self.h2.receive_data(received):
            self._take(event)
        self._flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            reply = self.replies[event.stream_id]
            reply.status, reply.headers = int(headers.pop(":status")), headers
        elif isinstance(event, h2.events.DataReceived):
            self.replies[event.stream_id].body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.replies[event.stream_id].ended = True
        elif isinstance(event, h2.events.StreamReset):
            self.replies[event.stream_id].ended = True
            self.replies[event.stream_id].reset = int(event.error_code)
