"""The listening port; the first bytes of a connection tell HTTP/1.1 from HTTP/2."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final, cast

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import CallError, ShuttingDown, Throttled
from penstock.server.http.head import Overlaps, nothing_overlaps
from penstock.server.http.http1 import Http1Connection
from penstock.server.http.http1_exchange import refusal
from penstock.server.http.http2 import PREFACE, Http2Connection
from penstock.server.http.message import Application, TransportLimits
from penstock.server.http.origins import Origins
from penstock.server.http.service import CheckHead, Counters, Service, nothing_refused

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""TCP keep-alive: idle seconds before the first probe, seconds between probes, probes."""


class NewConnection(asyncio.Protocol):
    """Receives a new connection and passes it on as soon as its protocol is known."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport = cast(asyncio.Transport, None)
        self._first = b""
        self._began_s = service.now_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast(asyncio.Transport, transport)
        service = self._service
        service.counters.connections_total += 1
        most = service.limits.connections_max
        if service.draining:
            self._turn_away(ShuttingDown("the server is shutting down"))
            return
        if len(service.connections) >= most:
            text = f"all {most} connections of the server are in use"
            self._turn_away(Throttled(text, limit="max_connections"))
            return
        service.add(self)
        tune(transport)
        secure = transport.get_extra_info("ssl_object")
        if secure is not None and secure.selected_alpn_protocol() == "h2":
            self._pass_on(Http2Connection(service))

    def data_received(self, data: bytes) -> None:
        """Detect the protocol from the first bytes."""
        self._first += data
        if self._first.startswith(PREFACE):
            self._pass_on(Http2Connection(self._service))
        elif not PREFACE.startswith(self._first):
            self._pass_on(Http1Connection(self._service))

    def connection_lost(self, error: Exception | None) -> None:
        """The client disconnected before its protocol was known."""
        self._service.discard(self)

    def sweep(self, now_s: float) -> None:
        """Close if the first bytes take too long."""
        limits = self._service.limits
        if now_s - self._began_s > (limits.head_s if self._first else limits.idle_s):
            self._transport.abort()

    def drain(self) -> None:
        """Close: no request was read, so no answer is due."""
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
    """Send small answers at once (no Nagle), and detect peers that vanished (keep-alive)."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_BACKLOG: Final = 1_024


class Listener:
    """Serves an application on one TCP port, with HTTP/1.1, HTTP/2 and WebSocket.

    Call `start`; for a graceful shutdown: `stop_accepting`, let the application close its streams,
    `drain`, `abort`.
    """

    def __init__(
        self,
        application: Application,
        limits: TransportLimits | None = None,
        *,
        overlaps: Overlaps = nothing_overlaps,
        check_head: CheckHead = nothing_refused,
        origins: Origins | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._application = application
        self._limits = limits or TransportLimits()
        self._overlaps = overlaps
        self._check_head = check_head
        self._origins = origins
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._service: Service | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 4000) -> tuple[str, int]:
        """Bind and accept; port 0 picks a free one. Returns the bound address."""
        if self._service is not None:
            raise Rejected("the listener is started already")
        loop = asyncio.get_running_loop()
        service = Service(
            self._application,
            self._limits,
            loop,
            overlaps=self._overlaps,
            check_head=self._check_head,
            origins=self._origins,
        )
        if self._tls is not None:
            self._tls.set_alpn_protocols(["h2", "http/1.1"])
        self._server = await loop.create_server(
            lambda: NewConnection(service),
            host,
            port,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._limits.head_s,
            backlog=_BACKLOG,
        )
        self._service = service
        service.start()
        return self.address

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port."""
        if self._server is None or not self._server.sockets:
            raise Rejected("the listener does not accept connections")
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def counters(self) -> Counters:
        """The counters since the start."""
        return self._running.counters

    @property
    def connections_open(self) -> int:
        """How many connections are open."""
        return len(self._running.connections)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of request bodies in memory."""
        return self._running.budget.used

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones continue."""
        if self._server is not None:
            self._server.close()

    def use(self, application: Application) -> None:
        """Pass the requests of future connections to another application."""
        self._application = application
        if self._service is not None:
            self._service.application = application

    async def drain(self, deadline_s: float) -> bool:
        """Close connections as soon as nothing is due; False if some are left at the deadline.

        Idle connections close at once, busy ones after their answer. The application must close
        streams and WebSockets.
        """
        self.stop_accepting()
        service = self._running
        service.drain()
        if not service.connections:
            return True
        emptied = asyncio.Event()
        service.emptied = emptied.set
        try:
            await asyncio.wait_for(emptied.wait(), deadline_s)
        except TimeoutError:
            return False
        finally:
            service.emptied = None
        return True

    async def abort(self) -> None:
        """Stop at once: close every connection in its current state."""
        self.stop_accepting()
        service = self._running
        service.stop()
        for connection in list(service.connections):
            connection.abort()
        # A transport closes in the next iteration of the event loop.
        for _ in range(3):
            await asyncio.sleep(0)

    @property
    def _running(self) -> Service:
        if self._service is None:
            raise Rejected("the listener is not started")
        return self._service
