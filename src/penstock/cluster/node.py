"""One node of a cluster: it carries letters and calls, and brings its groups to the roster.

Commands about members run on the node that leads partition 0; the server passes them on to it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from penstock.cluster.calls import Calls, PassedBack, PassedOn
from penstock.cluster.frames import BadLetter
from penstock.cluster.handshake import EntryVersions, LinkIdentity, LinkMember
from penstock.cluster.links import Links, LinkTls
from penstock.cluster.outbox import ANSWER, CALL, RAFT, SNAPSHOT
from penstock.cluster.placement import order_of, transfer_to
from penstock.cluster.roster import (
    CLUSTER_FILE,
    ClusterFile,
    KeptUp,
    check_addition,
    check_removal,
    encode_cluster_file,
    find,
    has_no,
    next_change,
    next_promotion,
    underway,
)
from penstock.cluster.transfer import Transfers
from penstock.cluster.upgrade import held_by, next_entries, read_by
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Corrupt, PenstockError
from penstock.protocol.errors import ChangeInProgress, NoLeader, OutcomeUnknown
from penstock.raft.group import FollowerStatus, GroupStatus
from penstock.raft.journal import GroupOptions, ReplicatedJournal
from penstock.raft.members import ADD_LEARNER, REMOVE, Change, Members, Named
from penstock.raft.messages import InstallSnapshot
from penstock.raft.ready import NotLeader
from penstock.topics.core.versions import NEWEST, WrittenVersion
from penstock.topics.engine.engine import Engine
from penstock.topics.persist.data_dir import write_file

STEP_S: Final = 0.25
"""How often groups are compared with the roster."""
HAND_OVER_S: Final = 3.0
REMOVED_S: Final = 30.0
MEMBER_BITS: Final = 63

_LOGGER: Final = logging.getLogger("penstock.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What a node is told about itself and its peers."""

    directory: Path
    secret: bytes = b""
    tls: LinkTls | None = None
    together: bool = False
    url: str = ""
    """Where clients reach this node."""


def group_options(file: ClusterFile) -> GroupOptions:
    """What the journal of a member is told."""
    return GroupOptions(member=file.member.id, founders=file.founders, identity=file.identity)


class ClusterNode:
    """This node among its peers. `start` before the engine opens, `stop` after it closed."""

    def __init__(
        self,
        file: ClusterFile,
        options: NodeOptions,
        *,
        clock: Clock,
        serve: Callable[[PassedOn], Awaitable[PassedBack]],
    ) -> None:
        self.file = file
        self._options = options
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        own = file.member
        identity = LinkIdentity(
            cluster=file.cluster,
            member=LinkMember(own.id, own.name, own.address, options.url),
            secret=options.secret,
            entries=EntryVersions(min(file.entries, NEWEST), NEWEST),
        )
        self.links = Links(
            identity,
            clock=clock,
            on_item=self._on_item,
            on_link=self._on_link,
            is_removed=self._is_removed,
            tls=options.tls,
        )
        self.calls = Calls(self.links.send, serve, loop=self._loop)
        self._active = file.entries
        self._engine: Engine | None = None
        self._journal: ReplicatedJournal | None = None
        self._transfers: Transfers | None = None
        self._kept_up = [KeptUp() for _ in range(file.partitions)]
        self._led_since_ms: dict[int, int] = {}
        self._elections = 0
        self._known: dict[int, tuple[int, int]] = {}  # the last leader of a partition, and its term
        self._stepping: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # from the decision on a change to its commit
        self._saved: ClusterFile = file

    def bind(self, engine: Engine) -> None:
        """Carry the letters and the snapshots of this engine's journal."""
        self._engine = engine
        journal = self._journal = engine.journal
        send = partial(self.links.send_bulk, channel=SNAPSHOT)
        self._transfers = Transfers(engine, send, self.name_of)
        journal.connect(self)
        journal.on_leader.append(self._on_leader)
        self._write_entries(self.roster)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen for peers and dial them."""
        address = await self.links.start(host, port)
        self.links.know(map(_linked, self.file.known))
        self._stepping = self._loop.create_task(self._keep_stepping())
        return address

    async def stop(self) -> None:
        """Leave the conversation."""
        if self._stepping is not None:
            self._stepping.cancel()
        self.calls.stop()
        if self._transfers is not None:
            self._transfers.stop()
        await self.links.stop()

    # What the journal asks of links

    def send(self, member: int, letter: bytes, *, is_droppable: bool = False) -> None:
        """Send a letter of the groups, or drop it."""
        self.links.send(member, RAFT, letter, is_droppable=is_droppable)

    def flush(self) -> None:
        """Send what waits for the end of this turn."""
        self.links.flush()

    def send_snapshot(self, partition: int, message: InstallSnapshot) -> None:
        """Bring a member the snapshot that it needs, in the background."""
        assert self._transfers is not None, "bound before it is asked"
        self._transfers.offer(partition, message)

    # Who is who

    @property
    def journal(self) -> ReplicatedJournal:
        """The journal of this node."""
        assert self._journal is not None, "bound before it is asked"
        return self._journal

    @property
    def roster(self) -> Members:
        """The members of the cluster, as far as this node knows."""
        if self._journal is not None:
            try:
                members = self._journal.members(0)
            except PenstockError:
                members = Members(())
            if members.named:
                return members
        named = (self.file.member, *self.file.known)
        return Members((), tuple(each.id for each in named), named)

    def name_of(self, member: int) -> str:
        """A member's name, or its id."""
        for each in self.roster.named:
            if each.id == member:
                return each.name
        return f"{member:016x}" if member else ""

    def url_of(self, member: int) -> str:
        """Where clients reach a member; empty if that is not known."""
        if member == self.file.member.id:
            return self._options.url
        return self.links.urls.get(member, "")

    def reached(self) -> set[int]:
        """The members that this node can talk to, itself among them."""
        up = {each.member.id for each in self.links.status() if each.is_up}
        return up | {self.file.member.id}

    # Commands about members, on the node that leads partition 0

    async def add(self, name: str, address: str) -> ClusterFile:
        """Take a new member in as a learner; what its `cluster.json` is to say."""
        async with self._changing:
            return await self._add(name, address)

    async def _add(self, name: str, address: str) -> ClusterFile:
        self._check_leads()
        self._check_nothing_underway()
        named = Named(secrets.randbits(MEMBER_BITS) or 1, name, address)
        check_addition(self.roster, named)
        if change := self._next_entries():  # the new member may not read what is written already
            await self.journal.change_members(0, change)
        await self.journal.change_members(0, Change(ADD_LEARNER, named.id, named))
        roster = self.roster
        known = tuple(each for each in roster.named if each.id != named.id)
        return replace(
            self.file, member=named, founders=Members(()), known=known, has_log=False,
            entries=roster.entries.active,
        )  # fmt: skip

    async def remove(self, name: str, *, force: bool = False) -> Named:
        """Take a member out of the cluster. A leader hands over first, and the new one does it."""
        async with self._changing:
            return await self._remove(name, force=force)

    async def _remove(self, name: str, *, force: bool) -> Named:
        self._check_leads()
        leaving = find(self.roster, name)
        if not force:
            self._check_nothing_underway()
            check_removal(self.roster, leaving.id, self.reached())
        if leaving.id == self.file.member.id:
            await self._hand_over()
        await self.journal.change_members(0, Change(REMOVE, leaving.id))
        return leaving

    async def replace(self, name: str, address: str = "", *, force: bool = False) -> ClusterFile:
        """Take a member out whose directory is lost, and a new one in by its name.

        Run again with the address, it goes on after a removal that an earlier call has made.
        """
        self._check_leads()
        if has_no(self.roster, name) and address:
            await self._wait_for_changes()
            return await self.add(name, address)
        gone = find(self.roster, name)
        address = address or gone.address
        stay = tuple(each for each in self.roster.named if each is not gone)
        check_addition(Members((), (), stay), Named(0, gone.name, address))
        await self.remove(name, force=force)
        try:
            await self._wait_for_changes()
            return await self.add(gone.name, address)
        except PenstockError as error:
            raise OutcomeUnknown(
                f"{gone.name} was taken out, and is not known to be in again: {error.message}; run "
                f"`penstock cluster replace {gone.name} {address}` again, with its --data-dir"
            ) from error

    async def _wait_for_changes(self) -> None:
        """Return when no change is under way, or raise `ChangeInProgress`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REMOVED_S):
                while self._underway():
                    await asyncio.sleep(STEP_S)
        self._check_nothing_underway()

    def transfer(self, partition: int, name: str) -> None:
        """Ask for the leadership of a partition to be handed over to a member."""
        try:
            self.journal.transfer(partition, find(self.roster, name).id)
        except NotLeader as error:
            error.detail["partition"] = partition
            raise

    def _check_leads(self) -> None:
        if not self.journal.serves(0):
            raise NotLeader(
                "another node leads partition 0, where members are changed",
                leader=self.journal.leader(0),
                partition=0,
            )

    def _check_nothing_underway(self) -> None:
        if words := self._underway():
            raise ChangeInProgress(f"{words}: wait until that is done", underway=words)

    def _underway(self) -> str:
        """The change under way, as far as the groups that this node takes part in tell."""
        groups = sorted(self.journal.groups.keys() - {0})
        return underway(self.roster, map(self.journal.members, groups))

    async def _hand_over(self) -> None:
        """Hand partition 0 over, and refuse with the name of the new leader."""
        journal, own = self.journal, self.file.member.id
        target = next((each for each in self.roster.voters if each in self.reached() - {own}), 0)
        journal.transfer(0, target)
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                while journal.leader(0) in (own, 0):
                    await asyncio.sleep(STEP_S / 10)
        if journal.leader(0) in (own, 0):
            raise NoLeader(
                f"the leader did not hand over within {HAND_OVER_S:g} s, and stays: try again, or "
                "remove the member when another one leads partition 0"
            )
        raise NotLeader(
            "the leader handed over: ask the new one", leader=journal.leader(0), partition=0
        )

    # Steps by time

    async def _keep_stepping(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            try:
                self._follow_roster()
                for partition in range(self.file.partitions):
                    async with self._changing:
                        await self._step(partition)
            except (PenstockError, TimeoutError) as error:
                _LOGGER.info("the groups are compared with the roster again: %s", error)

    def _follow_roster(self) -> None:
        roster = self.roster
        self.links.know(map(_linked, roster.named))
        if 0 in self.journal.groups:
            self._write_entries(self.journal.committed_members(0))
        if self.file.member.id in roster:
            known = tuple(each for each in roster.named if each.id != self.file.member.id)
            saved = replace(self._saved, known=known, has_log=True, entries=self._active)
            if saved != self._saved:
                self._save(saved)

    def _write_entries(self, roster: Members) -> None:
        """Write entries in the version that the roster says.

        Links first: a peer that cannot read the version must not be sent an entry of it.
        """
        assert self._engine is not None, "bound before it starts"
        self._active = max(self._active, roster.entries.active)
        version = min(self._active, NEWEST)
        self.links.write_entries(version)
        self._engine.registry.written = WrittenVersion(version, held_by(roster, version))

    def _next_entries(self) -> Change | None:
        """What this node, which leads partition 0, has heard and the roster does not say yet."""
        told = {member: each.read for member, each in self.links.told().items()}
        told[self.file.member.id] = NEWEST
        return next_entries(self.journal.members(0), told, self._active)

    def _save(self, file: ClusterFile) -> None:
        """Write `cluster.json`; where that cannot be done the groups still need this node."""
        path = self._options.directory / CLUSTER_FILE
        try:
            write_file(path, [encode_cluster_file(file)])
        except OSError as error:
            _LOGGER.warning("%s is written again later: %s", path, error)
        else:
            self._saved = file

    async def _step(self, partition: int) -> None:
        """Change one member of a group that this node leads, or hand it over."""
        journal = self.journal
        if not journal.serves(partition):
            self._kept_up[partition].look((), 0)
            return
        now_ms = self._clock.now_ms()
        status = journal.group_status(partition)
        near = [each.member for each in status.followers if each.stage == "replicate"]
        ready = self._kept_up[partition].look(near, now_ms)
        if 0 not in journal.groups:  # the roster cannot be followed here
            self._leave(partition, ready)
            return
        change = self._next_change(partition, ready)
        if change is not None and change.verb == REMOVE and change.member == self.file.member.id:
            self._leave(partition, ready)
        elif change is not None:
            await journal.change_members(partition, change)
        else:
            self._place(partition, status, ready)

    def _next_change(self, partition: int, ready: set[int]) -> Change | None:
        group, roster = self.journal.members(partition), self.journal.members(0)
        if partition:
            return next_change(group, roster, ready)
        others = [self.journal.members(number) for number in range(1, self.file.partitions)]
        return next_promotion(roster, others, ready) or self._next_entries()

    def _leave(self, partition: int, ready: set[int]) -> None:
        """Hand over a group that this node is no longer to be in, or cannot bring to the roster."""
        for member in self.journal.members(partition).voters:
            if member in ready and member in self.roster:
                self.journal.transfer(partition, member)
                return

    def _place(self, partition: int, status: GroupStatus, healthy: set[int]) -> None:
        order = order_of(partition, status.members, together=self._options.together)
        target = transfer_to(
            partition,
            order,
            own=self.file.member.id,
            healthy=healthy & self.reached(),
            led_since_ms=self._led_since_ms.get(partition, 0),
            now_ms=self._clock.now_ms(),
            partitions=self.file.partitions,
        )
        if target:
            self.journal.transfer(partition, target)

    # What comes in

    def _on_item(self, sender: int, channel: int, payload: bytes) -> None:
        try:
            if channel == RAFT:
                if self._journal is not None:
                    self._journal.receive(sender, payload)
            elif channel == CALL:
                self.calls.on_call(sender, payload)
            elif channel == ANSWER:
                self.calls.on_answer(sender, payload)
            elif channel == SNAPSHOT and self._transfers is not None:
                self._transfers.take(sender, payload)
            else:
                raise BadLetter(f"unknown channel {channel}")
        except Corrupt as error:
            raise BadLetter(str(error)) from error

    def _on_link(self, member: int, is_up: bool) -> None:
        self.calls.on_link(member, is_up)
        _LOGGER.info("link to %s is %s", self.name_of(member), "up" if is_up else "down")

    def _on_leader(self, partition: int, leader: int, term: int) -> None:
        if leader:
            self.calls.on_leader(partition, leader)
            # One that was not heard for a while and leads on was not elected.
            self._elections += self._known.get(partition) != (leader, term)
            self._known[partition] = (leader, term)
        self._led_since_ms[partition] = self._clock.now_ms()
        _LOGGER.info(
            "partition %d: %s leads term %d", partition, self.name_of(leader) or "no member", term
        )

    def _is_removed(self, member: int) -> bool:
        return member in self.roster.removed

    # For people

    def view(self) -> dict[str, Any]:
        """What `GET /v0/cluster` shows."""
        roster, links = self.roster, {each.member.id: each for each in self.links.status()}
        reads = read_by(roster)
        return {
            "cluster": self.file.cluster,
            "member": self.file.member.name,
            "members": [
                {
                    "name": each.name,
                    "id": f"{each.id:016x}",
                    "address": each.address,
                    "url": self.url_of(each.id),
                    "state": "voter" if each.id in roster.voters else "learner",
                    "reads": reads.get(each.id),
                    **self._link_view(each.id, links),
                }
                for each in roster.named
            ],
            "entries": self._entries_view(),
            "underway": self._underway() if self.journal.groups else "",
            "partitions": [
                self._group_view(self.journal.group_status(number))
                for number in range(self.file.partitions)
            ],
            "links": {
                name: getattr(self.links.counters, name) for name in self.links.counters.__slots__
            },
            "snapshots": self._transfers.view() if self._transfers is not None else {},
            "elections": {"seen": self._elections},
            "calls": {
                "sent": self.calls.sent,
                "served": self.calls.served,
                "lost": self.calls.lost,
            },
        }

    def _entries_view(self) -> dict[str, Any]:
        assert self._engine is not None, "bound before it is asked"
        newest = max(read_by(self.roster).values(), default=self._active)
        members = self._engine.registry.written.held_by
        return {"active": self._active, "newest": newest, "held_by": members}

    def _link_view(self, member: int, links: dict[int, Any]) -> dict[str, Any]:
        if member == self.file.member.id:
            return {"link": "self"}
        found = links.get(member)
        if found is None:
            return {"link": "none"}
        seen = {"link": "up" if found.is_up else "down", "heard_ms_ago": found.heard_ms_ago}
        return seen | ({"problem": found.problem} if found.problem else {})

    def _group_view(self, status: GroupStatus) -> dict[str, Any]:
        return {
            "partition": status.partition,
            "role": status.role,
            "term": status.term,
            "leader": self.name_of(status.leader),
            "serving": status.serving,
            "last": status.last,
            "synced": status.synced,
            "committed": status.commit,
            "applied": status.applied,
            "snapshot": status.snapshot,
            "voters": [self.name_of(each) for each in status.members.voters],
            "learners": [self.name_of(each) for each in status.members.learners],
            "stopped": status.reason,
            "followers": [
                {
                    "name": self.name_of(each.member),
                    "stage": each.stage,
                    "match": each.match,
                    "lag": status.last - each.match,
                    "waits": waits(each, status.last),
                    "in_flight_messages": each.in_flight_messages,
                    "in_flight_bytes": each.in_flight_bytes,
                    "heard": each.heard,
                    "paused": each.paused,
                }
                for each in status.followers
            ],
        }


def waits(follower: FollowerStatus, last: int) -> str:
    """Why a follower does not have the leader's last entry, in words; empty if it has."""
    if follower.match >= last:
        return ""
    if not follower.heard:
        return "it is not heard from"
    if follower.stage == "snapshot":
        return "it is brought a snapshot"
    if follower.paused:
        return "its log takes nothing, as on a full disk"
    if follower.stage == "probe":
        return "the place where its log ends is looked for"
    return "entries are on their way"


def _linked(named: Named) -> LinkMember:
    return LinkMember(named.id, named.name, named.address)
