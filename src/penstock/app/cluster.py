"""A server as one node of a cluster: its `cluster.json`, its peers, and requests between them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.cluster.calls import CallLost, CallTooLarge, PassedBack, PassedOn, PeerAway
from penstock.cluster.handshake import SECRET_BYTES_MIN
from penstock.cluster.links import LinkTls, link_tls
from penstock.cluster.node import MEMBER_BITS, ClusterNode, NodeOptions
from penstock.cluster.outbox import WHOLE_BYTES_MAX
from penstock.cluster.roster import (
    CLUSTER_FILE,
    ClusterFile,
    check_address,
    check_member_name,
    decode_cluster_file,
    encode_cluster_file,
)
from penstock.config import ClusterSettings
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Corrupt, Rejected
from penstock.log.stores import open_store
from penstock.protocol.errors import NoLeader, NotTheLeader, OutcomeUnknown
from penstock.raft.members import Members, Named
from penstock.server.api.forwarding import PassedExchange
from penstock.server.api.queries import key_of
from penstock.server.http.message import USUAL, Answer, Request, Sender
from penstock.topics.core.versions import NEWEST
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from penstock.topics.persist.data_dir import (
    LOG_DIR,
    Layout,
    has_log,
    read_boot,
    read_layout,
    write_file,
)

if TYPE_CHECKING:
    from penstock.server.api.app import TopicApplication

CLUSTER_BYTES: Final = 8
"""Random bytes of a cluster's id."""
BODY_BYTES_MAX: Final = WHOLE_BYTES_MAX // 2
"""The largest request body on a node of a cluster: its entry in the log has at most twice that."""
_LOGGER: Final = logging.getLogger("penstock.cluster")


def read_cluster_file(directory: Path) -> ClusterFile | None:
    """Which member a data directory is; None if it is a node's alone."""
    path = directory / CLUSTER_FILE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return decode_cluster_file(content, str(path))


def check_is_member(directory: Path, file: ClusterFile) -> None:
    """Refuse a directory that has lost the log of the member it says it is."""
    if file.has_log and not has_log(directory):
        raise Corrupt(
            f"the log of {file.member.name} is gone from {directory}: without what it has promised "
            "it is not that member any more and may not vote; on a node that serves, run: penstock "
            f"cluster replace {file.member.name}"
        )


def check_body_bytes(body_bytes_max: int) -> None:
    """Refuse request bodies that could become entries which other nodes cannot be sent."""
    if body_bytes_max > BODY_BYTES_MAX:
        raise Rejected(
            f"max_body_bytes is {body_bytes_max}: a node of a cluster takes at most "
            f"{BODY_BYTES_MAX}, so that every write can be sent to its peers"
        )


def init_cluster(
    directory: Path,
    *,
    name: str,
    address: str,
    partitions: int,
) -> ClusterFile:
    """Make a data directory, new or that of a node alone, a cluster of one."""
    if read_cluster_file(directory) is not None:
        raise Rejected(f"{directory} is a member of a cluster already: see {CLUSTER_FILE} in it")
    layout = read_layout(directory) or Layout(1, "segment", partitions, mixes_epochs=True)
    if layout.store == "memory":
        raise Rejected("a log in memory cannot be of a cluster: what is synced would be lost")
    member = Named(
        secrets.randbits(MEMBER_BITS) or 1, check_member_name(name), check_address(address)
    )
    boot = read_boot(directory)
    if boot is not None and boot.boot_id is None and has_log(directory):
        asyncio.run(_open_once(directory, layout))
    file = ClusterFile(
        cluster=secrets.token_hex(CLUSTER_BYTES),
        member=member,
        partitions=layout.partitions,
        identity=layout.identity,
        founders=Members((member.id,), (), (member,)),
        entries=NEWEST,
    )
    write_file(directory / CLUSTER_FILE, [encode_cluster_file(file)])
    return file


async def _open_once(directory: Path, layout: Layout) -> None:
    """Open a restored directory as that of a node alone, which logs that it has no other members.

    Without that a backup of a cluster would look for the members of that cluster.
    """
    store = open_store(layout.store, directory / LOG_DIR)
    engine = Engine(store, EngineOptions(partitions=layout.partitions, data_dir=directory))
    try:
        await engine.open()
    finally:
        await engine.close()
        store.close()


def join_cluster(directory: Path, content: dict[str, Any]) -> ClusterFile:
    """Make a new data directory the member that the cluster has taken in."""
    file = msgspec.convert(content, ClusterFile)
    write_file(directory / CLUSTER_FILE, [encode_cluster_file(file)])
    return file


def node_options(settings: ClusterSettings, directory: Path, url: str) -> NodeOptions:
    """What the node is told: where it is, and how it trusts its peers."""
    return NodeOptions(
        directory=directory,
        secret=_secret(settings.secret_file),
        tls=_tls(settings),
        together=settings.leaders == "together",
        url=url,
    )


def _secret(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        found = path.read_bytes().strip()
    except OSError as error:
        raise Rejected(f"cannot read the cluster's secret {path}: {error}") from error
    if len(found) < SECRET_BYTES_MIN:
        raise Rejected(f"{path} has {len(found)} bytes: a secret needs {SECRET_BYTES_MIN}")
    return found


def _tls(settings: ClusterSettings) -> LinkTls | None:
    cert, key, authority = settings.tls_cert, settings.tls_key, settings.tls_ca
    if cert is None or key is None or authority is None:
        return None
    return link_tls(cert, key, authority)


class ServedCluster:
    """The cluster as the server sees it, and the server as its peers see it."""

    def __init__(self, file: ClusterFile, options: NodeOptions, *, clock: Clock) -> None:
        self.own = file.member.id
        self.node = ClusterNode(file, options, clock=clock, serve=self._serve)
        self.application: TopicApplication | None = None
        """Answers what peers pass on; None until this node is ready."""

    def leader(self, partition: int) -> int:
        """The member that leads a partition; 0 if it is not known."""
        return self.node.journal.leader(partition)

    def serves(self, partition: int) -> bool:
        """Whether this node decides for a partition."""
        return self.node.journal.serves(partition)

    def url_of(self, member: int) -> str:
        """Where clients reach a member; empty if that is not known."""
        return self.node.url_of(member)

    async def confirm(self, partition: int) -> None:
        """Return when this node shows everything that was answered before the call."""
        await self.node.journal.confirm_read(partition)

    async def forward(self, member: int, partition: int, request: Request, peer: str) -> Answer:
        """Pass a request on; raises `NoLeader` if it was not sent, `OutcomeUnknown` if it was."""
        digest = b""
        if self.application is not None:
            auth = self.application.context.auth
            digest = auth.key_digest(request.headers, request.sender)
        passed = PassedOn(
            request.method, request.path, request.query, request.headers, request.body, peer, digest
        )
        try:
            answer = await self.node.calls.call(member, partition, passed)
        except PeerAway as error:
            raise NoLeader(f"the leader, {self.node.name_of(member)}, is away: {error}") from error
        except CallTooLarge as error:
            raise NotTheLeader(error.message, leader=self.url_of(member)) from error
        except CallLost as error:
            key = key_of(request.body, request.headers)
            raise OutcomeUnknown(error.message, idempotency_key=key) from error
        return Answer(answer.status, answer.body, answer.content_type, answer.headers)

    def members(self) -> list[tuple[int, str]]:
        """The id and the name of every member."""
        return [(each.id, each.name) for each in self.node.roster.named]

    def view(self) -> dict[str, Any]:
        """How the cluster stands."""
        return self.node.view()

    async def add(self, name: str, address: str) -> dict[str, Any]:
        """Take a member in; the content of its `cluster.json`."""
        return _content(await self.node.add(name, address))

    async def remove(self, name: str, *, force: bool) -> None:
        """Take a member out."""
        await self.node.remove(name, force=force)

    async def replace(self, name: str, address: str, *, force: bool) -> dict[str, Any]:
        """Take a member out whose directory is lost, and one in by its name."""
        return _content(await self.node.replace(name, address, force=force))

    def transfer(self, partition: int, name: str) -> None:
        """Hand the leadership of a partition over."""
        self.node.transfer(partition, name)

    async def _serve(self, passed: PassedOn) -> PassedBack:
        """Answer a request that a peer passed on."""
        sender = Sender(key_digest=passed.key_digest) if passed.key_digest else USUAL
        request = Request(
            passed.method, passed.path, passed.query, passed.headers, passed.body, sender
        )
        exchange = PassedExchange(request, passed.peer)
        if self.application is None:
            refused = NoLeader("the node that leads is starting or ending: nothing was changed")
            return PassedBack(503, _refusal(refused), b"application/json")
        self.application(exchange)
        answer = await asyncio.shield(exchange.answered)
        return PassedBack(answer.status, answer.body, answer.content_type, tuple(answer.headers))


def _content(file: ClusterFile) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(file)
    return content


def _refusal(error: NoLeader) -> bytes:
    return msgspec.json.encode({"error": {"code": error.code, "message": error.message}})
