"""The port: binds it, looks at the first bytes of each connection, and closes everything again."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from penstock.kernel.errors import Rejected
from penstock.server.http.doorman import Doorman
from penstock.server.http.head import Overlaps, nothing_overlaps
from penstock.server.http.message import Application, TransportLimits
from penstock.server.http.origins import Origins
from penstock.server.http.service import CheckHead, Counters, Service, nothing_refused

_BACKLOG: Final = 1_024


class Listener:
    """Serves an application on one TCP port, with HTTP/1.1, HTTP/2 and WebSocket.

    `start`, then, to leave in good order: `stop_accepting`, let the application close its streams,
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
        """Bind and accept; port 0 takes a free one. Returns the address that was bound."""
        if self._service is not None:
            raise Rejected("expected a listener that was not started, found one that was")
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
            lambda: Doorman(service),
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
            raise Rejected("expected a listener that accepts, found one that does not")
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def counters(self) -> Counters:
        """What was counted since the start."""
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
        """Accept no new connection; those that are open go on."""
        if self._server is not None:
            self._server.close()

    def use(self, application: Application) -> None:
        """Hand the requests of connections that come from now on to another application."""
        self._application = application
        if self._service is not None:
            self._service.application = application

    async def drain(self, deadline_s: float) -> bool:
        """Close connections as soon as nothing is owed; False if some are left at the deadline.

        Idle ones are closed at once, busy ones with their answer. Streams and WebSockets are the
        application's to close.
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
        """Stop at once: every connection is closed as it is."""
        self.stop_accepting()
        service = self._running
        service.stop()
        for connection in list(service.connections):
            connection.abort()
        # A transport says goodbye on the next turn of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    @property
    def _running(self) -> Service:
        if self._service is None:
            raise Rejected("expected a listener that was started, found one that was not")
        return self._service
