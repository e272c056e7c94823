"""One member of a Raft group: what it is told, what it decides, what it owes.

Every method is an event and returns nothing but, for a proposal, its index; what the member owes
is taken from it by `ready`, so that all events of one turn share writes and messages. A call that
is refused raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from penstock.log.store import Damaged, HardState, LogEntry
from penstock.raft import messages as m
from penstock.raft.log import RaftLog
from penstock.raft.members import (
    MARK,
    PROMOTE,
    REMOVE,
    Change,
    ChangeRefused,
    Members,
    decode_members,
    encode_members,
)
from penstock.raft.progress import Limits, Progress, Stage
from penstock.raft.quorum import (
    ReadRounds,
    Tally,
    Waiting,
    committed_index,
    election,
    majority,
)
from penstock.raft.ready import (
    ChangeInProgress,
    Fetch,
    NotLeader,
    NotServing,
    Read,
    Ready,
    Restored,
    TransferRefused,
    UncommittedFull,
    Written,
)


class Role(Enum):
    """What a member is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Core:
    """The state machine of one member.

    `draw(low, high)` gives a random number, `began(term)` the payload of a leader's first entry.
    """

    def __init__(
        self,
        member: int,
        restored: Restored,
        *,
        draw: Callable[[int, int], int],
        began: Callable[[int], bytes],
        limits: Limits | None = None,
    ) -> None:
        self.member = member
        self.limits = limits or Limits()
        self.role = Role.FOLLOWER
        self.leader = 0
        self.term, self.vote = restored.hard
        self.snapshot = restored.mark
        self.commit = self.applied = max(restored.mark.index, restored.applied)
        self.halted = False
        self.full = self.restoring = False  # set by the shell: its log takes nothing; it restores
        self.transferee = 0
        self.progress: dict[int, Progress] = {}
        self.log = RaftLog(restored.mark)
        self._draw, self._began = draw, began
        self._founders = restored.founders
        self._configs: list[tuple[int, Members]] = [(restored.mark.index, restored.mark.members)]
        self.log.restore(restored.runs, restored.entries, restored.last_index)
        self._note_members([e for e in restored.entries if e.index > restored.mark.index])
        self._ticks = self._elapsed = self._timeout = 0
        self._votes: dict[int, bool] = {}
        self.began_index = 0
        self._reads = ReadRounds()
        self.installing: m.Mark | None = None  # the snapshot that replaces the log, until its sync
        self._hard_handed = self._hard_synced = restored.hard
        self._apply_handed = self.applied
        self._must_replicate = False
        self._clear_duties()

    # What the member is told -------------------------------------------------------------------
    def step(self, message: m.Message) -> None:
        """Take a message of another member."""
        if self.halted or self._ignores(message):
            return
        if message.term > self.term:
            is_leader = isinstance(
                message, m.Append | m.Heartbeat | m.InstallSnapshot | m.Committed
            )
            self._become_follower(message.term, message.sender if is_leader else 0)
        elif message.term < self.term:
            self._refuse_old(message)
            return
        _HANDLERS[type(message)](self, message)

    def tick(self) -> None:
        """Let 100 ms pass."""
        if self.halted:
            return
        self._ticks += 1
        self._elapsed += 1
        if self.role is Role.LEADER:
            self._tick_leader()
        elif self._elapsed >= self.limits.election_ticks_min:
            self._tick_waiting()

    def propose(self, payload: bytes) -> int:
        """Append an entry; its index. Raises, having changed nothing, if that cannot be done."""
        self._require_serving()
        self._require_room(len(payload))
        return self._append_own(payload)

    def change_members(self, change: Change) -> int:
        """Append a change of the members; its index."""
        self._require_serving()
        self._require_no_change()
        if change.verb == PROMOTE and not self._is_near(change.member):
            raise ChangeRefused(f"learner {change.member} is behind: promote it when it is not")
        if change.verb == REMOVE and change.member == self.member:
            raise ChangeRefused(f"member {change.member} leads: transfer the leadership first")
        return self._append_own(encode_members(self.members.after(change)))

    def read_index(self, context: int) -> None:
        """Ask for a linearizable read; `Ready.reads` or `lost_reads` answers."""
        if self.role is Role.LEADER:
            self._require_serving()
            self._reads.add(Waiting(self.member, context, self.commit))
        elif self.leader and not self.halted:
            self._now.append(m.ReadRequest(self.leader, self.member, self.term, context))
        else:
            raise self._not_leader()

    def transfer(self, member: int) -> None:
        """Hand the leadership over. Until then, at most an election timeout, nothing is taken."""
        self._require_serving()
        if member == self.member or member not in self.members.voters:
            raise TransferRefused(f"member {member} is not another voter of the group")
        if not self._is_near(member):
            raise TransferRefused(f"member {member} is behind: transfer when it is not")
        self.transferee, self._elapsed = member, 0
        self._lose_reads()
        self._hand_over(member)

    def persisted(self, written: Written) -> None:
        """A write is synced, and all before it."""
        if self.halted:
            return
        self._hard_synced = written.hard
        if written.mark is not None and written.mark is self.installing:
            self.installing, self.snapshot = None, written.mark
            self.applied = self._apply_handed = written.mark.index
        if self._confirm_own(written) and self.role is Role.LEADER:
            self._advance_commit()
        if self.role is Role.CANDIDATE and written.hard == (self.term, self.member):
            self._votes[self.member] = True
            self._count_votes()

    def applied_to(self, index: int) -> None:
        """The state has taken in all entries up to `index`."""
        self.applied = max(self.applied, index)
        self.log.evict(self.applied, 0 if self.is_alone else self.limits.held_bytes)

    def snapshotted(self, index: int) -> None:
        """A snapshot of the state at `index` is synced."""
        if index > self.applied:
            raise ValueError(f"a snapshot at {index} has more than was applied: {self.applied}")
        if index > self.snapshot.index:
            members = self.members_at(index)
            self.snapshot = m.Mark(index, self.log.term_at(index), members)
            self._configs = [(index, members), *(c for c in self._configs if c[0] > index)]

    def compacted(self, index: int) -> None:
        """The log no longer has the entries up to `index`."""
        if index > self.snapshot.index:
            raise ValueError(f"entries up to {index} are not in a snapshot: {self.snapshot.index}")
        self.log.compact(index)

    def fetched(self, fetch: Fetch, entries: Sequence[LogEntry]) -> None:
        """Entries that were asked for by `Fetch`; none if the store no longer has them."""
        progress = self.progress.get(fetch.to)
        if progress is None or not progress.fetching:
            return
        progress.fetching = False
        if entries and progress.next == fetch.first and self._has(*entries[-1][:2]):
            self._send_append(fetch.to, progress, entries)
        self._must_replicate = True

    def snapshot_sent(self, member: int, arrived: bool) -> None:
        """The snapshot for a follower is there, or its transfer failed."""
        progress = self.progress.get(member)
        if progress is not None and progress.stage is Stage.SNAPSHOT:
            progress.probe(progress.snapshot + 1 if arrived else progress.match + 1)
            self._must_replicate = True

    def stand(self) -> None:
        """Lead at once, for a member that is alone: its vote is the only one."""
        if self.is_alone and self.role is Role.FOLLOWER and self._may_stand():
            self._campaign()

    def append_alone(self, payload: bytes) -> LogEntry:
        """As `propose` and `ready` together, for a member that is alone and serves: write this.

        These two take a third of the time for an entry that no other member has to hear of.
        """
        log = self.log
        entry = LogEntry(log.last_index + 1, self.term, payload)
        log.append((entry,))
        log.handed = entry.index
        return entry

    def applied_alone(self, index: int) -> None:
        """As `persisted`, `ready` and `applied_to`: the entry was written and is in the state."""
        self.log.synced = self.commit = self.applied = self._apply_handed = index
        self.log.evict(index, 0)

    def retract(self, index: int) -> None:
        """The disk refused the entries from `index` on: for a member that is alone.

        Where there are others they may have these entries, and the shell has to write them again.
        """
        if not self.is_alone or index <= self.log.synced:
            raise ValueError(f"entry {index} may be elsewhere or is synced: {self.log.synced}")
        if index <= self.log.last_index:
            self._cut(index)
            self._cut_from = 0  # they never were on the disk

    def halt(self) -> None:
        """The store went read-only or the partition failed: answer nothing, lead nothing."""
        self._become_follower(self.term, 0)
        self.halted = True
        del self._now[:], self._after[:]

    # What the member owes ----------------------------------------------------------------------
    def ready(self) -> Ready | None:
        """The duties since the last call, or None."""
        if self.role is Role.LEADER:
            self._start_reads()
            if self._must_replicate:
                self._replicate()
        log, apply_to, hard = self.log, self._may_apply(), self._hard_handed
        has_hard = hard.term != self.term or hard.vote != self.vote
        has_entries = log.handed < log.last_index
        if not (has_hard or has_entries or apply_to > self._apply_handed or self._owes()):
            return None
        if has_hard:
            self._hard_handed = hard = HardState(self.term, self.vote)
        applies = apply_to > self._apply_handed
        ready = Ready(
            Written(log.last_index, log.cuts, hard, self._install),
            hard if has_hard else None, self._install, self._cut_from,
            log.slice(log.handed + 1, log.last_index) if has_entries else (),
            self._now, self._after,
            log.slice(self._apply_handed + 1, apply_to) if applies else (),
            self._answered, self._lost, self._fetch,
        )  # fmt: skip
        log.handed, self._apply_handed = log.last_index, apply_to
        self._clear_duties()
        return ready

    @property
    def members(self) -> Members:
        """The members as the end of the log has them."""
        return self._configs[-1][1]

    def members_at(self, index: int) -> Members:
        """The members as of an entry."""
        return next(members for at, members in reversed(self._configs) if at <= index)

    @property
    def is_alone(self) -> bool:
        """Whether this member is all of its group."""
        members = self.members
        return members.voters == (self.member,) and not members.learners

    @property
    def is_serving(self) -> bool:
        """Whether this member leads and its first entry is committed."""
        return self.role is Role.LEADER and self.commit >= self.began_index

    def _owes(self) -> bool:
        sends = self._now or self._after or self._answered or self._lost or self._fetch
        return bool(sends or self._install or self._cut_from)

    def _clear_duties(self) -> None:
        self._now: list[m.Message] = []
        self._after: list[m.Message] = []
        self._answered: list[Read] = []
        self._lost: list[int] = []
        self._fetch: list[Fetch] = []
        self._install: m.Mark | None = None
        self._cut_from = 0

    def _may_apply(self) -> int:
        """Committed and synced here: after a restart the log never lacks what was applied."""
        if self.installing is not None:
            return self._apply_handed
        commit, synced = self.commit, self.log.synced
        return commit if commit < synced else max(self._apply_handed, synced)

    # Terms and elections -----------------------------------------------------------------------
    def _ignores(self, message: m.Message) -> bool:
        """A member that hears of a leader takes no part in elections, unless by transfer."""
        if type(message) is not m.VoteRequest or message.transfer:
            return False
        is_recent = self.leader != 0 and self._elapsed < self.limits.election_ticks_min
        return is_recent or self.role is Role.LEADER

    def _refuse_old(self, message: m.Message) -> None:
        """Tell a leader or candidate of an older term which term it is."""
        if isinstance(message, m.Append | m.Heartbeat | m.InstallSnapshot):
            self._answer(m.AppendAnswer(message.sender, self.member, self.term, 0, refused=True))
        elif type(message) is m.VoteRequest:
            self._answer(m.VoteAnswer(message.sender, self.member, self.term, False, message.pre))

    def _answer(self, message: m.Message) -> None:
        """Send now what shows a synced term, else after the sync."""
        (self._now if self._hard_synced.term == self.term else self._after).append(message)

    def _become_follower(self, term: int, leader: int) -> None:
        if self.role is Role.LEADER:
            self._lose_reads()
            self.progress, self.transferee = {}, 0
        if term != self.term:
            self.term, self.vote = term, 0
        self.role, self.leader = Role.FOLLOWER, leader
        self._wait()

    def _wait(self) -> None:
        """Start waiting; the timeout is drawn when the shortest one has passed."""
        self._elapsed = self._timeout = 0

    def _tick_waiting(self) -> None:
        if not self._timeout:
            low, high = self.limits.election_ticks_min, self.limits.election_ticks_max
            self._timeout = self._draw(low, high)
        if self._elapsed >= self._timeout:
            self._wait()
            if self._may_stand():
                self._pre_campaign()

    def _may_stand(self) -> bool:
        if self.restoring or self.installing is not None or self.applied < self.commit:
            return False
        return self.member in self.members.voters

    def _pre_campaign(self) -> None:
        self.role, self.leader = Role.PRE_CANDIDATE, 0
        self._votes = {self.member: True}
        self._ask_for_votes(pre=True)
        self._count_votes()

    def _campaign(self, transfer: bool = False) -> None:
        """Stand in a new term. The own vote counts when it is synced."""
        self.term, self.vote = self.term + 1, self.member
        self.role, self.leader = Role.CANDIDATE, 0
        self._votes = {}
        self._wait()
        self._ask_for_votes(transfer=transfer)

    def _ask_for_votes(self, *, pre: bool = False, transfer: bool = False) -> None:
        log = self.log
        self._after += [
            m.VoteRequest(to, self.member, self.term, log.last_index, log.last_term, pre, transfer)
            for to in self.members.voters
            if to != self.member
        ]

    def _on_vote_request(self, message: m.VoteRequest) -> None:
        granted = self.log.is_up_to_date(message.last_index, message.last_term)
        if not message.pre:
            is_free = self.vote == 0 and self.leader == 0
            granted = granted and (is_free or self.vote == message.sender)
            if granted:
                self.vote = message.sender
                self._wait()
        answer = m.VoteAnswer(message.sender, self.member, self.term, granted, message.pre)
        self._answer_vote(answer)

    def _answer_vote(self, answer: m.VoteAnswer) -> None:
        self._after.append(answer)

    def _on_vote_answer(self, message: m.VoteAnswer) -> None:
        asked = Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE
        if self.role is asked:
            self._votes.setdefault(message.sender, message.granted)
            self._count_votes()

    def _count_votes(self) -> None:
        tally = election(self.members.voters, self._votes)
        if tally is Tally.LOST:
            self._become_follower(self.term, 0)
        elif tally is Tally.WON and self.role is Role.PRE_CANDIDATE:
            self._campaign()
        elif tally is Tally.WON:
            self._become_leader()

    def _on_timeout_now(self, message: m.TimeoutNow) -> None:
        if self.leader == message.sender and self._may_stand():
            self._campaign(transfer=True)

    # A leader ----------------------------------------------------------------------------------
    def _become_leader(self) -> None:
        self.role, self.leader = Role.LEADER, self.member
        self._reads, self._elapsed, self.transferee = ReadRounds(), 0, 0
        self._keep_progress(self.log.last_index + 1)
        self.began_index = self._append_own(self._began(self.term))

    def _keep_progress(self, next_index: int) -> None:
        """One progress for every other member; new ones are probed from an index on."""
        others = [member for member in self.members.everyone() if member != self.member]
        self.progress = {
            member: self.progress.get(member) or Progress(next_index, self.limits)
            for member in others
        }

    def _append_own(self, payload: bytes) -> int:
        self._append([LogEntry(self.log.last_index + 1, self.term, payload)])
        self._must_replicate = True
        return self.log.last_index

    def _tick_leader(self) -> None:
        self._must_replicate = True
        if self._elapsed >= self.limits.election_ticks_min:
            self._elapsed = self.transferee = 0
            if not self._is_heard():
                self._become_follower(self.term, 0)
                return
        self._send_heartbeats()

    def _is_heard(self) -> bool:
        """Whether a majority has answered since the last check; the next check starts from here."""
        voters, heard = self.members.voters, {self.member}
        for member, progress in self.progress.items():
            if progress.heard:
                heard.add(member)
            progress.heard = False
        return len(heard.intersection(voters)) >= majority(len(voters))

    def _send_heartbeats(self) -> None:
        for member, progress in self.progress.items():
            progress.sent_commit = commit = min(self.commit, progress.match)
            read_round = self._reads.round
            self._now.append(m.Heartbeat(member, self.member, self.term, commit, read_round))

    def _replicate(self) -> None:
        self._must_replicate = False
        for member, progress in self.progress.items():
            self._send_entries(member, progress)
            commit = min(self.commit, progress.match)
            if progress.sent_commit < commit and progress.stage is Stage.REPLICATE:
                progress.sent_commit = commit
                self._now.append(m.Committed(member, self.member, self.term, commit))

    def _send_entries(self, member: int, progress: Progress) -> None:
        log = self.log
        while progress.next <= log.last_index and progress.may_send(self._ticks):
            if progress.next <= log.boundary:
                progress.send_snapshot(self.snapshot.index)
                mark = self.snapshot
                self._now.append(m.InstallSnapshot(member, self.member, self.term, mark))
                return
            if progress.next < log.held_from:
                progress.fetching = True
                self._fetch.append(Fetch(member, progress.next, log.held_from - 1))
                return
            entries = log.take(progress.next, self.limits.message_bytes)
            self._send_append(member, progress, entries)

    def _send_append(self, to: int, progress: Progress, entries: Sequence[LogEntry]) -> None:
        prev = progress.next - 1
        message = m.Append(
            to, self.member, self.term, prev, self.log.term_at(prev), self.commit, tuple(entries)
        )
        self._now.append(message)
        last = prev + len(entries)
        progress.sent_commit = max(progress.sent_commit, min(self.commit, last))
        if entries:
            progress.sent(last, sum([len(entry.payload) for entry in entries]), self._ticks)

    def _on_append_answer(self, message: m.AppendAnswer) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        progress.heard = True
        self._must_replicate = True
        if message.saturated:
            progress.saturated(message.index, self._ticks)
            self._advance_commit()
        elif message.refused:
            place = self.log.last_at_most(message.hint_index, message.hint_term)
            progress.refused(message.index, place)
        elif progress.confirmed(message.index, self._ticks):
            self._advance_commit()
            if self.transferee == message.sender:
                self._hand_over(message.sender)

    def _on_heartbeat_answer(self, message: m.HeartbeatAnswer) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        progress.heard = True
        if message.read_round > progress.read_round:
            progress.read_round = message.read_round
            self._release_reads()
        if progress.match < self.log.last_index:
            self._ask_for_losses(message.sender, progress)

    def _ask_for_losses(self, member: int, progress: Progress) -> None:
        """An append without entries finds out whether those before it arrived."""
        progress.waiting = False
        self._must_replicate = True
        if progress.stage is not Stage.REPLICATE or progress.next == progress.match + 1:
            return
        if progress.next <= self.log.boundary:
            progress.probe(progress.match + 1)
        else:
            self._send_append(member, progress, ())

    def _confirm_own(self, written: Written) -> bool:
        return self.log.confirm(written.index, written.cuts)

    def _own_match(self) -> int:
        """A leader counts itself for what its own disk has synced."""
        return self.log.synced

    def _matches(self) -> list[int]:
        return [
            self._own_match() if voter == self.member else self.progress[voter].match
            for voter in self.members.voters
        ]

    def _advance_commit(self) -> None:
        index = self._counted()
        if index > self.commit and self._may_count(index):
            self._commit_to(index)
            self._must_replicate = True

    def _counted(self) -> int:
        return committed_index(self._matches())

    def _may_count(self, index: int) -> bool:
        """Entries of older terms are committed only together with one of this term."""
        return self.log.term_at(index) == self.term

    def _hand_over(self, member: int) -> None:
        if self.progress[member].match == self.log.last_index:
            self._now.append(m.TimeoutNow(member, self.member, self.term))

    def _is_near(self, member: int) -> bool:
        progress = self.progress.get(member)
        if progress is None or progress.stage is not Stage.REPLICATE:
            return False
        behind = self.log.bytes_after(progress.match)
        return behind is not None and behind <= self.limits.near_bytes

    def _require_serving(self) -> None:
        if self.role is not Role.LEADER:
            raise self._not_leader()
        if not self.is_serving:
            raise NotServing(f"member {self.member} has just begun to lead: try again")
        if self.transferee:
            raise NotServing(f"member {self.member} hands over to {self.transferee}: try again")

    def _not_leader(self) -> NotLeader:
        where = f"member {self.leader} does" if self.leader else "no leader is known"
        return NotLeader(f"member {self.member} does not lead; {where}", leader=self.leader)

    def _require_room(self, size: int) -> None:
        waiting = self.log.bytes_after(self.commit) or 0
        if waiting and waiting + size > self.limits.uncommitted_bytes:
            raise UncommittedFull(
                f"{waiting} bytes wait for a majority, of {self.limits.uncommitted_bytes}; "
                "nothing was appended, try again"
            )

    def _require_no_change(self) -> None:
        at, _ = self._configs[-1]
        if at > self.commit:
            raise ChangeInProgress(f"the change at entry {at} is not committed yet", index=at)

    # Reads -------------------------------------------------------------------------------------
    def _start_reads(self) -> None:
        if self._reads.due:
            self._reads.start()
            self._send_heartbeats()
            self._release_reads()

    def _release_reads(self) -> None:
        for read in self._reads.confirmed(self._confirmed_round()):
            if read.member == self.member:
                self._answered.append(Read(read.context, read.index))
            else:
                answer = m.ReadAnswer(read.member, self.member, self.term, read.context, read.index)
                self._now.append(answer)

    def _confirmed_round(self) -> int:
        """The last round of heartbeats that a majority has answered."""
        rounds = {member: p.read_round for member, p in self.progress.items()}
        return committed_index([rounds.get(v, self._reads.round) for v in self.members.voters])

    def _lose_reads(self) -> None:
        dropped = self._reads.clear()
        self._lost += [read.context for read in dropped if read.member == self.member]

    def _on_read_request(self, message: m.ReadRequest) -> None:
        if self.is_serving and not self.transferee:
            self._reads.add(Waiting(message.sender, message.context, self.commit))

    def _on_read_answer(self, message: m.ReadAnswer) -> None:
        self._answered.append(Read(message.context, message.index))

    # A follower --------------------------------------------------------------------------------
    def _follow(self, message: m.Message) -> None:
        if self.role is Role.LEADER:
            raise self._damaged(f"members {self.member} and {message.sender} lead in one term")
        if self.role is not Role.FOLLOWER or self.leader != message.sender:
            self._become_follower(message.term, message.sender)
        else:
            self._wait()

    def _on_heartbeat(self, message: m.Heartbeat) -> None:
        self._on_committed(message)
        read_round = message.read_round
        self._answer(m.HeartbeatAnswer(message.sender, self.member, self.term, read_round))

    def _on_committed(self, message: m.Committed | m.Heartbeat) -> None:
        self._follow(message)
        self._commit_to(message.commit)

    def _on_append(self, message: m.Append) -> None:
        self._follow(message)
        is_old = message.prev_index < self.commit
        if is_old:
            self._require_committed(message.entries)
        elif not self._has(message.prev_index, message.prev_term):
            self._refuse(message)
            return
        if self.full and message.entries:
            # At once: entries may be committed by others and not synced here, and an answer that
            # waits for their write leaves the leader without a word while the disk is full.
            index = min(max(message.prev_index, self.commit), self.log.synced)
            answer = m.AppendAnswer(message.sender, self.member, self.term, index, saturated=True)
            self._answer(answer)
        elif is_old:
            self._confirm(message.sender, self.commit)
        else:
            self._take(message.entries)
            last = message.prev_index + len(message.entries)
            self._commit_to(min(message.commit, last))
            self._confirm(message.sender, last)

    def _require_committed(self, entries: Sequence[LogEntry]) -> None:
        """What is committed here must be what the leader has."""
        for entry in entries:
            if self.log.boundary < entry.index <= self.commit and not self._has(*entry[:2]):
                raise self._damaged(f"entry {entry.index} is committed, and the leader's differs")

    def _has(self, index: int, term: int) -> bool:
        return self.log.term_at(index) == term

    def _confirm(self, to: int, index: int) -> None:
        self._after.append(m.AppendAnswer(to, self.member, self.term, index))

    def _refuse(self, message: m.Append) -> None:
        """Hint at the last entry here that may be the leader's as well."""
        log = self.log
        hint = log.last_at_most(message.prev_index, message.prev_term)
        answer = m.AppendAnswer(
            message.sender, self.member, self.term, message.prev_index,
            refused=True, hint_index=hint, hint_term=log.term_at(hint),
        )  # fmt: skip
        self._after.append(answer)

    def _take(self, entries: Sequence[LogEntry]) -> None:
        """Keep what is there already; cut only from the first entry that differs."""
        place = self.log.first_conflict(entries)
        if place < len(entries):
            if entries[place].index <= self.log.last_index:
                self._cut(entries[place].index)
            self._append(entries[place:])

    def _append(self, entries: Sequence[LogEntry]) -> None:
        self.log.append(entries)
        self._note_members(entries)

    def _note_members(self, entries: Sequence[LogEntry]) -> None:
        """A change of members holds as soon as it is in the log."""
        for entry in entries:
            if entry.payload.startswith(MARK):
                members = decode_members(entry.payload)
                found = members if members.voters else self._founders
                self._configs.append((entry.index, found))
                if self.role is Role.LEADER:
                    self._keep_progress(entry.index)

    def _cut(self, index: int) -> None:
        if index <= self.commit:
            raise self._damaged(f"entry {index} is committed and would be cut")
        if index <= self.log.handed:
            self._cut_from = min(self._cut_from or index, index)
        self.log.cut(index)
        while self._configs[-1][0] >= index:
            self._configs.pop()

    def _commit_to(self, index: int) -> None:
        if index > self.log.last_index:
            raise self._damaged(f"entry {index} was confirmed here and is not in the log")
        self.commit = max(self.commit, index)

    def _damaged(self, text: str) -> Damaged:
        self.halt()
        return Damaged(f"{text}; the partition stops on this member")

    def _on_install_snapshot(self, message: m.InstallSnapshot) -> None:
        self._follow(message)
        mark = message.mark
        if mark.index > self.commit:
            if self._holds(mark):
                self._commit_to(mark.index)
            else:
                self._replace_log(mark)
        self._confirm(message.sender, self.commit)

    def _holds(self, mark: m.Mark) -> bool:
        """A log that has the snapshot's last entry loses nothing: more may have been counted."""
        return self._has(mark.index, mark.term)

    def _replace_log(self, mark: m.Mark) -> None:
        self.log.reset(mark.index, mark.term)
        self.commit = mark.index
        self._configs = [(mark.index, mark.members)]
        self._install = self.installing = mark
        self._cut_from = 0


_HANDLERS: Final[dict[type[m.Message], Callable[[Core, Any], None]]] = {
    m.Append: lambda core, message: core._on_append(message),
    m.AppendAnswer: lambda core, message: core._on_append_answer(message),
    m.Heartbeat: lambda core, message: core._on_heartbeat(message),
    m.HeartbeatAnswer: lambda core, message: core._on_heartbeat_answer(message),
    m.Committed: lambda core, message: core._on_committed(message),
    m.VoteRequest: lambda core, message: core._on_vote_request(message),
    m.VoteAnswer: lambda core, message: core._on_vote_answer(message),
    m.InstallSnapshot: lambda core, message: core._on_install_snapshot(message),
    m.TimeoutNow: lambda core, message: core._on_timeout_now(message),
    m.ReadRequest: lambda core, message: core._on_read_request(message),
    m.ReadAnswer: lambda core, message: core._on_read_answer(message),
}
