"""A space: a topic whose records are commits, with the entities that they create.

A commit is one entry of the log and one record of the topic, with its next seq. Nothing else can be
written to the topic. Old records may be evicted by the topic's limits; entities, receipts and
session answers are not evicted with them. In a snapshot a space is a list of parts.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from penstock.commits.entity import Entity, encode
from penstock.commits.model import payload_hash
from penstock.commits.sessions import CommitAnswer, KeptAnswer
from penstock.commits.space import Landing, Space, trim
from penstock.kernel.errors import Corrupt
from penstock.kernel.units import KIB
from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import NotASpace, RecordTooLarge
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, SpaceCommitted
from penstock.topics.core.record import RawRecord
from penstock.topics.core.topic import Topic

CONFIG: Final = TopicConfig(type="space", durability="fsync")
"""The configuration of a space created by its first commit."""

Rule = Callable[[str, Commit], None]
"""May refuse a commit that passed every check, by raising; receives the space's name."""

_T = TypeVar("_T")
_PART_ITEMS: Final = 2_048
_PART_BYTES: Final = 256 * KIB
"""The most bytes of documents in a part, unless a single one is larger."""
_RECORD: Final = b'{"records":[{"data":%b,"node":%b}]}'


class _Logged(Struct, omit_defaults=True, gc=False):
    """The content of a commit's record: enough to apply it again."""

    session: str
    local_seq: int
    writes: tuple[CommitWrite, ...]
    event_id: str | None = None


class TopicSpace:
    """The entities of one topic. Not thread-safe: its owner runs one command at a time."""

    def __init__(self, topic: Topic, limits: TopicLimits) -> None:
        if topic.config.type != "space":
            raise NotASpace(topic.name, topic.config.type)
        self.topic = topic
        self.core = Space(document_bytes_max=limits.record_bytes_max)
        self._record_bytes_max = limits.record_bytes_max
        # The result of the last decision, so that staging its entry need not repeat the work.
        self._decided: tuple[SpaceCommitted, Landing] | None = None
        self._staged: deque[tuple[Appended, Landing]] = deque()

    def decide(
        self, commit: Commit, now_ms: int, rule: Rule | None = None
    ) -> SpaceCommitted | CommitAnswer:
        """Decide a commit: an entry, the answer of the commit it repeats, or a refusal."""
        core, topic = self.core, self.topic
        digest, session = payload_hash(commit), commit.session
        answer = core.replayed(commit, digest)
        if answer is not None:
            return answer
        core.check(commit, topic.head_seq)
        if rule is not None:
            rule(topic.name, commit)
        now_ms = topic.time_of(now_ms)
        data = encode(_Logged(session, commit.local_seq, commit.writes, commit.event_id))
        if len(data) > self._record_bytes_max:
            raise RecordTooLarge(
                f"the commit has {len(data)} bytes as a record: at most {self._record_bytes_max} "
                "are allowed"
            )
        topic.admit(1, len(data), now_ms)
        seq = topic.next_seq
        landing = core.land(commit, seq, now_ms, digest)
        batch = Batch(_RECORD % (data, encode(session)), [len(data)])
        entry = SpaceCommitted(topic.name, seq, now_ms, batch, digest)
        self._decided = (entry, landing)
        return entry

    def stage(self, entry: SpaceCommitted) -> None:
        """Count on a commit that was submitted to the log in later decisions."""
        if self._decided is not None and self._decided[0] is entry:
            landing = self._decided[1]
        else:  # it was decided on the space that this change creates
            landing = self.core.land(_commit(entry), entry.seq, entry.now_ms, entry.digest)
        self._decided = None
        appended = self.topic.stage_append(entry.batch, entry.now_ms)
        self.core.stage(landing)
        self._staged.append((appended, landing))

    def apply(self, entry: SpaceCommitted) -> CommitAnswer:
        """Apply the next durable commit, the oldest staged one, and show it to readers.

        In replay nothing is staged, and limits lowered since then do not apply.
        """
        if not self._staged:
            self.topic.apply_append(Appended(entry.topic, entry.seq, entry.now_ms, entry.batch))
            earliest_seq = self.topic.earliest_seq
            return self.core.replay(
                _commit(entry), CommitAnswer(entry.seq, entry.now_ms, entry.digest), earliest_seq
            )
        appended, landing = self._staged.popleft()
        self.topic.apply_append(appended)
        self.core.apply(landing, self.topic.earliest_seq)
        return landing.answer

    def abandon(self) -> None:
        """Forget the staged commits: none became durable. The owner tells the topic."""
        self._staged.clear()
        self._decided = None
        self.core.abandon()


def commit_of(record: RawRecord) -> Commit:
    """The commit of a space's record, without its reads."""
    try:
        return _DECODER.decode(record.data)
    except msgspec.DecodeError as error:
        raise Corrupt(f"malformed record of a commit: {error}") from error


def _commit(entry: SpaceCommitted) -> Commit:
    return commit_of(entry.batch.records[0])


_DECODER: Final = msgspec.json.Decoder(Commit)


class KeptEntity(NamedTuple):
    """An entity, possibly deleted, and the seqs of its writes."""

    name: str
    entity: Entity
    history: bytes


class KeptSpace(Struct, frozen=True, array_like=True, tag="S"):
    """A part of a space; the lists of several parts are concatenated."""

    entities: list[KeptEntity] = []
    receipts: list[tuple[str, int]] = []
    floors: list[tuple[str, int]] = []
    answers: list[KeptAnswer] = []


class SpaceState(NamedTuple):
    """A space as plain values: equal states behave identically."""

    entities: tuple[KeptEntity, ...]
    receipts: tuple[tuple[str, int], ...]
    floors: tuple[tuple[str, int], ...]
    answers: tuple[KeptAnswer, ...]


def state_of(space: Space, earliest_seq: int) -> SpaceState:
    """Everything that commits have made of a space; nothing may be staged."""
    return SpaceState(
        tuple(_entities(space, earliest_seq)),
        tuple(space.receipts.items()),
        tuple(sorted(space.sessions.floors())),
        tuple(space.sessions.kept()),
    )


def parts_of(state: SpaceState) -> Iterator[KeptSpace]:
    """A space, part by part."""
    yield KeptSpace()
    for entities in _sized(state.entities):
        yield KeptSpace(entities=entities)
    for receipts in _parts(state.receipts):
        yield KeptSpace(receipts=receipts)
    for floors in _parts(state.floors):
        yield KeptSpace(floors=floors)
    for answers in _parts(state.answers):
        yield KeptSpace(answers=answers)


def restore_part(space: Space, part: KeptSpace) -> None:
    """Add a part to a space."""
    space.restore(
        ((each.name, each.entity, array("q", each.history)) for each in part.entities),
        part.receipts,
    )
    space.sessions.restore(part.floors, part.answers)


def restored(space: Space, state: SpaceState) -> None:
    """Load all parts into a space."""
    for part in parts_of(state):
        restore_part(space, part)


def _entities(space: Space, earliest_seq: int) -> Iterator[KeptEntity]:
    for name in space.ids("", ""):
        history = array("q", space.histories[name])
        trim(history, earliest_seq)
        yield KeptEntity(name, space.entities[name], history.tobytes())


def _sized(entities: Iterable[KeptEntity]) -> Iterator[list[KeptEntity]]:
    here: list[KeptEntity] = []
    size_bytes = 0
    for each in entities:
        here.append(each)
        size_bytes += len(each.entity.document or b"") + len(each.history)
        if size_bytes >= _PART_BYTES or len(here) >= _PART_ITEMS:
            yield here
            here, size_bytes = [], 0
    if here:
        yield here


def _parts(items: tuple[_T, ...]) -> Iterator[list[_T]]:
    for start in range(0, len(items), _PART_ITEMS):
        yield [*items[start : start + _PART_ITEMS]]
