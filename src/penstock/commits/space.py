"""The entities of a space, and the four checks that decide whether a commit takes effect.

A decided commit is `stage`d: later decisions take it into account, readers do not see it. `apply`
makes the oldest staged commit visible once it is durable; `abandon` drops all staged commits. The
state is a function of the applied commits, in their order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Struct

from penstock.commits.entity import NEVER, Entity, PatchPaths, is_stale, written
from penstock.commits.model import ABSENT, apply_write, parse_path
from penstock.commits.sessions import CommitAnswer, SessionAnswers
from penstock.protocol.commits import Commit, CommitWrite, Origin, Precondition
from penstock.protocol.errors import (
    CommitConflict,
    CommitProtocol,
    InvalidRequest,
    PreconditionFailed,
)

DOCUMENT_BYTES_MAX: Final = 1 << 20
_NO_LIMIT: Final = 1 << 62


class Landing(Struct, frozen=True, gc=False):
    """A decided commit: its answer, and the entities after it."""

    session: str
    local_seq: int
    event_id: str | None
    answer: CommitAnswer
    entities: tuple[tuple[str, Entity], ...]


class SpaceCounts(NamedTuple):
    """The size of a space."""

    entities: int
    deleted: int
    sessions: int
    answers: int
    receipts: int


class Space:
    """The state of one space. Not thread-safe: its owner runs one command at a time."""

    def __init__(self, *, document_bytes_max: int = DOCUMENT_BYTES_MAX) -> None:
        self.entities: dict[str, Entity] = {}  # including deleted ones, forever
        self.receipts: dict[str, int] = {}  # event id -> the first commit that left it
        self.sessions = SessionAnswers()
        self.histories: dict[str, array[int]] = {}  # the seqs of an entity's writes
        self._deleted: set[str] = set()  # of the entities, those without a document
        self._document_bytes_max = document_bytes_max
        self._ahead: dict[str, Entity] = {}  # after the staged commits
        self._ahead_receipts: dict[str, int] = {}
        self._ahead_answers: dict[tuple[str, int], CommitAnswer] = {}
        self._ids: list[str] = []  # sorted, except those in `_new_ids`
        self._new_ids: list[str] = []

    def counts(self) -> SpaceCounts:
        """The size of the space, without a look at its entities."""
        deleted = len(self._deleted)
        return SpaceCounts(
            len(self.entities) - deleted,
            deleted,
            len(self.sessions),
            self.sessions.count,
            len(self.receipts),
        )

    # Decisions

    def replayed(self, commit: Commit, digest: int) -> CommitAnswer | None:
        """The answer a commit was given before, if it is sent again."""
        session, local_seq = commit.session, commit.local_seq
        answer = self._answer(session, local_seq)
        if answer is None:
            self.sessions.check_age(session, local_seq)
            return None
        if answer.digest != digest:
            raise CommitProtocol(
                f"session {session!r} used local_seq {local_seq} before, for another commit at seq "
                f"{answer.seq}: each commit needs a number of its own",
                session=session,
                local_seq=local_seq,
                seq=answer.seq,
            )
        return answer

    def check(self, commit: Commit, head_seq: int) -> None:
        """Refuse a commit that must not take effect now; changes nothing either way."""
        reads = commit.reads
        for read in reads:
            if read.seq > head_seq:
                raise InvalidRequest(
                    f"the read of entity {read.entity!r} is as of seq {read.seq}, but the space is "
                    f"only at seq {head_seq}",
                    entity=read.entity,
                    basis=read.seq,
                    head=head_seq,
                )
        for precondition in commit.preconditions:
            self._check_precondition(precondition)
        if commit.pending_reads:
            self._check_pending(commit)
            return
        ahead, entities = self._ahead, self.entities
        for read in reads:
            entity = ahead.get(read.entity) or entities.get(read.entity)
            if entity is not None and entity.seq > read.seq:  # very rare
                self._check_read(commit, read.entity, read.seq, read.path, read.shallow)

    def land(self, commit: Commit, seq: int, now_ms: int, digest: int) -> Landing:
        """The effect of a commit that passed the checks; changes nothing yet."""
        return self._land(commit, CommitAnswer(seq, now_ms, digest), self._document_bytes_max)

    def _land(self, commit: Commit, answer: CommitAnswer, bytes_max: int) -> Landing:
        touch = PatchPaths(answer.seq, commit.session, commit.local_seq, ())
        writes = commit.writes
        if len(writes) == 1:
            write = writes[0]
            entity = written(self._decided(write.entity), write, touch, bytes_max)
            entities: tuple[tuple[str, Entity], ...] = ((write.entity, entity),)
        else:
            here: dict[str, Entity] = {}
            for write in writes:
                before = here.get(write.entity) or self._decided(write.entity)
                here[write.entity] = written(before, write, touch, bytes_max)
            entities = tuple(here.items())
        return Landing(commit.session, commit.local_seq, commit.event_id, answer, entities)

    # Changes

    def stage(self, landing: Landing) -> None:
        """A commit is on its way to the log: later decisions take it into account."""
        self._ahead.update(landing.entities)
        self._ahead_answers[landing.session, landing.local_seq] = landing.answer
        if landing.event_id is not None:
            self._ahead_receipts.setdefault(landing.event_id, landing.answer.seq)

    def apply(self, landing: Landing, earliest_seq: int = 0) -> None:
        """The oldest staged commit is durable: make it visible to readers.

        The seqs of records before `earliest_seq`, which were removed, are no longer needed.
        """
        ahead = self._ahead
        for name, entity in landing.entities:
            if ahead.get(name) is entity:
                del ahead[name]
        del self._ahead_answers[landing.session, landing.local_seq]
        event_id = landing.event_id
        if event_id is not None and self._ahead_receipts.get(event_id) == landing.answer.seq:
            del self._ahead_receipts[event_id]
        self._take(landing, earliest_seq)

    def abandon(self) -> None:
        """No staged commit became durable: decide again from the applied state."""
        self._ahead.clear()
        self._ahead_answers.clear()
        self._ahead_receipts.clear()

    def replay(self, commit: Commit, answer: CommitAnswer, earliest_seq: int = 0) -> CommitAnswer:
        """Apply a commit from the log, which was accepted before, without staging it."""
        self._take(self._land(commit, answer, _NO_LIMIT), earliest_seq)
        return answer

    def _take(self, landing: Landing, earliest_seq: int) -> None:
        answer, known, histories = landing.answer, self.entities, self.histories
        seq = answer.seq
        for name, entity in landing.entities:
            history = histories.get(name)
            if history is None:
                self._new_ids.append(name)
                histories[name] = array("q", (seq,))
            else:
                if history[0] < earliest_seq:
                    trim(history, earliest_seq)
                history.append(seq)
            known[name] = entity
            if entity.document is None:
                self._deleted.add(name)
            elif self._deleted:
                self._deleted.discard(name)
        if landing.event_id is not None:
            self.receipts.setdefault(landing.event_id, seq)
        self.sessions.keep(landing.session, landing.local_seq, answer)

    def restore(
        self,
        entities: Iterable[tuple[str, Entity, array[int]]],
        receipts: Iterable[tuple[str, int]],
    ) -> None:
        """Load a part of a snapshot."""
        for name, entity, history in entities:
            self.entities[name] = entity
            self.histories[name] = history
            self._new_ids.append(name)
            if entity.document is None:
                self._deleted.add(name)
        self.receipts.update(receipts)

    # Reading

    def ids(self, prefix: str, after: str) -> Iterator[str]:
        """The ids of entities, including deleted ones, in order, after a given one."""
        if self._new_ids:
            ids = [*self._ids, *self._new_ids]
            ids.sort()  # two runs, one of them sorted: fast
            self._ids, self._new_ids = ids, []
        ids = self._ids
        place = bisect_left(ids, max(prefix, after))
        while place < len(ids) and (ids[place].startswith(prefix) or ids[place] <= after):
            if ids[place] > after:
                yield ids[place]
            place += 1

    # Helpers

    def _decided(self, name: str) -> Entity:
        return self._ahead.get(name) or self.entities.get(name) or NEVER

    def _answer(self, session: str, local_seq: int) -> CommitAnswer | None:
        if self._ahead_answers:
            answer = self._ahead_answers.get((session, local_seq))
            if answer is not None:
                return answer
        return self.sessions.find(session, local_seq)

    def _check_precondition(self, precondition: Precondition) -> None:
        receipt, origin = precondition.receipt_absent, precondition.origin_committed
        if isinstance(receipt, str):
            seq = self._ahead_receipts.get(receipt) or self.receipts.get(receipt)
            if seq is not None:
                raise PreconditionFailed(
                    f"receipt {receipt!r} exists already: the commit at seq {seq} left it",
                    "receipt-exists",
                    receipt=receipt,
                    seq=seq,
                )
        elif isinstance(origin, Origin) and self._answer(origin.session, origin.local_seq) is None:
            raise PreconditionFailed(
                f"commit {origin.local_seq} of session {origin.session!r}, which this one depends "
                "on, was not accepted",
                "origin-committed",
                session=origin.session,
                local_seq=origin.local_seq,
            )

    def _check_read(
        self,
        commit: Commit,
        name: str,
        basis: int,
        path: str = "",
        shallow: bool = False,
        *,
        seen: Container[int] = (),
        kind: str = "read",
    ) -> None:
        entity = self._decided(name)
        if is_stale(
            entity, basis, parse_path(path), shallow=shallow, session=commit.session, seen=seen
        ):
            raise CommitConflict(name, basis=basis, current=entity.seq, kind=kind)

    def _check_pending(self, commit: Commit) -> None:
        """Check the reads of a commit that depends on others of its session."""
        seen: dict[str, set[int]] = {}
        for pending in commit.pending_reads:
            seen.setdefault(pending.entity, set()).add(pending.local_seq)
        for read in commit.reads:
            named = seen.get(read.entity, ())
            self._check_read(commit, read.entity, read.seq, read.path, read.shallow, seen=named)
        for pending in commit.pending_reads:
            name = pending.entity
            answer = self._answer(commit.session, pending.local_seq)
            if answer is None:
                current = self._decided(name).seq
                raise CommitConflict(name, basis=0, current=current, kind="pending")
            self._check_read(commit, name, answer.seq, seen=seen[name], kind="pending")


def trim(history: array[int], earliest_seq: int) -> None:
    """Drop the seqs of removed records, except the last, to remember that there were some."""
    gone = bisect_left(history, earliest_seq)
    if gone > 1:
        del history[: gone - 1]


def writes_of(commit: Commit, name: str) -> tuple[CommitWrite, ...]:
    """The writes of a commit to one entity, in order."""
    return tuple(write for write in commit.writes if write.entity == name)


class Past:
    """Collects the writes that made a document, back to the one that hides all earlier ones."""

    def __init__(self, entity: str) -> None:
        self._entity = entity
        self._writes: list[CommitWrite] = []
        self.is_whole = False  # nothing older is needed

    def take(self, commit: Commit) -> None:
        """Add the next older commit."""
        for write in reversed(writes_of(commit, self._entity)):
            self._writes.append(write)
            if write.delete or write.set is not UNSET:
                self.is_whole = True
                return

    def document(self) -> Any:
        """The document that these writes produce, or `ABSENT`."""
        document: Any = ABSENT
        for write in reversed(self._writes):
            document = apply_write(document, write)
        return document


def seqs_upto(history: array[int], at_seq: int) -> list[int]:
    """The seqs of an entity's writes up to the given one, newest first."""
    return list(reversed(history[: bisect_right(history, at_seq)]))
