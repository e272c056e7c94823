"""What drives a core: writes, refusals of the disk, who waits, how much is applied in a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from penstock.kernel.errors import PenstockError
from penstock.kernel.units import MIB
from penstock.log.executor import SLICE_NS, PartitionExecutor, WorkKind
from penstock.log.reads import ReadRange
from penstock.log.store import (
    Append,
    DiskFull,
    HardState,
    InstallBoundary,
    LogEntry,
    Operation,
    SetHardState,
    SyncFailed,
    Truncate,
)
from penstock.raft import messages as m
from penstock.raft.core import Core
from penstock.raft.group import APPLY_BYTES, APPLY_ENTRIES, RETRY_TICKS, Group, LeadershipLost
from penstock.raft.members import Members
from penstock.raft.ready import NotLeader, Restored

FULL = DiskFull("no room")


class Outside:
    """A WAL that answers when it is told to, a network that keeps what is posted, and a state."""

    def __init__(self) -> None:
        self.writes: list[tuple[Operation, Callable[[Exception | None], None]]] = []
        self.posted: list[m.Message] = []
        self.applied: list[int] = []
        self.refusal: PenstockError | None = None
        self.leaders: list[tuple[int, int]] = []
        self.heard_of: list[tuple[int, int]] = []
        self.last = 0

    def write(
        self, operation: Operation, done: Callable[[Exception | None], None], *, sync: bool
    ) -> None:
        assert sync
        self.writes.append((operation, done))

    def post(self, _partition: int, messages: Sequence[m.Message]) -> None:
        self.posted += messages

    def last_index(self, _partition: int) -> int:
        return self.last

    def read_log(
        self, _partition: int, _wanted: ReadRange, on_read: Callable[[object], None]
    ) -> None:
        on_read([])

    def noticed(self, _partition: int, leader: int, term: int) -> None:
        self.leaders.append((leader, term))

    def heard(self, _partition: int, leader: int, term: int) -> None:
        self.heard_of.append((leader, term))

    def apply_entry(self, entry: LogEntry) -> None:
        self.applied.append(entry.index)

    def lead(self) -> None:
        self.refusal = None

    def follow(self, refusal: PenstockError) -> None:
        self.refusal = refusal


class Member:
    """A group on its own, with everything around it in the hands of the test."""

    def __init__(
        self, voters: tuple[int, ...], entries: Sequence[LogEntry] = (), *, first_read: int = 1
    ) -> None:
        self.soon: list[Callable[[], None]] = []
        self.now_ns = self.busy_ns = 0
        executor = PartitionExecutor(0, call_soon=self.soon.append, now_ns=self.time)
        executor.start()
        executor.restored()
        self.outside = Outside()
        restored = Restored(
            hard=HardState(1, 0), mark=m.Mark(0, 0, Members(voters)), entries=list(entries)
        )
        core = Core(1, restored, draw=lambda low, _high: low, began=lambda _term: b"began")
        self.group = Group(0, core, self.outside, self.outside, executor, first_read=first_read)
        self.group.start()

    def time(self) -> int:
        """Every look at the clock is some time after the last one."""
        self.now_ns += self.busy_ns
        return self.now_ns

    def turn(self) -> None:
        """One turn of the loop."""
        soon, self.soon[:] = list(self.soon), []
        for call in soon:
            call()

    def written(self, error: Exception | None = None) -> list[Operation]:
        """The WAL answers everything it has."""
        writes, self.outside.writes = self.outside.writes, []
        for _, done in writes:
            done(error)
        self.turn()
        return [operation for operation, _ in writes]

    def tell(self, *messages: m.Message) -> None:
        self.group.take(messages)


def lone() -> Member:
    member = Member((1,))
    while not member.group.serves:
        member.written()
    return member


def leader() -> Member:
    member = Member((1, 2, 3))
    for _ in range(10):
        member.group.tick()
    member.tell(m.VoteAnswer(1, 2, 1, granted=True, pre=True))
    member.written()
    member.tell(m.VoteAnswer(1, 2, 2, granted=True))
    member.written()
    member.tell(m.AppendAnswer(1, 2, 2, 1))
    assert member.group.serves
    return member


def appended(first: int, count: int, size: int = 1) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(index, 1, b"." * size) for index in range(first, first + count))


def test_an_answer_to_entries_leaves_when_they_are_written() -> None:
    member = Member((1, 2, 3))
    member.tell(m.Append(1, 2, 1, 0, 0, 0, appended(1, 2)))
    assert not member.outside.posted
    assert [type(operation) for operation in member.written()] == [Append]
    assert member.outside.posted == [m.AppendAnswer(2, 1, 1, 2)]


def test_a_cut_and_what_follows_it_are_handed_over_together() -> None:
    member = Member((1, 2, 3), appended(1, 3))
    member.tell(m.Append(1, 2, 2, 1, 1, 0, (LogEntry(2, 2, b"other"),)))
    operations = member.written()
    assert [type(operation) for operation in operations] == [SetHardState, Truncate, Append]


def test_a_proposal_is_answered_when_a_majority_has_it() -> None:
    member, told = leader(), list[object]()
    index = member.group.propose(b"x", told.append, sync=False)
    member.written()
    assert not told
    member.tell(m.AppendAnswer(1, 2, 2, index))
    assert told == [None]


def test_what_was_proposed_is_unknown_when_another_member_leads() -> None:
    member, told = leader(), list[object]()
    member.group.propose(b"x", told.append, sync=True)
    member.tell(m.Heartbeat(1, 3, 5, 0))
    assert [type(error) for error in told] == [LeadershipLost]
    assert isinstance(member.outside.refusal, NotLeader)
    assert member.outside.refusal.detail["leader"] == 3
    assert member.outside.leaders[-1] == (3, 5)


def test_heartbeats_of_the_leader_are_counted_and_no_others() -> None:
    member = Member((1, 2, 3))
    member.tell(m.Heartbeat(1, 3, 5, 0), m.Heartbeat(1, 2, 4, 0), m.Heartbeat(1, 3, 5, 0))
    assert member.outside.heard_of == [(3, 5), (3, 5)]


def test_a_member_alone_gives_up_what_the_disk_refuses_and_goes_on() -> None:
    member, told = lone(), list[object]()
    first = member.group.propose(b"x", told.append, sync=True)
    member.written(FULL)
    assert told == [FULL]
    assert member.group.propose(b"y", told.append, sync=True) == first
    member.written()
    assert told == [FULL, None]


def test_a_member_of_a_group_writes_again_what_the_disk_had_no_room_for() -> None:
    member = Member((1, 2, 3))
    member.tell(m.Append(1, 2, 1, 0, 0, 0, appended(1, 2)))
    member.tell(m.Append(1, 2, 1, 2, 1, 0, appended(3, 1)))
    member.written(FULL)
    assert not member.outside.posted
    for _ in range(RETRY_TICKS):
        member.group.tick()
    (_, again) = member.written()
    assert isinstance(again, Append)
    assert [entry.index for entry in again.entries] == [1, 2, 3]
    answers = [each for each in member.outside.posted if isinstance(each, m.AppendAnswer)]
    assert [answer.index for answer in answers] == [2, 3]


def test_a_full_member_says_so_at_once() -> None:
    member = Member((1, 2, 3))
    member.tell(m.Append(1, 2, 1, 0, 0, 0, appended(1, 1)))
    member.written(FULL)
    member.tell(m.Append(1, 2, 1, 1, 1, 0, appended(2, 1)))
    assert member.outside.posted == [m.AppendAnswer(2, 1, 1, 0, saturated=True)]


def test_a_full_member_says_so_of_entries_that_are_committed_without_it() -> None:
    member = Member((1, 2, 3))
    member.tell(m.Append(1, 2, 1, 0, 0, 0, appended(1, 2)))
    member.written(FULL)
    member.tell(m.Append(1, 2, 1, 2, 1, 2, ()))  # the other two have synced both
    member.outside.posted.clear()
    member.tell(m.Append(1, 2, 1, 0, 0, 2, appended(1, 2)))
    assert member.outside.posted == [m.AppendAnswer(2, 1, 1, 0, saturated=True)]


def test_what_the_store_has_of_a_refused_write_is_cut_before_it_is_repeated() -> None:
    member = Member((1, 2, 3))
    member.tell(m.Append(1, 2, 1, 0, 0, 0, appended(1, 2)))
    member.written(FULL)
    member.outside.last = 2
    for _ in range(RETRY_TICKS):
        member.group.tick()
    assert [type(operation) for operation in member.written()] == [Truncate, SetHardState, Append]


def test_a_full_leader_refuses_and_lets_another_member_lead() -> None:
    member, told = leader(), list[object]()
    index = member.group.propose(b"x", told.append, sync=True)
    member.written(FULL)
    with pytest.raises(DiskFull):
        member.group.propose(b"y", told.append, sync=True)
    member.tell(m.AppendAnswer(1, 2, 2, index))
    assert m.TimeoutNow(2, 1, 2) in member.outside.posted
    assert not member.group.serves


def test_after_a_failed_sync_a_member_of_a_group_says_nothing_more() -> None:
    member, told = leader(), list[object]()
    member.group.propose(b"x", told.append, sync=True)
    member.outside.posted.clear()
    member.written(SyncFailed("it may be there"))
    assert [type(error) for error in told] == [LeadershipLost]
    member.tell(m.VoteRequest(1, 2, 9, 9, 9))
    assert not member.outside.posted
    assert member.group.status().reason == "it may be there"
    assert isinstance(member.outside.refusal, NotLeader)


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [
        (APPLY_ENTRIES, 1, [256]),
        (APPLY_ENTRIES + 1, 1, [256, 257]),
        (2, APPLY_BYTES - 1, [2]),
        (2, APPLY_BYTES, [1, 2]),
    ],
)
def test_others_have_their_turn_while_much_is_applied(
    count: int, size: int, parts: list[int]
) -> None:
    member, seen = Member((1, 2, 3), appended(1, count, size)), list[int]()
    member.busy_ns = SLICE_NS // 2 + 1  # each piece of work uses up the slice of the partition
    member.tell(m.Append(1, 2, 1, count, 1, count))
    while not seen or seen[-1] < count:
        seen.append(len(member.outside.applied))
        member.turn()
    assert [applied for applied in seen if applied] == parts


def test_a_snapshot_replaces_the_log_once_and_what_is_said_meanwhile_is_lost() -> None:
    member, told = Member((1, 2, 3)), list[object]()
    message = m.InstallSnapshot(1, 2, 1, m.Mark(50, 1, Members((1, 2, 3))))
    assert member.group.begin_install(message)
    member.tell(m.Heartbeat(1, 3, 9, 0))
    assert member.group.core.term == 1
    member.group.install(message, told.append)
    assert [type(operation) for operation in member.written()] == [InstallBoundary]
    assert (told, member.group.core.applied) == ([None], 50)
    assert not member.group.begin_install(message)


def test_what_is_synced_while_a_snapshot_is_read_in_is_not_applied_to_it() -> None:
    """The disk hangs with entries that are committed; meanwhile a snapshot arrives."""
    member, told = Member((1, 2, 3), appended(1, 3)), list[object]()
    member.tell(m.Append(1, 2, 1, 3, 1, 6, appended(4, 3)))
    assert member.outside.applied == [1, 2, 3]
    message = m.InstallSnapshot(1, 2, 1, m.Mark(50, 1, Members((1, 2, 3))))
    assert member.group.begin_install(message)
    assert [type(operation) for operation in member.written()] == [Append]
    assert member.outside.applied == [1, 2, 3]
    member.group.install(message, told.append)
    member.written()
    assert (told, member.group.core.applied) == ([None], 50)
    member.tell(m.Append(1, 2, 1, 50, 1, 52, appended(51, 2)))
    member.written()
    assert member.outside.applied == [1, 2, 3, 51, 52]


def test_messages_that_wait_for_their_turn_when_a_snapshot_is_read_in_are_lost() -> None:
    member = Member((1, 2, 3), appended(1, 3))
    message = m.InstallSnapshot(1, 2, 1, m.Mark(50, 1, Members((1, 2, 3))))
    begun: list[bool] = []

    def work() -> None:  # what comes while it runs waits for it
        member.tell(m.Append(1, 2, 1, 3, 1, 3, appended(4, 3)))
        begun.append(member.group.begin_install(message))

    member.group.executor.submit(WorkKind.MAINTENANCE, work)
    assert begun == [True]
    assert member.group.core.log.last_index == 3


def test_a_leader_of_an_older_term_decides_nothing_on_a_state_that_is_replaced() -> None:
    member, told = leader(), list[object]()
    member.group.propose(b"x", told.append, sync=True)
    message = m.InstallSnapshot(1, 2, 7, m.Mark(50, 7, Members((1, 2, 3))))
    assert member.group.begin_install(message)
    assert [type(error) for error in told] == [LeadershipLost]
    assert isinstance(member.outside.refusal, NotLeader)
    with pytest.raises(NotLeader):
        member.group.propose(b"y", told.append, sync=True)
    member.written()
    member.group.install(message, told.append)
    member.written()
    assert (told[1:], member.group.core.applied) == ([None], 50)


def test_a_group_that_stops_while_a_snapshot_is_read_in_says_so_when_it_is_in() -> None:
    member, told = Member((1, 2, 3)), list[object]()
    member.tell(m.Append(1, 2, 1, 0, 0, 0, appended(1, 1)))
    message = m.InstallSnapshot(1, 2, 1, m.Mark(50, 1, Members((1, 2, 3))))
    assert member.group.begin_install(message)
    error = SyncFailed("it may be there")
    member.written(error)
    member.group.install(message, told.append)
    assert told == [error]


def test_a_read_that_waits_for_what_a_snapshot_has_is_answered_by_it() -> None:
    member, told = Member((1, 2, 3), appended(1, 3)), list[object]()
    member.tell(m.Heartbeat(1, 2, 1, 0))
    member.group.confirm_read(told.append)
    (asked,) = [each for each in member.outside.posted if isinstance(each, m.ReadRequest)]
    member.tell(m.ReadAnswer(1, 2, 1, asked.context, 40))
    message = m.InstallSnapshot(1, 2, 1, m.Mark(50, 1, Members((1, 2, 3))))
    assert member.group.begin_install(message)
    assert not told
    member.group.install(message, lambda _error: None)
    member.written()
    assert told == [None]


def reads(member: Member, told: list[object]) -> int:
    """Begin a read on a follower; its number."""
    member.outside.posted.clear()
    member.group.confirm_read(told.append)
    (asked,) = [each for each in member.outside.posted if isinstance(each, m.ReadRequest)]
    return asked.context


def test_an_answer_to_the_life_before_does_not_confirm_a_read_of_this_one() -> None:
    lives = [Member((1, 2, 3), appended(1, 3), first_read=first) for first in (900, 100)]
    for member in lives:
        member.tell(m.Append(1, 2, 1, 3, 1, 3))
    before, told = list[object](), list[object]()
    old = reads(lives[0], before)
    new = reads(lives[1], told)
    assert (old, new) == (900, 100)
    lives[1].tell(m.ReadAnswer(1, 2, 1, old, 1))
    assert told == []
    lives[1].tell(m.ReadAnswer(1, 2, 1, new, 3))
    assert told == [None]


def test_a_read_that_is_not_confirmed_is_lost_after_a_while() -> None:
    member, told = leader(), list[object]()
    member.group.confirm_read(told.append)
    (beat, *_) = [each for each in member.outside.posted if getattr(each, "read_round", 0)]
    member.tell(m.HeartbeatAnswer(1, 2, 2, beat.read_round))
    assert told == [None]
    member.group.confirm_read(told.append)
    for _ in range(40):
        member.group.tick()
    assert len(told) == 2
    assert isinstance(told[1], PenstockError)


def test_the_limits_of_a_turn_are_what_they_say() -> None:
    assert (APPLY_ENTRIES, APPLY_BYTES) == (256, MIB)
