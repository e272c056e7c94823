"""Requests on a node of a cluster: passed on to the node that leads, or read when that is certain.

The application asks before it handles a request, and again when a handler found that this node does
not lead. A request that a peer passed on is never passed on again. Streams are not passed on: one
that only the leader can serve is refused with its address, and clients go there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

from penstock.kernel.errors import PenstockError
from penstock.protocol.errors import LEADER_HEADER, NoLeader, NotTheLeader
from penstock.protocol.routes import ADMIN, DELETE, WRITE, Route
from penstock.raft.ready import NotLeader
from penstock.server.api.queries import Query
from penstock.server.http.message import Answer, Exchange, Headers, Request, Stream, WebSocket
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.registry import partition_of
from penstock.topics.engine.engine import Engine

CATCH_UP_MS: Final = 1_000
"""How long a read waits at least for this node to have what its cursor has seen."""
_READS: Final = ("/v0/topics", "/v0/spaces", "/v0/routers", "/v0/queues")
_CHANGES: Final = WRITE | DELETE | ADMIN


class Cluster(Protocol):
    """The cluster, as far as the server needs it."""

    own: int
    """The id of this member."""

    def leader(self, partition: int) -> int:
        """The member that leads a partition; 0 if it is not known."""

    def serves(self, partition: int) -> bool:
        """Whether this node decides for a partition."""

    def url_of(self, member: int) -> str:
        """Where clients reach a member; empty if that is not known."""

    async def confirm(self, partition: int) -> None:
        """Return when this node shows everything that was answered before the call."""

    async def forward(self, member: int, partition: int, request: Request, peer: str) -> Answer:
        """Pass a request on; raises `NoLeader` if it was not sent, `OutcomeUnknown` if it was."""

    def members(self) -> list[tuple[int, str]]:
        """The id and the name of every member."""

    def view(self) -> dict[str, Any]:
        """How the cluster stands."""

    async def add(self, name: str, address: str) -> dict[str, Any]:
        """Take a member in; the content of its `cluster.json`."""

    async def remove(self, name: str, *, force: bool) -> None:
        """Take a member out."""

    async def replace(self, name: str, address: str, *, force: bool) -> dict[str, Any]:
        """Take a member out whose directory is lost, and one in by its name."""

    def transfer(self, partition: int, name: str) -> None:
        """Hand the leadership of a partition over."""


class PassedExchange:
    """A request that a peer passed on: answered once, as a whole."""

    on_gone: Callable[[], None] | None = None
    is_head = is_gone = may_be_gone = False

    def __init__(self, request: Request, peer: str) -> None:
        self.request = request
        self.peer = peer
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Take the answer."""
        if not self.answered.done():
            self.answered.set_result(Answer(status, body, content_type, tuple(headers)))

    def reply_json(self, body: bytes) -> None:
        """Take an answer of status 200."""
        self.reply(200, body)

    def expect_again(self, handle: Callable[[Exchange], None]) -> None:
        """Each request comes alone."""

    def stream(self, content_type: bytes = b"", headers: Headers = ()) -> Stream:
        """A stream stays where it was opened."""
        raise NotTheLeader("a stream is not passed on between nodes")

    def upgrade(self, subprotocol: str | None = None) -> WebSocket:
        """A WebSocket stays where it was opened."""
        raise NotTheLeader("a WebSocket is not passed on between nodes")


class _Inner(NamedTuple):
    """A request that came in a message of a stream."""

    request: Request
    peer: str


class Forwarding:
    """Decides which node answers a request."""

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        self._engine = engine
        self._cluster = cluster
        self._partitions = engine.options.partitions

    def before(self, exchange: Exchange, route: Route, name: str) -> Awaitable[Answer] | None:
        """The answer of another node, where this one must not handle the request."""
        if route.named != "topic" or not route.is_data:
            return None
        if route.is_stream:
            self.check_leads(name)
            return None
        partition = partition_of(name, self._partitions)
        if self._cluster.serves(partition):
            return None
        if route.scopes & _CHANGES or self._is_elsewhere(name):
            return self._pass_on(exchange, partition, self._cluster.leader(partition))
        return None

    def check_leads(self, name: str) -> None:
        """Refuse a stream that only the leader of a topic's partition can serve."""
        partition = partition_of(name, self._partitions)
        if self._cluster.serves(partition):
            return
        leader = self._cluster.leader(partition)
        url = self._cluster.url_of(leader) if leader != self._cluster.own else ""
        if not url:
            raise NoLeader("no node is known to lead this partition now: nothing was changed")
        raise NotTheLeader(f"only the node that leads can serve this: ask {url}", leader=url)

    def check_watched(self, name: str) -> None:
        """Refuse to watch a topic here whose records are with its leader alone."""
        if self._is_elsewhere(name):
            self.check_leads(name)

    def left_behind(self, partition: int) -> list[str]:
        """The topics watched here whose records are with another leader now."""
        if self._cluster.serves(partition):
            return []
        watched = list(self._engine.watchers.by_topic)
        return [
            name
            for name in watched
            if partition_of(name, self._partitions) == partition and self._is_elsewhere(name)
        ]

    def write(self, exchange: Exchange, name: str, request: Request) -> Awaitable[Answer] | None:
        """The answer of the leader to a write that came over a stream; None if this node leads."""
        partition = partition_of(name, self._partitions)
        if self._cluster.serves(partition):
            return None
        leader = self._cluster.leader(partition)
        return self._pass_on(_Inner(request, exchange.peer), partition, leader)

    def after(self, exchange: Exchange, error: NotLeader, name: str) -> Awaitable[Answer] | None:
        """The answer of the node that leads, where a handler found that this one does not.

        `name` is the topic of the request, if it has one; else the error says which partition.
        """
        if isinstance(exchange, PassedExchange):
            return None
        partition = int(error.detail.get("partition", -1))
        if name:
            partition = partition_of(name, self._partitions)
        return self._pass_on(exchange, partition, int(error.detail.get("leader", 0)))

    def must_confirm(self, exchange: Exchange, route: Route, name: str) -> list[int]:
        """The partitions of which a read wants to see everything that was answered before it."""
        is_read = route.method == "GET" and not route.is_stream and route.is_data
        if not is_read or not route.path.startswith(_READS):
            return []
        if Query(exchange.request.query).text("consistency") == "local":
            return []
        if route.named == "topic":
            return [partition_of(name, self._partitions)]
        return list(range(self._partitions))

    async def confirm(self, partitions: list[int]) -> None:
        """Wait until this node has everything that was answered before, or raise `NoLeader`."""
        try:
            await asyncio.gather(*map(self._cluster.confirm, partitions))
        except PenstockError as error:
            raise NoLeader(
                f"the read cannot be confirmed: {error.message}; read with consistency=local what "
                "this node has"
            ) from error

    async def catch_up(self, name: str, request: ReadRequest) -> bool:
        """Wait until this node has what a cursor has seen elsewhere; False if that took too long.

        Once the leader has confirmed what there is, a cursor that is still ahead is of a topic that
        is gone.
        """
        if not self._is_ahead(name, request.from_seq, request.epoch):
            return True
        partition = partition_of(name, self._partitions)
        try:
            async with asyncio.timeout(max(request.wait_ms, CATCH_UP_MS) / 1e3):
                await self._cluster.confirm(partition)
        except (PenstockError, TimeoutError):
            return False
        return True

    def _is_ahead(self, name: str, from_seq: int, epoch: int | None) -> bool:
        topic = self._engine.registry.topics.get(name)
        if topic is None:
            return True
        return from_seq > topic.head_seq or (epoch is not None and epoch != topic.told_epoch)

    def _is_elsewhere(self, name: str) -> bool:
        """Whether the records of a topic are with its leader alone."""
        topic = self._engine.registry.topics.get(name)
        return topic is not None and topic.config.durability == "ephemeral"

    async def _pass_on(self, exchange: Exchange | _Inner, partition: int, leader: int) -> Answer:
        if isinstance(exchange, PassedExchange) or leader in (0, self._cluster.own):
            raise NoLeader("no node is known to lead this partition now: nothing was changed")
        answer = await self._cluster.forward(leader, partition, exchange.request, exchange.peer)
        url = self._cluster.url_of(leader).encode()
        return answer._replace(headers=(*answer.headers, (LEADER_HEADER.encode(), url)))
