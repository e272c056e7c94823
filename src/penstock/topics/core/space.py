"""A space: a topic whose records are commits, with the entities that they create.

A commit is one entry of the log and one record of the topic, with its next seq. Nothing else can be
written to the topic. Old records may be evicted by the topic's limits; entities, receipts and
session answers are not evicted with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from penstock.commits.entity import encode
from penstock.commits.model import Commit, Write, payload_hash
from penstock.commits.sessions import Answer
from penstock.commits.space import Landing, Space
from penstock.kernel.errors import Corrupt
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import NotASpace, RecordTooLarge
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, Committed
from penstock.topics.core.record import Record
from penstock.topics.core.topic import Topic

CONFIG: Final = TopicConfig(type="space", durability="fsync")
"""The configuration of a space created by its first commit."""

Rule = Callable[[str, Commit], None]
"""May refuse a commit that passed every check, by raising; receives the space's name."""

_RECORD: Final = b'{"records":[{"data":%b,"node":%b}]}'


class _Logged(Struct, omit_defaults=True, gc=False):
    """The content of a commit's record: enough to apply it again."""

    session: str
    local_seq: int
    writes: tuple[Write, ...]
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
        self._decided: tuple[Committed, Landing] | None = None
        self._staged: deque[tuple[Appended, Landing]] = deque()

    def decide(self, commit: Commit, now_ms: int, rule: Rule | None = None) -> Committed | Answer:
        """Decide a commit: an entry, the answer of the commit it repeats, or a refusal."""
        core, topic = self.core, self.topic
        digest, session = payload_hash(commit), commit.session
        answer = core.replayed(commit, digest)
        if answer is not None:
            return answer
        core.check(commit, topic.head_seq)
        if rule is not None:
            rule(topic.name, commit)
        now_ms = topic.expire(now_ms)
        data = encode(_Logged(session, commit.local_seq, commit.writes, commit.event_id))
        if len(data) > self._record_bytes_max:
            raise RecordTooLarge(
                f"expected a commit of at most {self._record_bytes_max} bytes as a record, "
                f"found {len(data)}"
            )
        topic.admit(1, len(data))
        seq = topic.next_seq
        landing = core.land(commit, seq, now_ms, digest)
        batch = Batch(_RECORD % (data, encode(session)), [len(data)])
        entry = Committed(topic.name, seq, now_ms, batch, digest)
        self._decided = (entry, landing)
        return entry

    def stage(self, entry: Committed) -> None:
        """Count on a commit that was submitted to the log in later decisions."""
        if self._decided is not None and self._decided[0] is entry:
            landing = self._decided[1]
        else:  # it was decided on the space that this change creates
            landing = self.core.land(_commit(entry), entry.seq, entry.now_ms, entry.digest)
        self._decided = None
        appended = self.topic.stage_append(entry.batch, entry.now_ms)
        self.core.stage(landing)
        self._staged.append((appended, landing))

    def apply(self, entry: Committed) -> Answer:
        """Apply the next durable commit, the oldest staged one, and show it to readers.

        In replay nothing is staged, and limits lowered since then do not apply.
        """
        if not self._staged:
            self.topic.apply_append(Appended(entry.topic, entry.seq, entry.now_ms, entry.batch))
            earliest_seq = self.topic.earliest_seq
            return self.core.replay(
                _commit(entry), Answer(entry.seq, entry.now_ms, entry.digest), earliest_seq
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


def commit_of(record: Record) -> Commit:
    """The commit of a space's record, without its reads."""
    try:
        return _DECODER.decode(record.data)
    except msgspec.DecodeError as error:
        raise Corrupt(f"expected the record of a commit, found: {error}") from error


def _commit(entry: Committed) -> Commit:
    return commit_of(entry.batch.records[0])


_DECODER: Final = msgspec.json.Decoder(Commit)
