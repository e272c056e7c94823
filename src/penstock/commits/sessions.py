"""The answers given to each session, so that a repeated commit is not applied again.

The last answers of each session are kept, up to a limit for all sessions. Of forgotten answers the
highest number is kept: a commit with that number or a lower one is refused, never applied twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.protocol.errors import CommitProtocol

SESSION_ANSWERS_MAX: Final = 4_096
ANSWERS_MAX: Final = 262_144


class CommitAnswer(Struct, frozen=True, array_like=True, gc=False):
    """The answer to an accepted commit, and the hash of the commit."""

    seq: int
    ts_ms: int
    digest: int


class KeptAnswer(NamedTuple):
    """An answer with its session."""

    session: str
    local_seq: int
    answer: CommitAnswer


class _SessionState:
    __slots__ = ("answers", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor  # the highest local_seq that was forgotten
        self.answers: dict[int, CommitAnswer] = {}  # oldest commit first


class SessionAnswers:
    """The answers of all sessions of a space. Sessions themselves are never forgotten."""

    def __init__(
        self, *, each_max: int = SESSION_ANSWERS_MAX, answers_max: int = ANSWERS_MAX
    ) -> None:
        self._each_max = each_max
        self._answers_max = answers_max
        self._sessions: dict[str, _SessionState] = {}
        self._order: deque[tuple[str, int]] = deque()  # oldest first, some forgotten already
        self.count = 0  # of answers

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session: str, local_seq: int) -> CommitAnswer | None:
        """The answer to a commit, if it is known to have been accepted."""
        found = self._sessions.get(session)
        return None if found is None else found.answers.get(local_seq)

    def check_age(self, session: str, local_seq: int) -> None:
        """Refuse a number that may have been used by a forgotten commit."""
        found = self._sessions.get(session)
        if found is not None and local_seq <= found.floor:
            raise CommitProtocol(
                f"the answer to commit {local_seq} of session {session!r} is no longer kept: the "
                f"session must go on after local_seq {found.floor}",
                session=session,
                local_seq=local_seq,
                floor=found.floor,
            )

    def keep(self, session: str, local_seq: int, answer: CommitAnswer) -> None:
        """Store an answer, and drop the oldest beyond the limits."""
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = _SessionState()
        answers = found.answers
        answers[local_seq] = answer
        self._order.append((session, local_seq))
        self.count += 1
        if len(answers) > self._each_max:
            self._forget(found, next(iter(answers)))
        while self.count > self._answers_max:
            oldest, number = self._order.popleft()
            owner = self._sessions[oldest]
            if number in owner.answers:
                self._forget(owner, number)
        if len(self._order) > 2 * self.count + 1_024:
            self._order = deque(
                each for each in self._order if each[1] in self._sessions[each[0]].answers
            )

    def floors(self) -> Iterator[tuple[str, int]]:
        """Every session with forgotten answers, and their highest number."""
        for name, session in self._sessions.items():
            if session.floor:
                yield name, session.floor

    def kept(self) -> Iterator[KeptAnswer]:
        """Every answer, oldest first."""
        for name, number in self._order:
            answer = self._sessions[name].answers.get(number)
            if answer is not None:
                yield KeptAnswer(name, number, answer)

    def restore(
        self, floors: Iterable[tuple[str, int]] = (), answers: Iterable[KeptAnswer] = ()
    ) -> None:
        """Load the contents of a snapshot; answers oldest first."""
        for name, floor in floors:
            session = self._sessions.setdefault(name, _SessionState())
            session.floor = max(session.floor, floor)
        for name, number, answer in answers:
            self.keep(name, number, answer)

    def _forget(self, session: _SessionState, local_seq: int) -> None:
        del session.answers[local_seq]
        session.floor = max(session.floor, local_seq)
        self.count -= 1
