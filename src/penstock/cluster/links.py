"""Connections between the nodes of a cluster: each node dials each peer, and sends on that one.

What is sent while no connection is up is lost: those who send it make it again, or say so.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from penstock.cluster.accepting import GREETING_S, PeerPort, tune
from penstock.cluster.frames import BadLetter, FrameReader, FrameWriter
from penstock.cluster.handshake import (
    BULK,
    GREETING_BYTES_MAX,
    LETTERS,
    NONCE_BYTES,
    UNTOLD,
    Acceptor,
    Dialler,
    EntryVersions,
    LinkIdentity,
    LinkMember,
    LinkRefused,
    LinkSession,
    check_entries,
    refusal,
)
from penstock.cluster.outbox import PART_BYTES, WAITING_BYTES_MAX, Item, Outbox
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.text import Seldom, and_others

PAUSE_S: Final = (0.1, 1.0)
"""The shortest and the longest pause before a peer is dialled again."""
PART_PAUSE_S: Final = 0.005
"""How soon the next parts of a large item are sent, if the connection has taken those before."""

_LOGGER: Final = logging.getLogger("penstock.cluster")

OnItem = Callable[[int, int, bytes], None]
OnLink = Callable[[int, bool], None]


@dataclass(slots=True)
class LinkCounters:
    """Since the start."""

    letters_sent: int = 0
    letters_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    dropped: int = 0
    refused: int = 0
    bad_letters: int = 0


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A link to a peer as people see it."""

    member: LinkMember
    is_up: bool
    heard_ms_ago: int | None
    unsent_bytes: int
    problem: str


@dataclass(frozen=True, slots=True)
class LinkTls:
    """The contexts of both sides; both ask for the peer's certificate."""

    accept: ssl.SSLContext
    dial: ssl.SSLContext


def link_tls(cert: Path, key: Path, authority: Path) -> LinkTls:
    """The contexts of a node with this certificate; a peer needs one of the same authority.

    Names in certificates are not compared with addresses: the authority is the cluster's own.
    """
    contexts = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        try:
            context = ssl.create_default_context(purpose, cafile=str(authority))
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise Rejected(
                f"cannot use {cert}, {key} and {authority} between nodes: {error}"
            ) from error
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        contexts.append(context)
    return LinkTls(*contexts)


class Links:
    """Listens for peers, dials them, and passes items on.

    `on_item` gets the sender's id, the channel and the bytes; `on_link` when a peer can be sent to,
    and when it no longer can.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        clock: Clock,
        on_item: OnItem,
        on_link: OnLink,
        is_removed: Callable[[int], bool] = lambda _: False,
        tls: LinkTls | None = None,
    ) -> None:
        self.identity = identity
        self.counters = LinkCounters()
        self.loop = asyncio.get_running_loop()
        self.tls = tls
        self.on_item, self.on_link = on_item, on_link
        self._is_removed = is_removed
        self._now_ms = clock.monotonic_ms
        self._told = Seldom()
        self.port = PeerPort(self, tls=tls.accept if tls else None)
        self._peers: dict[int, Peer] = {}
        self._bulk: dict[int, Peer] = {}
        self._heard_ms: dict[int, int] = {}
        self._let_in: dict[int, LinkMember] = {}
        self.urls: dict[int, str] = {}

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen for peers; the bound address."""
        return await self.port.start(host, port)

    async def stop(self) -> None:
        """Close every connection and the port."""
        for peer in (*self._peers.values(), *self._bulk.values()):
            await peer.stop()
        self._peers.clear()
        self._bulk.clear()
        await self.port.stop()

    def know(self, members: Iterable[LinkMember]) -> None:
        """Keep connections to these members and to peers that were let in, and to no others.

        A node whose log is behind has an old list: were it to drop the peers that are not in it,
        it would never be brought the rest.
        """
        wanted = {each.id: each for each in (*self._let_in.values(), *members)}
        wanted = {
            number: each
            for number, each in wanted.items()
            if number != self.identity.member.id and not self._is_removed(number)
        }
        for number, peer in list(self._peers.items()):
            if wanted.get(number) != peer.member:
                self._peers.pop(number).cancel()
                self._bulk.pop(number).cancel()
        for member in wanted.values():
            self._dial(member)

    def send(
        self, member: int, channel: int, payload: bytes, *, is_droppable: bool = False
    ) -> bool:
        """Send an item with others of this turn; False if it is certain that it will not arrive."""
        peer = self._peers.get(member)
        return self._put(peer, channel, payload, is_droppable)

    def flush(self) -> None:
        """Send the letters of this turn now."""
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.flush()

    def send_bulk(self, member: int, payload: bytes, *, channel: int) -> bool:
        """As `send`, on the connection of large items, which delays no letter."""
        return self._put(self._bulk.get(member), channel, payload, False)

    def _put(self, peer: Peer | None, channel: int, payload: bytes, is_droppable: bool) -> bool:
        connection = peer.connection if peer is not None else None
        if connection is None:
            return False
        if connection.put(channel, payload, is_droppable):
            return True
        self.counters.dropped += 1
        return False

    def is_up(self, member: int) -> bool:
        """Whether a peer can be sent to."""
        peer = self._peers.get(member)
        return peer is not None and peer.connection is not None

    def status(self) -> list[LinkStatus]:
        """Every peer that is dialled."""
        now_ms = self._now_ms()
        return [
            LinkStatus(
                peer.member,
                peer.connection is not None,
                now_ms - self._heard_ms[number] if number in self._heard_ms else None,
                peer.connection.unsent_bytes if peer.connection is not None else 0,
                peer.problem,
            )
            for number, peer in self._peers.items()
        ]

    def told(self) -> dict[int, EntryVersions]:
        """Which versions of entries the peers write and read that can be sent to."""
        up = {number: peer.connection for number, peer in self._peers.items()}
        return {number: each.entries for number, each in up.items() if each is not None}

    def write_entries(self, version: int) -> None:
        """Say that this version is written from now on; peers that cannot read it are refused."""
        own = self.identity
        if version == own.entries.written:
            return
        entries = EntryVersions(version, own.entries.read)
        own = self.identity = replace(own, entries=entries)
        self.port.check_entries(own)
        for peer in (*self._peers.values(), *self._bulk.values()):
            if peer.connection is not None:
                peer.connection.check_entries()

    # What the connections say

    def acceptor(self) -> Acceptor:
        """A new conversation with a peer that dialled."""
        return Acceptor(self.identity, secrets.token_bytes(NONCE_BYTES), self._is_removed)

    def heard(self, member: LinkMember, items: Iterable[Item], letter_bytes: int) -> None:
        """Pass on the items of a letter."""
        self.counters.letters_received += 1
        self.counters.bytes_received += letter_bytes
        self._heard_ms[member.id] = self._now_ms()
        for channel, payload in items:
            self.on_item(member.id, channel, payload)

    def let_in(self, session: LinkSession) -> None:
        """A peer was let in: it is dialled as well, whether or not this node's log has it yet."""
        peer = session.peer
        check_entries(self.identity, peer.name, session.entries)  # may have changed meanwhile
        self.urls[peer.id] = peer.url
        self._let_in[peer.id] = member = LinkMember(peer.id, peer.name, peer.address)
        self._dial(member)

    def refused(self, error: LinkRefused | BadLetter) -> None:
        """Count and, at most once a second, log that a connection was closed for its content."""
        counters = self.counters
        if isinstance(error, BadLetter):
            counters.bad_letters += 1
        else:
            counters.refused += 1
        left_out = self._told.take(self._now_ms())
        if left_out is not None:
            _LOGGER.warning("link refused: %s%s", error, and_others(left_out))

    def _dial(self, member: LinkMember) -> None:
        if member.id not in self._peers:
            self._peers[member.id] = Peer(self, member, LETTERS)
            self._bulk[member.id] = Peer(self, member, BULK)


class Peer:
    """Keeps a connection to a peer: dials, and dials again after a pause."""

    def __init__(self, links: Links, member: LinkMember, purpose: str) -> None:
        self._links = links
        self._purpose = purpose
        self.member = member
        self.connection: DialledConnection | None = None
        self.problem = ""
        self._task = links.loop.create_task(self._keep())

    def cancel(self) -> None:
        """Stop dialling, and close what is open."""
        self._task.cancel()

    async def stop(self) -> None:
        """As `cancel`; returns when it is over."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _keep(self) -> None:
        pause_s, longest_s = PAUSE_S
        while True:
            try:
                await self._dial()
                pause_s = PAUSE_S[0]
            except LinkRefused as error:
                self.problem = str(error)
                self._links.refused(error)
                pause_s = longest_s
            except BadLetter as error:
                self.problem = str(error)
                self._links.refused(error)
            except ssl.SSLError as error:
                self.problem = f"no TLS with {self.member.name}: {error}"
                self._links.refused(LinkRefused(self.problem))
                pause_s = longest_s
            except (OSError, TimeoutError) as error:
                self.problem = str(error) or type(error).__name__
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(longest_s, 2 * pause_s)

    async def _dial(self) -> None:
        """Dial once, and stay until the connection ends."""
        links = self._links
        host, _, port = self.member.address.rpartition(":")
        nonce = secrets.token_bytes(NONCE_BYTES)
        dialler = Dialler(links.identity, self.member, nonce, self._purpose)
        connection = DialledConnection(links, dialler)
        async with asyncio.timeout(GREETING_S):
            transport, _ = await links.loop.create_connection(
                lambda: connection,
                host.strip("[]"),
                int(port),
                ssl=links.tls.dial if links.tls else None,
                server_hostname="" if links.tls else None,
            )
            try:
                await connection.up
            except BaseException:
                transport.abort()
                raise
        self.connection, self.problem = connection, ""
        self._tell(is_up=True)
        try:
            await connection.down
        finally:
            self.connection = None
            transport.abort()
            self._tell(is_up=False)

    def _tell(self, *, is_up: bool) -> None:
        if self._purpose == LETTERS:
            self._links.on_link(self.member.id, is_up)


class DialledConnection(asyncio.Protocol):
    """A connection that this node dialled: letters go out, nothing but a refusal comes back."""

    def __init__(self, links: Links, dialler: Dialler) -> None:
        self._links = links
        self._dialler = dialler
        self._reader = FrameReader(letter_bytes_max=GREETING_BYTES_MAX)
        self._writer = FrameWriter()
        self._outbox = Outbox()
        self._due: asyncio.Handle | None = None
        self.entries = UNTOLD
        self.up: asyncio.Future[None] = links.loop.create_future()
        self.down: asyncio.Future[None] = links.loop.create_future()
        self._transport: asyncio.Transport

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._transport.get_write_buffer_size() + self._outbox.bytes

    def check_entries(self) -> None:
        """End the connection if the peer cannot read what is written from now on."""
        try:
            check_entries(self._links.identity, self._dialler.peer.name, self.entries)
        except LinkRefused as error:
            self._end(error)

    def put(self, channel: int, payload: bytes, is_droppable: bool) -> bool:
        """Send an item at the end of this turn of the loop."""
        if self.down.done():
            return False
        unsent_bytes = self._transport.get_write_buffer_size()
        if self.unsent_bytes > 2 * WAITING_BYTES_MAX + self._outbox.longest_bytes:
            self._end(ConnectionError("the peer takes nothing: what waits for it is too much"))
            return False
        is_taken = self._outbox.put(
            channel, payload, is_droppable=is_droppable, unsent_bytes=unsent_bytes
        )
        if is_taken and self._due is None:
            self._due = self._links.loop.call_soon(self._flush)
        return is_taken

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        if self._due is not None:
            self._due.cancel()
            self._flush()

    def _flush(self) -> None:
        self._due = None
        counters = self._links.counters
        room_bytes = PART_BYTES - self._transport.get_write_buffer_size()
        for letter in self._outbox.take(room_bytes):
            if not self.down.done():
                counters.letters_sent += 1
                counters.bytes_sent += len(letter)
                self._transport.write(self._writer.frame(letter))
        if self._outbox.bytes and not self.down.done():
            self._due = self._links.loop.call_later(PART_PAUSE_S, self._flush)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        self._transport = cast(asyncio.Transport, transport)
        tune(transport)
        self._transport.write(self._writer.frame(self._dialler.begin()))

    def data_received(self, data: bytes) -> None:
        """Take the peer's greeting; later its reason for closing."""
        try:
            for letter in self._reader.feed(data):
                step = self._dialler.step(letter)
                if step.send:
                    self._transport.write(self._writer.frame(step.send))
                if step.session is not None:
                    self.entries = step.session.entries
                    check_entries(self._links.identity, self._dialler.peer.name, self.entries)
                    self._writer = FrameWriter(step.session.key)
                    if not self.up.done():
                        self.up.set_result(None)
        except (LinkRefused, BadLetter) as error:
            if not self.up.done():
                self._transport.write(self._writer.frame(refusal(str(error))))
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over."""
        ended: Exception = error or ConnectionError("the peer closed the connection")
        if self._links.tls is not None and not self.up.done():
            # In TLS 1.3 a certificate is shown before the peer has said what it thinks of it.
            ended = LinkRefused(f"no TLS with {self._dialler.peer.name}: {ended}")
        self._end(ended)

    def _end(self, error: Exception) -> None:
        self._transport.close()
        for future in (self.up, self.down):
            if not future.done():
                future.set_exception(error)
                future.exception()  # may not be awaited
