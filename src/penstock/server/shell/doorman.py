"""The first bytes of a connection: they say whether it is HTTP/1.1 or HTTP/2."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from penstock.server.message import TooManyConnections
from penstock.server.shell.exchange import refusal
from penstock.server.shell.http1 import Http1Connection
from penstock.server.shell.http2 import PREFACE, Http2Connection
from penstock.server.shell.service import Service


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
        if service.draining or len(service.connections) >= service.limits.connections_max:
            self._turn_away()
            return
        service.add(self)
        set_no_delay(transport)
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

    def _turn_away(self) -> None:
        service = self._service
        service.counters.connections_refused += 1
        most = service.limits.connections_max
        refused = TooManyConnections(
            f"expected at most {most} connections, found all in use", limit="max_connections"
        )
        self._transport.write(refusal(service.answers, refused, ends=True))
        self._transport.close()


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small answers at once; a loop may have done it already."""
    found = transport.get_extra_info("socket")
    if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
