"""The peer port: connections of peers, from the first packet until they are over.

How many are greeted at a time is bounded, and a part of the bound for each remote address, so that
a stranger cannot keep the peers out. With TLS a connection is greeted from its first packet on:
one whose handshake fails is counted and given up like any other.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

from penstock.cluster.frames import BadLetter, FrameReader, FrameWriter
from penstock.cluster.handshake import (
    GREETING_BYTES_MAX,
    Acceptor,
    LinkIdentity,
    LinkMember,
    LinkRefused,
    LinkSession,
    check_entries,
    refusal,
)
from penstock.cluster.outbox import Inbox, Item
from penstock.kernel.errors import Rejected

GREETING_S: Final = 5.0
"""How long TLS may take, and then the greeting."""
GREETINGS_MAX: Final = 64
"""Connections of peers that are not let in yet."""
GREETINGS_OF_ONE_MAX: Final = GREETINGS_MAX // 2
"""Of these, of one remote address."""
UNANSWERED_MS: Final = 10_000
"""What a peer's machine does not confirm for this long ends the connection."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Idle seconds before the first probe, seconds between probes, probes: an accepted connection
sends nothing, so only they tell that the peer's machine is gone."""
_ACCEPT_AGAIN_S: Final = 0.5


class Host(Protocol):
    """The node whose port it is."""

    def acceptor(self) -> Acceptor:
        """A new conversation with a peer."""

    def heard(self, member: LinkMember, items: Iterable[Item], letter_bytes: int) -> None:
        """Take the items of a letter."""

    def let_in(self, session: LinkSession) -> None:
        """A peer may be let in, or raise `LinkRefused`."""

    def refused(self, error: LinkRefused | BadLetter) -> None:
        """A connection was closed for its content."""


class PeerPort:
    """Accepts connections of peers and greets them."""

    def __init__(self, host: Host, *, tls: ssl.SSLContext | None) -> None:
        self.host = host
        self.connections: set[AcceptedConnection] = set()
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the bound address."""
        try:
            found = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, address in dict.fromkeys((each[0], each[4]) for each in found):
                listening = socket.create_server(address, family=family, backlog=GREETINGS_MAX)
                listening.setblocking(False)
                self._sockets.append(listening)
        except OSError as error:
            await self.stop()
            raise Rejected(
                f"cannot listen for peers on {host}:{port}: {error.strerror or error}; choose "
                "another address with --peer-listen, or end what listens there"
            ) from error
        for listening in self._sockets:
            self._keep(self._loop.create_task(self._accept(listening)))
        bound_host, bound_port = self._sockets[0].getsockname()[:2]
        return bound_host, bound_port

    def check_entries(self, own: LinkIdentity) -> None:
        """Refuse the peers that were let in and cannot read what is written from now on."""
        for connection in list(self.connections):
            connection.check_entries(own)

    async def stop(self) -> None:
        """Close the port and every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        for connection in list(self.connections):
            connection.abort()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError as error:  # such as too many open files
                self.host.refused(LinkRefused(f"no connection can be accepted now: {error}"))
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            connection = AcceptedConnection(self, str(address[0]))
            if self._is_full(connection.address):
                self._turn_away(connection, accepted)
            else:
                self.connections.add(connection)
                self._begin(connection, accepted)

    def _is_full(self, address: str) -> bool:
        greeted = [each for each in self.connections if not each.is_up]
        of_it = sum(each.address == address for each in greeted)
        return len(greeted) >= GREETINGS_MAX or of_it >= GREETINGS_OF_ONE_MAX

    def _turn_away(self, connection: AcceptedConnection, accepted: socket.socket) -> None:
        error = LinkRefused("too many peers are being let in: try again")
        if self._tls is None:
            connection.turn_away(error)
            self._begin(connection, accepted)
        else:  # to tell the peer why would take the handshake that is refused here
            accepted.close()
            self.host.refused(error)

    def _begin(self, connection: AcceptedConnection, accepted: socket.socket) -> None:
        task = self._loop.create_task(self._greet(connection, accepted))
        # One that is cancelled before its first step has not taken the socket.
        task.add_done_callback(lambda ended: accepted.close() if ended.cancelled() else None)
        self._keep(task)

    async def _greet(self, connection: AcceptedConnection, accepted: socket.socket) -> None:
        """Hand the socket to its protocol, which takes the greeting, after TLS where there is."""
        timeout_s = GREETING_S if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, TimeoutError) as error:
            self.connections.discard(connection)
            reason = str(error) or type(error).__name__
            self.host.refused(
                LinkRefused(
                    f"{connection.address} did not prove by TLS that it is of this cluster: "
                    f"{reason}"
                )
            )


class AcceptedConnection(asyncio.Protocol):
    """A connection of a peer: its letters come in."""

    def __init__(self, port: PeerPort, address: str) -> None:
        self.address = address
        self._port, self._host = port, port.host
        self._acceptor = self._host.acceptor()
        self._reader = FrameReader(letter_bytes_max=GREETING_BYTES_MAX)
        self._writer = FrameWriter()
        self._inbox = Inbox()
        self._session: LinkSession | None = None
        self._refused: LinkRefused | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def is_up(self) -> bool:
        """Whether the peer was let in."""
        return self._session is not None

    def check_entries(self, own: LinkIdentity) -> None:
        """Refuse a peer that was let in and cannot read what is written from now on."""
        if self._session is not None:
            try:
                check_entries(own, self._session.peer.name, self._session.entries)
            except LinkRefused as error:
                self._refuse(error)

    def turn_away(self, error: LinkRefused) -> None:
        """Refuse the peer as soon as it is connected."""
        self._refused = error

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the peer's greeting."""
        self._transport = cast(asyncio.Transport, transport)
        tune(transport)
        if self._refused is not None:
            self._refuse(self._refused)
        else:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(GREETING_S, self._take_too_long)

    def data_received(self, data: bytes) -> None:
        """Take a greeting or letters."""
        try:
            for letter in self._reader.feed(data):
                if self._session is None:
                    self._greet(letter)
                else:
                    items = self._inbox.items(letter)
                    self._host.heard(self._session.peer, items, len(letter))
        except (LinkRefused, BadLetter) as error:
            self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The peer is gone."""
        self._end_deadline()
        self._port.connections.discard(self)

    def _greet(self, letter: bytes) -> None:
        assert self._transport is not None
        step = self._acceptor.step(letter)
        if step.session is not None:
            if not self._reader.is_between_letters:
                raise BadLetter("a letter before the peer was let in")
            self._host.let_in(step.session)
            self._reader = FrameReader(step.session.key)
            self._session = step.session
            self._end_deadline()
        self._transport.write(self._writer.frame(step.send))

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _take_too_long(self) -> None:
        self._refuse(LinkRefused(f"{self.address} did not greet within {GREETING_S:g} s"))

    def _refuse(self, error: LinkRefused | BadLetter) -> None:
        assert self._transport is not None, "data comes only once there is a transport"
        if not self._transport.is_closing():
            self._host.refused(error)
            self._transport.write(self._writer.frame(refusal(str(error))))
            self._transport.close()


def tune(transport: asyncio.BaseTransport) -> None:
    """Send small letters at once, and notice a peer's machine that is gone."""
    found: Any = transport.get_extra_info("socket")
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)
