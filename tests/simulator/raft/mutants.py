"""Cores with one mistake each. Every one must be found by a script and by a pinned seed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.log.store import HardState, LogEntry
from penstock.raft.core import Core, Role
from penstock.raft.messages import Mark, VoteAnswer
from penstock.raft.ready import Restored, Written


class CommitsAnOlderTermByCounting(Core):
    def _may_count(self, index: int) -> bool:
        return True


class VotesBeforeTheSync(Core):
    def _answer_vote(self, answer: VoteAnswer) -> None:
        self._now.append(answer)


class ForgetsTheVoteAtARestart(Core):
    def __init__(self, member: int, restored: Restored, **rest: object) -> None:
        super().__init__(member, restored, **rest)  # type: ignore[arg-type]
        self.vote = 0
        self._hard_handed = self._hard_synced = HardState(self.term, 0)


class CountsItselfBeforeItsSync(Core):
    def _own_match(self) -> int:
        return self.log.last_index


class CommitsBeforeAMajority(Core):
    def _counted(self) -> int:
        return max(self._matches())


class AcceptsAppendsWithoutLooking(Core):
    def _has(self, index: int, term: int) -> bool:
        return True


class CutsEntriesThatMatch(Core):
    def _take(self, entries: Sequence[LogEntry]) -> None:
        if entries:
            if entries[0].index <= self.log.last_index:
                self._cut(entries[0].index)
            self._append(entries)


class DropsASuffixThatWasCounted(Core):
    def _holds(self, mark: Mark) -> bool:
        return False


class ConfirmsWhatWasCutAndWrittenAgain(Core):
    def _confirm_own(self, written: Written) -> bool:
        same = self.log.term_at(written.index) == written.hard.term
        return self.log.confirm(written.index, self.log.cuts if same else written.cuts)


class ReadsWithoutARound(Core):
    def _confirmed_round(self) -> int:
        return self._reads.round


class ServesBeforeItsFirstEntryIsCommitted(Core):
    @property
    def is_serving(self) -> bool:
        return self.role is Role.LEADER


class ChangesMembersTwiceAtOnce(Core):
    def _require_no_change(self) -> None:
        pass


class AppliesWhatIsNotCommitted(Core):
    def _may_apply(self) -> int:
        return self._apply_handed if self.installing else max(self._apply_handed, self.log.synced)


class CompactsBeyondApplied(Core):
    def snapshotted(self, index: int) -> None:
        applied, self.applied = self.applied, max(self.applied, index)
        super().snapshotted(index)
        self.applied = applied


class PromotesALearnerThatIsBehind(Core):
    def _is_near(self, member: int) -> bool:
        return True


MUTANTS: tuple[type[Core], ...] = tuple(Core.__subclasses__())
