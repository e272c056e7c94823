"""The log of a node whose partitions are groups: behind the same interface as the log of one node.

All messages of all groups to a member, in one turn of the loop, are one letter. What carries
letters and snapshots is handed in; a node alone has nothing to carry.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final, Protocol

import msgspec

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Corrupt
from penstock.kernel.units import MIB
from penstock.log.executor import WorkKind
from penstock.log.journal import LocalJournal, OnDurable
from penstock.log.reads import ReadRange, resolve
from penstock.log.store import LogStore, Operation
from penstock.raft import messages as m
from penstock.raft.core import Core
from penstock.raft.group import Group, GroupStatus, OnDone, Replica
from penstock.raft.heartbeats import Heartbeats
from penstock.raft.members import Change, Members
from penstock.raft.progress import Limits
from penstock.raft.ready import NotLeader, Restored

LETTER_BYTES: Final = 8 * MIB
"""The most bytes of entries in a letter, unless it is a single message: then it goes in parts."""
LETTER_VERSION: Final = 1
KEEP_BYTES_MAX: Final = 1024 * MIB
"""From this size on a log is not kept for a member that is behind."""
FIRST_READ_MAX: Final = 1 << 62
"""Reads are numbered from a random number up to this, drawn at each start of a member."""
OnLeader = Callable[[int, int, int], None]


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place in its groups.

    `founders` are the members of a log without any change of members: the node itself where it
    made the cluster, none where it joins. `identity` is added to the epochs that readers are shown,
    the same on all nodes, so that a cursor can move between them; None: that of the data directory.
    """

    member: int = 1
    founders: Members = Members((1,))
    identity: int | None = None
    limits: Limits = Limits()
    tick_ms: int = 100


class Links(Protocol):
    """What carries letters to other nodes."""

    def send(self, member: int, letter: bytes, *, is_droppable: bool) -> None:
        """Send a letter, or drop it. Never waits.

        What is in a droppable one, entries, is sent again; dropping others delays elections.
        """
        ...

    def send_snapshot(self, partition: int, message: m.InstallSnapshot) -> None:
        """Bring a member a snapshot and then this message; `snapshot_sent` must be told."""
        ...

    def flush(self) -> None:
        """Send at once what was to be sent together with others of this turn."""
        ...


class Start(msgspec.Struct, frozen=True):
    """What a partition's state has when its group starts: a snapshot, and what was replayed."""

    snapshot: int
    applied: int
    members: Members


class ReplicatedJournal(LocalJournal):
    """Appends payloads to the logs of many partitions, each a group of members."""

    def __init__(
        self,
        store: LogStore,
        *,
        partitions: int,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        options: GroupOptions,
        began: Callable[[int, int], bytes],
        disk_sync_ms: int = 100,
        draw: Callable[[int, int], int] | None = None,
    ) -> None:
        """`began(partition, term)` is the payload of a leader's first entry."""
        super().__init__(
            store, partitions=partitions, loop=loop, clock=clock, disk_sync_ms=disk_sync_ms
        )
        self.options = options
        self.groups: dict[int, Group] = {}
        self.on_leader: list[OnLeader] = []
        self.heartbeats = Heartbeats(options.tick_ms)
        self._began = began
        self._draw = draw or Random().randint
        self._links: Links | None = None
        self._outbox: dict[tuple[int, bool], list[tuple[int, m.Message]]] = {}
        self._outbox_bytes: dict[int, int] = {}
        self._copied: list[int] = []  # partitions whose members are those of another log
        self._ticking: asyncio.TimerHandle | None = None

    # Start and stop ----------------------------------------------------------------------------
    def connect(self, links: Links) -> None:
        """Carry letters with these links; before the start."""
        self._links = links

    def open_group(self, partition: int, replica: Replica, start: Start) -> Group:
        """Take part in a partition's group; its state has been restored."""
        core = Core(
            self.options.member,
            self._restored(partition, start),
            draw=self._draw,
            began=partial(self._began, partition),
            limits=self.options.limits,
        )
        executor = self.executors[partition]
        isolated = self._links is None and core.is_alone
        if isolated and start.members.voters:
            self._copied.append(partition)
        first_read = self._draw(1, FIRST_READ_MAX)
        group = Group(
            partition, core, replica, self, executor, is_isolated=isolated, first_read=first_read
        )
        self.groups[partition] = group
        tell = executor.on_failed

        def on_failed(error: Exception) -> None:
            group.stop(error)
            tell(error)

        executor.on_failed = on_failed
        return group

    async def begin(self) -> None:
        """Start all groups. A node that is alone leads them when this returns.

        One whose directory was a cluster's takes itself as the only member, and logs that: a
        cluster may be made of it again.
        """
        waits = []
        for group in self.groups.values():
            if group.core.is_alone:
                future: asyncio.Future[None] = self._loop.create_future()
                group.on_started = partial(_tell, future)
                waits.append(future)
            group.executor.submit(WorkKind.CONTROL, group.start)
        if waits:
            await asyncio.gather(*waits)
        await asyncio.gather(*map(self._forget_members, self._copied))
        if self._links is not None:
            self._ticking = self._loop.call_later(self.options.tick_ms / 1e3, self._tick_by_time)

    async def _forget_members(self, partition: int) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self.groups[partition].forget_members(partial(_tell, future))
        await future

    def stop_timed_syncs(self) -> None:
        """Stop everything that is done by time: the journal is about to stop."""
        super().stop_timed_syncs()
        if self._ticking is not None:
            self._ticking.cancel()

    def _restored(self, partition: int, start: Start) -> Restored:
        store, bounds = self.store, self.store.bounds(partition)
        founders = self.options.founders
        alone = self._links is None and founders.voters == (self.options.member,)
        founded = founders if alone or not start.members.voters else start.members
        at = max(start.snapshot, bounds.boundary_index)
        mark = m.Mark(at, store.term_at(partition, at) if at else 0, founded)
        applied = max(start.applied, at)
        return Restored(
            hard=store.hard_state(partition),
            mark=mark,
            runs=_runs(store, partition, bounds.boundary_index, bounds.last_index),
            entries=list(self.entries(partition, applied + 1, bounds.last_index)),
            applied=applied,
            last_index=bounds.last_index,
            founders=founders,
        )

    # The interface of a journal ----------------------------------------------------------------
    def append(self, partition: int, payload: bytes, on_durable: OnDurable, *, sync: bool) -> int:
        """Propose one entry and return its index; `on_durable` runs when it is to be applied."""
        began_ns = self._clock.monotonic_ns()
        group = self.groups[partition]
        done = partial(self._answered, on_durable, partition if sync else None, began_ns)
        index = group.propose(payload, done, sync=sync)
        self._in_flight += 1
        counters = self.counters
        counters.bytes_written += len(payload)
        if self._in_flight > counters.queue_depth_peak:
            counters.queue_depth_peak = self._in_flight
        if not sync and group.core.is_alone:
            self._unsynced.add(partition)
            if self._sync_timer is None:
                self._sync_timer = self._loop.call_later(self._disk_sync_s, self._sync_by_time)
        return index

    def term(self, partition: int) -> int:
        """The term that this node is in."""
        group = self.groups.get(partition)
        return group.core.term if group is not None else super().term(partition)

    def committed(self, partition: int) -> int:
        """The last index that is known to be committed."""
        group = self.groups.get(partition)
        if group is not None:
            return group.core.commit
        alone = self._links is None
        return self.store.bounds(partition).last_index if alone else 0

    def last_index(self, partition: int) -> int:
        """The last index given to an entry, durable or not."""
        group = self.groups.get(partition)
        return group.core.log.last_index if group is not None else super().last_index(partition)

    def resume(self, partition: int) -> None:
        """The group itself knows where its log ends."""

    # Members and leaders -----------------------------------------------------------------------
    def leader(self, partition: int) -> int:
        """The member that leads, as far as it is known here; 0 if it is not."""
        group = self.groups.get(partition)
        return group.leader if group is not None else 0

    def serves(self, partition: int) -> bool:
        """Whether this node leads a partition and has applied everything committed before."""
        group = self.groups.get(partition)
        return group is not None and group.serves

    def applied(self, partition: int) -> int:
        """The last entry in the state."""
        group = self.groups.get(partition)
        return group.core.applied if group is not None else 0

    def members(self, partition: int) -> Members:
        """The members as the end of the log has them."""
        return self._group(partition).core.members

    def committed_members(self, partition: int) -> Members:
        """The members as of the last entry that is known to be committed."""
        core = self._group(partition).core
        return core.members_at(core.commit)

    async def change_members(self, partition: int, change: Change) -> None:
        """Change the members of a group; returns when that is committed."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._group(partition).change(change, partial(_tell, future))
        await future

    def transfer(self, partition: int, member: int) -> None:
        """Hand the leadership of a partition over; `on_leader` tells when it is done."""
        self._group(partition).transfer(member)

    async def confirm_read(self, partition: int) -> None:
        """Return when the local state shows everything answered before this call."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._group(partition).confirm_read(partial(_tell, future))
        await future

    def group_status(self, partition: int) -> GroupStatus:
        """The published state of a group on this member, which may take no part in it yet."""
        group = self.groups.get(partition)
        if group is not None:
            return group.status()
        error = self.executors[partition].error
        reason = str(error) if error is not None else "not restored yet"
        member, nobody = self.options.member, Members(())
        return GroupStatus(
            partition, member, "none", 0, 0, False, 0, 0, 0, 0, 0, nobody, 0, reason, ()
        )

    def _group(self, partition: int) -> Group:
        group = self.groups.get(partition)
        if group is None:
            raise NotLeader(f"partition {partition} is not restored here yet", leader=0)
        return group

    # Letters -----------------------------------------------------------------------------------
    def receive(self, sender: int, letter: bytes) -> None:
        """Take a letter; `Corrupt` if it cannot be one of this member's peers."""
        try:
            version, raw = _VERSIONED.decode(letter)
            if version != LETTER_VERSION:
                raise Corrupt(
                    f"a letter of version {version}: this program speaks version {LETTER_VERSION}"
                )
            found = _DECODER.decode(raw)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"malformed letter of member {sender}: {error}") from error
        by_group: dict[int, list[m.Message]] = {}
        for partition, message in found:
            if message.sender != sender or message.to != self.options.member:
                raise Corrupt(f"member {sender} sent a message of {message.sender}")
            if not 0 <= partition < self.partitions:
                raise Corrupt(f"member {sender} wrote of partition {partition}, which is not here")
            by_group.setdefault(partition, []).append(message)
        for partition, messages in by_group.items():
            group = self.groups.get(partition)
            if group is not None:
                group.take(messages)

    def tick(self) -> None:
        """Let a tick pass in all groups."""
        for group in self.groups.values():
            group.tick()

    def snapshotted(self, partition: int, index: int) -> None:
        """A snapshot of the state at an index is durable."""
        self._group(partition).core.snapshotted(index)

    def may_compact_to(self, partition: int, index: int) -> int:
        """Up to where the log may be compacted: a member in reach that is behind needs the rest."""
        if self.store.status().bytes_on_disk > KEEP_BYTES_MAX:
            return index
        return self._group(partition).keeps_from(index)

    def compacted(self, partition: int, index: int) -> None:
        """The log no longer has the entries up to an index."""
        self._group(partition).core.compacted(index)

    async def install(self, partition: int, message: m.InstallSnapshot) -> None:
        """The state is that of a snapshot: let the log follow, durably."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._group(partition).install(message, partial(_tell, future))
        await future

    def snapshot_sent(self, partition: int, member: int, arrived: bool) -> None:
        """The transfer of a snapshot has ended."""
        self._group(partition).snapshot_sent(member, arrived=arrived)

    def _tick_by_time(self) -> None:
        self._ticking = self._loop.call_later(self.options.tick_ms / 1e3, self._tick_by_time)
        self.tick()
        if self._links is not None:
            # Heartbeats wait for no later turn: where there is more to do than time, one is long.
            self._send_letters()
            self._links.flush()

    # What groups need --------------------------------------------------------------------------
    def write(self, operation: Operation, on_written: OnDone, *, sync: bool) -> None:
        """Hand an operation of a group to the WAL; entries that were taken are never refused."""
        self.wal.submit(operation, on_written, sync=sync, finishing=True)

    def post(self, partition: int, messages: Sequence[m.Message]) -> None:
        """Put messages into the letters of this turn."""
        links = self._links
        if links is None:
            return
        if not self._outbox:
            self._loop.call_soon(self._send_letters)
        for message in messages:
            if type(message) is m.InstallSnapshot:
                links.send_snapshot(partition, message)
                continue
            to = message.to
            if is_append := isinstance(message, m.Append):
                self._make_room(to, sum([len(entry.payload) for entry in message.entries]))
            # One without entries asks for those before it, so that it must not overtake them.
            self._outbox.setdefault((to, is_append), []).append((partition, message))

    def _make_room(self, to: int, size_bytes: int) -> None:
        """Send what a member's letter has, if it would be too long with so many bytes more."""
        waiting = self._outbox_bytes.get(to, 0)
        if waiting and waiting + size_bytes > LETTER_BYTES:
            self._send_letter(to, True)
            waiting = 0
        self._outbox_bytes[to] = waiting + size_bytes

    def read_log(
        self, partition: int, wanted: ReadRange, on_read: Callable[[object], None]
    ) -> None:
        """Read entries from the store for a follower."""
        self.reads.submit(partition, wanted, on_read)

    def noticed(self, partition: int, leader: int, term: int) -> None:
        """Publish who leads."""
        for told in self.on_leader:
            told(partition, leader, term)

    def heard(self, partition: int, leader: int, term: int) -> None:
        """Count how late a heartbeat was taken in."""
        now_ns = self._clock.monotonic_ns()
        self.heartbeats.hear(partition, leader=leader, term=term, now_ns=now_ns)

    def _send_letters(self) -> None:
        for member, has_appends in list(self._outbox):
            self._send_letter(member, has_appends)
        self._outbox.clear()

    def _send_letter(self, member: int, has_appends: bool) -> None:
        messages, self._outbox[member, has_appends] = self._outbox[member, has_appends], []
        if has_appends:
            self._outbox_bytes[member] = 0
        if messages and self._links is not None:
            letter = _ENCODER.encode((LETTER_VERSION, messages))
            self._links.send(member, letter, is_droppable=has_appends)

    def _answered(
        self, on_durable: OnDurable, synced: int | None, began_ns: int, error: Exception | None
    ) -> None:
        """Complete an append, in the executor's turn."""
        self.counters.commit_ns.record(self._clock.monotonic_ns() - began_ns)
        self._answer(on_durable, synced, error)


def _runs(store: LogStore, partition: int, first: int, last: int) -> list[tuple[int, int]]:
    """The first index and the term of each run of a log, from its boundary on."""
    found: list[tuple[int, int]] = []
    term_at = partial(store.term_at, partition)
    at = first
    while at <= last:
        term = term_at(at) if at else 0
        found.append((at, term))
        span = range(at, last + 1)
        at += bisect_right(span, term, key=lambda index: term_at(index) if index else 0)
    return found


def _tell(future: asyncio.Future[Any], error: Exception | None) -> None:
    resolve(future, error)


_ENCODER: Final = msgspec.msgpack.Encoder()
_VERSIONED: Final = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_DECODER: Final = msgspec.msgpack.Decoder(list[tuple[int, m.AnyMessage]])
