"""One partition's group on this node: drives a core and does what it owes.

Everything happens in the turn of the partition's executor, on the loop's thread. Messages that may
leave now are posted, writes go to the WAL as one group, what has to wait for their sync follows in
the order of the writes, and committed entries are applied: one that was proposed here by answering
its proposer, any other by the replica.

Where the disk is full, writes are kept and tried again: other members may have these entries. A
member that is alone gives them up and says so. After a failed sync a member of a group answers and
leads nothing until it is started again; a member alone has its store refuse what comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.kernel.errors import Busy, PenstockError, Unavailable, Unknown, without_traceback
from penstock.kernel.units import MIB
from penstock.log.executor import PartitionExecutor, Phase, WorkKind
from penstock.log.reads import ReadRange
from penstock.log.store import (
    Append,
    InstallBoundary,
    LogEntry,
    NotContiguous,
    Operation,
    ReadOnly,
    SetHardState,
    Truncate,
)
from penstock.raft import messages as m
from penstock.raft.core import Core, Role
from penstock.raft.members import FORGOTTEN, Change, ChangeRefused, Members, encode_members
from penstock.raft.progress import Stage
from penstock.raft.ready import Fetch, NotLeader, Ready

OnDone = Callable[[Exception | None], None]

RETRY_TICKS: Final = 5
"""How long a write that the disk had no room for waits before it is tried again."""
APPLY_ENTRIES: Final = 256
APPLY_BYTES: Final = MIB
"""So much is applied in one turn: after a restart, all since the snapshot waits for it."""
READ_TICKS: Final = 20
"""How long a read waits for its leader."""
_FETCH_ENTRIES: Final = 1_024
_CONTROL: Final = (m.VoteRequest, m.VoteAnswer, m.Heartbeat, m.HeartbeatAnswer, m.TimeoutNow)
_NO_ROOM: Final = (ReadOnly, Busy, NotContiguous)
"""Errors of a write that left nothing and may be repeated; the last one follows from another."""


class LeadershipLost(Unknown):
    """Another member may lead by now: the entry is in the log, or never will be."""

    code = "leadership_lost"


class ReadLost(Unavailable):
    """The leader did not confirm that it still leads; ask again."""

    code = "read_lost"


class Replica(Protocol):
    """The state that committed entries make."""

    def apply_entry(self, entry: LogEntry) -> None:
        """Apply a committed entry that was not proposed here."""
        ...

    def lead(self) -> None:
        """Decide from now on: everything committed before is applied."""
        ...

    def follow(self, refusal: PenstockError) -> None:
        """Refuse changes with this error from now on."""
        ...


class Outside(Protocol):
    """What a group needs of its node."""

    def write(self, operation: Operation, on_written: OnDone, *, sync: bool) -> None:
        """Hand an operation to the WAL."""
        ...

    def post(self, partition: int, messages: Sequence[m.Message]) -> None:
        """Send messages to other members."""
        ...

    def last_index(self, partition: int) -> int:
        """Where the log ends in the store."""
        ...

    def read_log(
        self, partition: int, wanted: ReadRange, on_read: Callable[[object], None]
    ) -> None:
        """Read entries from the store."""
        ...

    def noticed(self, partition: int, leader: int, term: int) -> None:
        """Publish who leads."""
        ...

    def heard(self, partition: int, leader: int, term: int) -> None:
        """Count a heartbeat of the leader that was taken in."""
        ...


class FollowerStatus(NamedTuple):
    """A follower as its leader sees it."""

    member: int
    stage: str
    match: int
    in_flight_messages: int
    in_flight_bytes: int
    heard: bool
    paused: bool


class GroupStatus(NamedTuple):
    """The published state of a group on this member."""

    partition: int
    member: int
    role: str
    term: int
    leader: int
    serving: bool
    commit: int
    applied: int
    synced: int
    last: int
    snapshot: int
    members: Members
    transferee: int
    reason: str | None
    followers: tuple[FollowerStatus, ...]


class _Proposal(NamedTuple):
    """An entry that was proposed here and is not applied yet."""

    at: int
    term: int
    done: OnDone
    applies: bool = True  # whether `done` applies it


class _Reader(NamedTuple):
    """A read that waits for its leader, until a tick; or, with an index, for the state."""

    done: OnDone
    until: int
    floor: int | None = None


class Group:
    """A member of one group: its core, its writes and who waits for it."""

    def __init__(
        self, partition: int, core: Core, replica: Replica, outside: Outside,
        executor: PartitionExecutor, *, is_isolated: bool = False, first_read: int = 1,
    ) -> None:  # fmt: skip
        """`is_isolated`: there are no other members, and none can be added before a restart.

        Reads are numbered from `first_read`. It has to be random: an answer to the life before, in
        the same term, would tell a read of this one an index that is too small.
        """
        self.partition = partition
        self.core = core
        self.executor = executor
        self.leader = 0  # as published: this member itself only while it serves
        self.term = core.term
        self.reason: Exception | None = None  # why it answers and leads nothing
        self._replica = replica
        self._outside = outside
        self._proposed: deque[_Proposal] = deque()
        self._to_apply: deque[LogEntry] = deque()
        self._writes: deque[Ready] = deque()  # not yet written, and what waits for them
        self._failed: Exception | None = None  # of the oldest write, until it is repeated
        self._underway = 0  # writes that the WAL has
        self._retry_at = self._ticks = 0
        self._must_sync = True
        self._serves = False
        self._is_isolated = is_isolated
        self._readers: dict[int, _Reader] = {}
        self._contexts = first_read - 1
        self._is_loading = False  # a snapshot: what others say meanwhile is lost, as on the way
        self._on_installed: OnDone | None = None
        self.on_started: OnDone | None = None  # told once when a member alone leads, or cannot

    # What happens ------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin: a member that is alone leads as soon as its vote is written."""
        self._replica.follow(self._refusal())
        self.core.stand()
        self._settle()

    def take(self, messages: Sequence[m.Message]) -> None:
        """Take messages of other members, in order."""
        if self._is_loading:
            return
        kind = WorkKind.REPLICATION
        if all(isinstance(message, _CONTROL) for message in messages):
            kind = WorkKind.CONTROL
        self._run(kind, partial(self._step, messages))

    def tick(self) -> None:
        """Let a tick pass."""
        if not self._is_loading:
            self._run(WorkKind.CONTROL, self._tick)

    def propose(self, payload: bytes, done: OnDone, *, sync: bool) -> int:
        """Append an entry, in the executor's turn; raises if it surely is and will not be there.

        `done` is called in the executor's turn once the entry is applied, or when it is open
        whether it will be. A member alone counts an entry without `sync` when it is written.
        """
        if self._is_isolated and self._serves:
            return self._propose_alone(payload, done, sync=sync)
        if self._failed is not None:
            raise without_traceback(self._failed)
        core = self.core
        index = core.propose(payload)
        self._proposed.append(_Proposal(index, core.term, done))
        self._must_sync = sync or not core.is_alone
        self._settle()
        return index

    def _propose_alone(self, payload: bytes, done: OnDone, *, sync: bool) -> int:
        """No other member hears of it, so that it needs no message and no `Ready`."""
        entry = self.core.append_alone(payload)

        def written(error: Exception | None) -> None:
            if self.executor.phase in (Phase.FAILED, Phase.STOPPED):
                done(error)  # its proposer was told, and still counts it
            turn = partial(self._written_alone, entry.index, done, error)
            self._run(WorkKind.REPLICATION, turn)

        try:
            self._outside.write(Append(self.partition, (entry,)), written, sync=sync)
        except PenstockError:
            self.core.retract(entry.index)
            raise
        return entry.index

    def _written_alone(self, index: int, done: OnDone, error: Exception | None) -> None:
        if error is not None:
            if index <= self.core.log.last_index:
                self.core.retract(index)
            done(error)
        else:
            done(None)
            self.core.applied_alone(index)

    def change(self, change: Change, done: OnDone) -> None:
        """Change the members; `done` as for `propose`. Raises in the executor's turn."""

        def turn() -> None:
            try:
                if self._is_isolated:
                    raise ChangeRefused("a node without links to others stays alone")
                index = self.core.change_members(change)
            except PenstockError as error:
                done(error)
                return
            self._proposed.append(_Proposal(index, self.core.term, done, applies=False))
            self._settle()

        self.executor.submit(WorkKind.CONTROL, turn, done)

    def forget_members(self, done: OnDone) -> None:
        """Log that the members in the state are none of this log's; for a member that is alone."""
        payload, term = encode_members(FORGOTTEN), self.core.term

        def turn() -> None:
            def written(error: Exception | None) -> None:
                if error is None:
                    self._replica.apply_entry(LogEntry(index, term, payload))
                done(error)

            try:
                index = self.propose(payload, written, sync=True)
            except PenstockError as error:
                done(error)

        self.executor.submit(WorkKind.CONTROL, turn, done)

    def transfer(self, member: int) -> None:
        """Hand the leadership over; raises at once if that cannot be done."""
        self.core.transfer(member)
        self._run(WorkKind.CONTROL, self._settle)

    def confirm_read(self, done: OnDone) -> None:
        """Call back when the state shows everything that was answered before this call."""

        def turn() -> None:
            self._contexts += 1
            try:
                self.core.read_index(self._contexts)
            except PenstockError as error:
                done(error)
                return
            self._readers[self._contexts] = _Reader(done, self._ticks + READ_TICKS)
            self._settle()

        self.executor.submit(WorkKind.CLIENT, turn, done)

    def snapshot_sent(self, member: int, *, arrived: bool) -> None:
        """A snapshot for a follower is there, or its transfer failed."""

        def turn() -> None:
            self.core.snapshot_sent(member, arrived)
            self._settle()

        self._run(WorkKind.MAINTENANCE, turn)

    def begin_install(self, message: m.InstallSnapshot) -> bool:
        """Whether a snapshot that has arrived is to replace the state.

        If so, the group takes in nothing more until `install`, so that this stays true.
        """
        core, mark = self.core, message.mark
        is_wanted = message.term >= core.term and mark.index > core.commit
        is_wanted = is_wanted and core.log.term_at(mark.index) != mark.term
        self._is_loading = is_wanted and self.reason is None
        if self._is_loading:
            self._to_apply.clear()  # the snapshot has it
            # One that still leads an older term must not decide on a state that is being replaced.
            core.step(m.Committed(core.member, message.sender, message.term, 0))
            self._run(WorkKind.CONTROL, self._settle)
        return self._is_loading

    def install(self, message: m.InstallSnapshot, done: OnDone) -> None:
        """The state is that of the snapshot: let the log follow; `done` when that is durable."""
        if self.reason is not None:
            done(self.reason)
            return
        self._is_loading, self._on_installed = False, done
        self._run(WorkKind.REPLICATION, partial(self._step, (message,)))

    def keeps_from(self, index: int) -> int:
        """Up to where the log may be compacted for the members in reach, at most to an index."""
        needed = [
            max(each.match, each.snapshot) for each in self.core.progress.values() if each.heard
        ]
        return min([index, *needed])

    def stop(self, error: Exception) -> None:
        """Answer who waits, and take part no more: the partition failed or the node stops."""
        self.reason = self.reason or error
        self.core.halt()
        self._writes.clear()
        self._to_apply.clear()
        self._end_install(error)
        self._lose_proposals()
        self._lose_readers(self._readers)
        self._publish()

    @property
    def serves(self) -> bool:
        """Whether this member leads and its state has everything committed before."""
        return self._serves

    def status(self) -> GroupStatus:
        """A snapshot for people; never through the executor."""
        core = self.core
        return GroupStatus(
            self.partition, core.member, core.role.value, core.term, self.leader, self._serves,
            core.commit, core.applied, core.log.synced, core.log.last_index, core.snapshot.index,
            core.members, core.transferee, str(self.reason) if self.reason else None,
            tuple(
                FollowerStatus(
                    member, each.stage.value, each.match, *each.in_flight, each.heard,
                    each.paused_until > 0 and each.stage is Stage.PROBE,
                )
                for member, each in core.progress.items()
            ),
        )  # fmt: skip

    # In the executor's turn --------------------------------------------------------------------
    def _run(self, kind: WorkKind, work: Callable[[], None]) -> None:
        """What comes after the partition has failed or stopped is dropped."""
        if self.executor.phase in (Phase.FAILED, Phase.STOPPED):
            return
        try:
            self.executor.submit(kind, work)
        except PenstockError:
            return

    def _step(self, messages: Sequence[m.Message]) -> None:
        if self._is_loading:  # since they came
            return
        core = self.core
        for message in messages:
            core.step(message)
            is_heartbeat = type(message) is m.Heartbeat and message.term == core.term
            if is_heartbeat and message.sender == core.leader:
                self._outside.heard(self.partition, core.leader, core.term)
        self._settle()

    def _tick(self) -> None:
        if self._is_loading:
            return
        self._ticks += 1
        self.core.tick()
        if self._failed is not None and self._ticks >= self._retry_at and not self._underway:
            self._write_again()
        late = [name for name, reader in self._readers.items() if reader.until <= self._ticks]
        self._lose_readers(late)
        self._settle()

    def _settle(self) -> None:
        """Do what the core owes."""
        core = self.core
        ready = core.ready()
        if ready is not None:
            self._do(ready)
        proposed = self._proposed
        if proposed and (core.role is not Role.LEADER or proposed[0].term != core.term):
            self._lose_proposals()
        if core.term != self.term or core.leader != self.leader or self._may_serve != self._serves:
            self._publish()

    def _do(self, ready: Ready) -> None:
        if ready.now:
            self._outside.post(self.partition, ready.now)
        if ready.must_write or (ready.after and self._writes):
            self._writes.append(ready)
            if ready.must_write and self._failed is None:
                self._write(ready)
        elif ready.after:
            self._outside.post(self.partition, ready.after)
        if ready.apply and not self._is_loading:  # else the snapshot has it
            self._to_apply += ready.apply
            if len(self._to_apply) == len(ready.apply):  # else it is being done
                self._apply_some()
        for fetch in ready.fetch:
            self._fetch(fetch)
        if ready.lost_reads:
            self._lose_readers(ready.lost_reads)
        for read in ready.reads:
            self._confirmed(read.context, read.index)

    def _apply_some(self) -> None:
        """Apply what is committed, and let others have their turn after some of it."""
        waiting, taken, room = self._to_apply, list[LogEntry](), APPLY_BYTES
        while waiting and room > 0 and len(taken) < APPLY_ENTRIES:
            taken.append(waiting.popleft())
            room -= len(taken[-1].payload)
        if taken:
            self._apply(taken)
        if waiting:
            self._run(WorkKind.REPLICATION, self._apply_more)

    def _apply_more(self) -> None:
        self._apply_some()
        self._settle()

    def _apply(self, entries: Sequence[LogEntry]) -> None:
        proposed = self._proposed
        for entry in entries:
            if proposed and proposed[0].at == entry.index:
                if proposed[0].term == entry.term:
                    mine = proposed.popleft()
                    if not mine.applies:
                        self._replica.apply_entry(entry)
                    mine.done(None)
                    continue
                self._lose_proposals()
                proposed = self._proposed
            self._replica.apply_entry(entry)
        self.core.applied_to(entries[-1].index)
        if self._readers:
            self._answer_readers()

    # The disk
    def _write(self, ready: Ready) -> None:
        sync = self._must_sync or ready.hard is not None
        self._must_sync = True
        self._hand_over(self._operations(ready), 1, sync=sync)

    def _hand_over(self, operations: Sequence[Operation], writes: int, *, sync: bool) -> None:
        """Give the WAL operations; when they are done, so many of the oldest writes are."""
        self._underway += 1
        errors: list[Exception] = []

        def part_done(error: Exception | None) -> None:
            if error is not None:
                errors.append(error)

        def done(error: Exception | None) -> None:
            part_done(error)
            self._run(WorkKind.REPLICATION, partial(self._written, writes, errors))

        try:
            for operation in operations[:-1]:
                self._outside.write(operation, part_done, sync=sync)
            self._outside.write(operations[-1], done, sync=sync)
        except PenstockError as error:
            done(error)

    def _operations(self, ready: Ready) -> list[Operation]:
        number, found = self.partition, list[Operation]()
        if ready.snapshot is not None:
            found.append(InstallBoundary(number, ready.snapshot.index, ready.snapshot.term))
        if ready.hard is not None:
            found.append(SetHardState(number, *ready.hard))
        if ready.cut_from:
            found.append(Truncate(number, ready.cut_from))
        if ready.entries:
            found.append(Append(number, ready.entries))
        return found

    def _written(self, writes: int, errors: Sequence[Exception]) -> None:
        """The oldest writes were done or refused."""
        self._underway -= 1
        if self.reason is not None:
            return
        if errors:
            self._not_written(errors[0])
        elif self._failed is None:
            self._confirm(writes)
        self._settle()

    def _confirm(self, writes: int) -> None:
        """Send what waited for writes; what has nothing to write follows the one before it."""
        queue = self._writes
        while queue and (writes or not queue[0].must_write):
            ready = queue.popleft()
            if ready.after:
                self._outside.post(self.partition, ready.after)
            if ready.must_write:
                writes -= 1
                self.core.persisted(ready.written)
                if ready.snapshot is not None:
                    self._end_install(None)
                    self._answer_readers()

    def _not_written(self, error: Exception) -> None:
        if self.core.is_alone:
            self._give_up(self._writes.popleft(), error)
        elif not isinstance(error, _NO_ROOM):
            self.stop(error)
        elif self._failed is None:
            self._failed, self.core.full = error, True
            self._retry_at = self._ticks + RETRY_TICKS
            self._hand_on()

    def _hand_on(self) -> None:
        """A leader without room lets a member lead that has what it has."""
        for member in self.core.members.voters:
            with suppress(PenstockError):
                self.core.transfer(member)
                return

    def _give_up(self, ready: Ready, error: Exception) -> None:
        """Alone: nothing of a write is or will be in the log, or the store does not know."""
        self._end_start(error)
        if not ready.entries:
            return
        first, last = ready.entries[0].index, ready.entries[-1].index
        if first <= self.core.log.last_index:
            self.core.retract(first)
        while self._proposed and self._proposed[0].at <= last:
            self._proposed.popleft().done(error)

    def _write_again(self) -> None:
        """Repeat all that was refused as one write: what the core has and the disk has not."""
        self._failed, self.core.full = None, False
        number, log, mark = self.partition, self.core.log, self.core.installing
        operations: list[Operation] = []
        if mark is not None:
            operations.append(InstallBoundary(number, mark.index, mark.term))
        elif self._outside.last_index(number) > log.synced:
            operations.append(Truncate(number, log.synced + 1))
        writes = [ready for ready in self._writes if ready.must_write]
        operations.append(SetHardState(number, *writes[-1].written.hard))
        if log.handed > log.synced:
            operations.append(Append(number, log.slice(log.synced + 1, log.handed)))
        self._hand_over(operations, len(writes), sync=True)

    def _end_install(self, error: Exception | None) -> None:
        told, self._on_installed = self._on_installed, None
        if told is not None:
            told(error)

    # Entries for followers
    def _fetch(self, fetch: Fetch) -> None:
        count = min(fetch.last - fetch.first + 1, _FETCH_ENTRIES)
        wanted = ReadRange(fetch.first, count, self.core.limits.message_bytes)

        def on_read(found: object) -> None:
            entries = found if isinstance(found, list) else ()
            self._run(WorkKind.MAINTENANCE, partial(self._fetched, fetch, entries))

        try:
            self._outside.read_log(self.partition, wanted, on_read)
        except PenstockError as error:
            on_read(error)

    def _fetched(self, fetch: Fetch, entries: Sequence[LogEntry]) -> None:
        self.core.fetched(fetch, entries)
        self._settle()

    # Who waits
    def _lose_proposals(self) -> None:
        lost, self._proposed = self._proposed, deque()
        for each in lost:
            each.done(LeadershipLost("the leadership was lost before this was committed"))

    def _confirmed(self, context: int, floor: int) -> None:
        reader = self._readers.get(context)
        if reader is not None:
            self._readers[context] = reader._replace(floor=floor)
            self._answer_readers()

    def _answer_readers(self) -> None:
        applied = self.core.applied
        for name, reader in list(self._readers.items()):
            if reader.floor is not None and reader.floor <= applied:
                del self._readers[name]
                reader.done(None)

    def _lose_readers(self, names: Sequence[int] | dict[int, _Reader]) -> None:
        for name in list(names):
            reader = self._readers.pop(name, None)
            if reader is not None:
                reader.done(ReadLost("the leader did not confirm the read: ask again"))

    # Who leads
    @property
    def _may_serve(self) -> bool:
        core = self.core
        return core.is_serving and not core.transferee and core.applied >= core.began_index

    def _publish(self) -> None:
        """Tell the replica and the node what has changed."""
        core, served = self.core, self._serves
        self._serves = self._may_serve
        leader = core.leader if core.leader != core.member or self._serves else 0
        if self._serves and not served:
            self._replica.lead()
        elif not self._serves:
            self._replica.follow(self._refusal())
        if (leader, core.term) != (self.leader, self.term):
            self.leader, self.term = leader, core.term
            self._outside.noticed(self.partition, leader, core.term)
        if self._serves:
            self._end_start(None)

    def _end_start(self, error: Exception | None) -> None:
        told, self.on_started = self.on_started, None
        if told is not None:
            told(error)

    def _refusal(self) -> PenstockError:
        leader = self.core.leader if self.core.leader != self.core.member else 0
        if self.reason is not None:
            text = f"this node does not take part in partition {self.partition}: {self.reason}"
            return NotLeader(text, leader=0)
        where = f"member {leader} does" if leader else "no leader is known, try again"
        return NotLeader(
            f"this node does not lead partition {self.partition}; {where}", leader=leader
        )
