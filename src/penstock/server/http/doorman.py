"""The first bytes of a connection: they say whether it is HTTP/1.1 or HTTP/2."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from penstock.protocol.errors import CallError, ShuttingDown, Throttled
from penstock.server.http.http1 import Http1Connection
from penstock.server.http.http1_exchange import refusal
from penstock.server.http.http2 import PREFACE, Http2Connection
from penstock.server.http.service import Service

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Seconds of silence before the first question, between questions, and how many."""


class Doorman(asyncio.Protocol):
    """Receives a new connection and passes it on as soon as its protocol is known."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport = cast(asyncio.Transport, None)
        self._first = b""
        self._began_s = service.now_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected."""
        self._transport = cast(asyncio.Transport, transport)
        service = self._service
        service.counters.connections_total += 1
        most = service.limits.connections_max
        if service.draining:
            self._turn_away(ShuttingDown("expected a server that goes on, found it shutting down"))
            return
        if len(service.connections) >= most:
            text = f"expected at most {most} connections, found all in use"
            self._turn_away(Throttled(text, limit="max_connections"))
            return
        service.add(self)
        tune(transport)
        secure = transport.get_extra_info("ssl_object")
        if secure is not None and secure.selected_alpn_protocol() == "h2":
            self._pass_on(Http2Connection(service))

    def data_received(self, data: bytes) -> None:
        """Look at the first bytes."""
        self._first += data
        if self._first.startswith(PREFACE):
            self._pass_on(Http2Connection(self._service))
        elif not PREFACE.startswith(self._first):
            self._pass_on(Http1Connection(self._service))

    def connection_lost(self, error: Exception | None) -> None:
        """It left before it said enough."""
        self._service.discard(self)

    def sweep(self, now_s: float) -> None:
        """Close if the first bytes take too long."""
        limits = self._service.limits
        if now_s - self._began_s > (limits.head_s if self._first else limits.idle_s):
            self._transport.abort()

    def drain(self) -> None:
        """Nothing was asked, nothing is owed."""
        self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def _pass_on(self, successor: Http1Connection | Http2Connection) -> None:
        self._service.replace(self, successor)
        self._transport.set_protocol(successor)
        successor.connection_made(self._transport)
        if self._first:
            successor.data_received(self._first)

    def _turn_away(self, refused: CallError) -> None:
        self._service.counters.connections_refused += 1
        self._transport.write(refusal(self._service.answers, refused, ends=True))
        self._transport.close()


def tune(transport: asyncio.BaseTransport) -> None:
    """Send small answers at once, and notice peers that vanished without a word."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
