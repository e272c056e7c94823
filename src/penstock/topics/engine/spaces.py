"""Space commands: commits in, entities out, current or as of an earlier seq."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from msgspec import Struct, json

from penstock.commits.entity import encode
from penstock.commits.model import ABSENT, check_entity_id
from penstock.commits.sessions import CommitAnswer
from penstock.commits.space import Past, seqs_upto
from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError
from penstock.protocol.commits import Commit
from penstock.protocol.errors import EntityNotFound, InvalidRequest, PastGone
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.entries import SpaceCommitted
from penstock.topics.core.partition import DecidedChange
from penstock.topics.core.record import RawRecord
from penstock.topics.core.registry import Registry
from penstock.topics.core.space import Rule, TopicSpace, commit_of
from penstock.topics.engine.admission import Admission
from penstock.topics.engine.writers import PartitionWriter, Writers
from penstock.topics.persist.cold import ColdCache, Hold

_BREATH: Final = 256
"""After this many entities, old records or names, other tasks get a turn."""


class Accepted(Struct, frozen=True, gc=False):
    """The answer to an accepted commit. `replayed` if it was accepted before."""

    seq: int
    ts_ms: int
    replayed: bool
    epoch: int


class EntityView(NamedTuple):
    """An entity as it was at `head_seq`, last written at `seq`."""

    entity: str
    seq: int
    document: bytes
    head_seq: int


class EntityList(NamedTuple):
    """Entities in the order of their ids, all as they were at `head_seq`."""

    entities: list[EntityView]
    head_seq: int
    more: bool


class SpaceView(NamedTuple):
    """A space: its living entities, its last seq, and the time of that."""

    space: str
    entities: int
    head_seq: int
    last_commit_ms: int | None


class SpaceList(NamedTuple):
    """Spaces in the order of their names; `total` is how many there are, before the page too."""

    spaces: list[SpaceView]
    total: int
    more: bool


class PastCommit(NamedTuple):
    """A commit that wrote an entity."""

    seq: int
    ts_ms: int
    commit: Commit


class CommitHistory(NamedTuple):
    """Commits that wrote an entity, oldest first. Not `complete` if older ones were evicted.

    `base` is the document before the newest commits as JSON, `null` if there was none; None if it
    is not known or was not asked for.
    """

    rows: list[PastCommit]
    head_seq: int
    more: bool
    complete: bool
    base: bytes | None = None


class PageRequest(NamedTuple):
    """Which entities to list: after an id, up to a number, as of a seq or as of now."""

    prefix: str = ""
    after: str = ""
    limit: int = 100
    at_seq: int | None = None


OnAccepted = Callable[[Accepted | Exception], None]


class SpaceCommands:
    """Takes commits and shows entities. `rule` may refuse any commit; it is for tests."""

    def __init__(
        self,
        registry: Registry,
        writers: Writers,
        admission: Admission,
        cold: ColdCache,
        *,
        clock: Clock,
        touch: Callable[[str], None],
    ) -> None:
        self._registry = registry
        self._writers = writers
        self._admission = admission
        self._cold = cold
        self._clock = clock
        self._touch = touch
        self.rule: Rule | None = None

    def commit(self, name: str, commit: Commit, done: OnAccepted) -> None:
        """Commit, all or nothing. `done` is called exactly once, possibly before this returns.

        A refusal that depends on staged changes is answered once they are in the log.
        """
        try:
            writer = self._writers.of(name)
        except PenstockError as error:
            done(error)
            return
        if writer.is_held:
            self._wait(writer, name, commit, done)
            return
        partition = writer.partition
        space = partition.spaces.get(name)
        decided: DecidedChange | SpaceCommitted | CommitAnswer
        try:
            if self._admission.is_pressed:
                self._admission.check(writer)
            if space is None or partition.limits.total_bytes_max:
                decided = partition.decide_commit(name, commit, self._clock.now_ms(), self.rule)
            else:
                decided = space.decide(commit, self._clock.now_ms(), self.rule)
        except PenstockError as error:
            self._admission.count(error)
            self._tell(writer, name, error, done)
            return
        if isinstance(decided, SpaceCommitted):
            assert space is not None, "a space that is made comes with the entry that makes it"
            writer.submit_commit(
                space, decided, partial(self._on_committed, space.topic.told_epoch, done)
            )
        elif isinstance(decided, DecidedChange):
            writer.submit(decided, partial(self._made, name, done), sync=True)
        else:
            self._tell(writer, name, decided, done)

    def _wait(self, writer: PartitionWriter, name: str, commit: Commit, done: OnAccepted) -> None:
        """Commit after the exclusive command, if there is room to wait for that."""
        try:
            self._admission.check(writer)
        except PenstockError as error:
            self._admission.count(error)
            done(error)
        else:
            writer.later(partial(self.commit, name, commit, done), len(json.encode(commit)))

    async def spaces(self, request: PageRequest, shown: Callable[[str], bool]) -> SpaceList:
        """A page of the spaces that may be shown. Costs all spaces, but no other topic."""
        found: dict[str, TopicSpace] = {}
        for writer in self._writers:
            held = list(writer.partition.spaces.items())
            for start in range(0, len(held), _BREATH):
                part = held[start : start + _BREATH]
                found |= {
                    name: space
                    for name, space in part
                    if name.startswith(request.prefix) and shown(name)
                }
                if len(part) == _BREATH:
                    await asyncio.sleep(0)
        topics = self._registry.topics  # without those that went meanwhile, or with a partition
        names = [name for name, space in found.items() if topics.get(name) is space.topic]
        page = nsmallest(request.limit + 1, (name for name in names if name > request.after))
        rows = [_row(found[name]) for name in page[: request.limit]]
        return SpaceList(rows, len(names), len(page) > request.limit)

    async def entity(self, name: str, entity: str, at_seq: int | None = None) -> EntityView:
        """One entity, current or as of a seq."""
        space = self._space(name, at_seq)
        head_seq = space.topic.head_seq if at_seq is None else at_seq
        found = await self._view(space, check_entity_id(entity), head_seq)
        if found is None:
            raise EntityNotFound(name, entity, head_seq)
        return found

    async def entities(self, name: str, request: PageRequest) -> EntityList:
        """A page of entities, all as of one seq."""
        space = self._space(name, request.at_seq)
        core = space.core
        head_seq = space.topic.head_seq if request.at_seq is None else request.at_seq
        views: list[EntityView] = []
        room = self._registry.limits.read_bytes_max
        for count, entity in enumerate(core.ids(request.prefix, request.after), 1):
            if not count % _BREATH:
                await asyncio.sleep(0)
            if len(views) >= request.limit or room <= 0:
                return EntityList(views, head_seq, True)
            view = await self._view(space, entity, head_seq)
            if view is not None:
                views.append(view)
                room -= len(view.document)
        return EntityList(views, head_seq, False)

    async def history(
        self, name: str, entity: str, after_seq: int = 0, limit: int = 100, *, newest: bool = False
    ) -> CommitHistory:
        """The commits that wrote an entity, as far as their records still exist.

        The first ones after a seq or, with `newest`, the last ones and the document before them.
        """
        space = self._space(name, None)
        topic, history = space.topic, space.core.histories.get(check_entity_id(entity))
        if history is None:
            raise EntityNotFound(name, entity, topic.head_seq)
        earliest_seq = topic.earliest_seq
        seqs = [seq for seq in history if seq >= earliest_seq and seq > after_seq]
        rows: list[PastCommit] = []
        complete, more = history[0] >= earliest_seq, len(seqs) > limit and not newest
        seqs = seqs[-limit:] if newest else seqs[:limit]
        base = await self._base(space, entity, seqs[0]) if newest and seqs else None
        with self._cold.hold() as hold:
            for seq in seqs:
                slot = await self._slot(space, seq, hold)
                if slot is not None:
                    ts_ms, record = slot
                    commit = commit_of(record)
                    rows.append(PastCommit(seq, ts_ms, commit))
        return CommitHistory(rows, topic.head_seq, more, complete, base)

    async def _base(self, space: TopicSpace, entity: str, seq: int) -> bytes | None:
        """An entity before a commit, `null` if it did not exist; None if that is gone."""
        try:
            view = await self._view(space, entity, seq - 1)
        except PastGone:
            return None
        return b"null" if view is None else view.document

    # Helpers

    def _space(self, name: str, at_seq: int | None) -> TopicSpace:
        space = self._writers.of(name).partition.space(name)
        head_seq = space.topic.head_seq
        if at_seq is not None and at_seq > head_seq:
            raise InvalidRequest(
                f"at={at_seq} is after the space's last commit, {head_seq}", head=head_seq
            )
        self._touch(name)
        return space

    def _tell(
        self,
        writer: PartitionWriter,
        name: str,
        outcome: CommitAnswer | PenstockError,
        done: OnAccepted,
    ) -> None:
        """Answer without a change, once everything the answer may depend on is in the log."""

        def tell(settled: object) -> None:
            if isinstance(settled, Exception):
                done(settled)
            elif isinstance(outcome, CommitAnswer):
                done(self._accepted(name, outcome, replayed=True))
            else:
                done(outcome)

        if writer.is_idle:
            tell(None)
        else:
            writer.after(tell)

    def _on_committed(
        self, epoch: int, done: OnAccepted, outcome: CommitAnswer | Exception
    ) -> None:
        if isinstance(outcome, Exception):
            done(outcome)
        else:
            done(Accepted(outcome.seq, outcome.ts_ms, False, epoch))

    def _made(self, name: str, done: OnAccepted, outcome: list[Any] | Exception) -> None:
        if isinstance(outcome, Exception):
            done(outcome)
        else:
            done(self._accepted(name, outcome[-1], replayed=False))

    def _accepted(self, name: str, answer: CommitAnswer, *, replayed: bool) -> Accepted:
        topic = self._registry.topics.get(name)
        return Accepted(
            answer.seq, answer.ts_ms, replayed, 0 if topic is None else topic.told_epoch
        )

    async def _view(self, space: TopicSpace, entity: str, head_seq: int) -> EntityView | None:
        """An entity as of a seq; None if it did not exist."""
        found = space.core.entities.get(entity)
        if found is None:
            return None
        if found.seq > head_seq:
            return await self._past(space, entity, head_seq)
        if found.document is None:
            return None
        return EntityView(entity, found.seq, found.document, head_seq)

    async def _past(self, space: TopicSpace, entity: str, at_seq: int) -> EntityView | None:
        history = space.core.histories[entity]
        seqs = seqs_upto(history, at_seq)
        if not seqs:
            if history[0] < space.topic.earliest_seq:
                raise _gone(space, at_seq)
            return None
        past = Past(entity)
        with self._cold.hold() as hold:
            for count, seq in enumerate(seqs, 1):
                slot = await self._slot(space, seq, hold)
                if slot is None:
                    raise _gone(space, at_seq)
                past.take(commit_of(slot[1]))
                if past.is_whole:
                    break
                if not count % _BREATH:
                    await asyncio.sleep(0)
        document = past.document()
        if document is ABSENT:
            return None
        return EntityView(entity, seqs[0], encode(document), at_seq)

    async def _slot(self, space: TopicSpace, seq: int, hold: Hold) -> tuple[int, RawRecord] | None:
        """The record of a seq with its time, loaded if it is cold; None if it was evicted."""
        while True:
            try:
                slot = space.topic.slot(seq)
            except NotLoaded as missing:
                await hold.load(missing.block)
                continue
            return None if slot is None else (slot.ts_ms, slot.record)


def _row(space: TopicSpace) -> SpaceView:
    topic = space.topic
    return SpaceView(topic.name, space.core.counts().entities, topic.head_seq, topic.last_write_ms)


def _gone(space: TopicSpace, at_seq: int) -> PastGone:
    earliest_seq = space.topic.earliest_seq
    return PastGone(
        f"the commits up to seq {at_seq} are no longer kept: those of space "
        f"{space.topic.name!r} begin with {earliest_seq}",
        at=at_seq,
        earliest_seq=earliest_seq,
    )
