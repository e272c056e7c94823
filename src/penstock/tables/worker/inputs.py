"""The inputs of a unit: one lake snapshot, one head per topic, and results of earlier members.

Everything a unit reads is fixed before its first member is refreshed, so that all members read the
same version of a relation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.kernel.errors import PenstockError, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import SchemaInfo, Snapshot, TableInfo, TableVersion
from penstock.lake.reader import Reader
from penstock.lake.transaction import Transaction
from penstock.protocol.errors import SourceNotFound
from penstock.tables import rows
from penstock.tables.core.frontier import Frontier, LakePosition, Position, TopicPosition
from penstock.tables.core.topics import TopicSource
from penstock.tables.engine import (
    Input,
    Made,
    SourceRecreated,
    TopicHead,
    TopicPositions,
    TopicRead,
)
from penstock.tables.names import topic_of
from penstock.tables.positions import Positions
from penstock.tables.store import Known, TableStore, read_sources_of
from penstock.tables.worker.claim import ClaimedJob
from penstock.tables.worker.outcomes import NotMadeYet, SourceMissing
from penstock.tables.worker.pending import pending_changes, pending_version

PENDING: Final = LakePosition(-1)
"""Placeholder in a frontier for the snapshot that the commit creates."""


@dataclass(slots=True)
class UnitRun:
    """One unit being refreshed: its inputs and its results so far."""

    snapshot: Snapshot
    transaction: Transaction
    known: Mapping[str, Known]
    streams: frozenset[str]
    positions: dict[str, Position]
    sources: Mapping[str, TopicSource]
    heads: Mapping[str, TopicHead]
    made: dict[str, Made] = field(default_factory=dict)
    before: dict[str, TableVersion | None] = field(default_factory=dict)
    frontiers: dict[str, Frontier] = field(default_factory=dict)
    schemas: dict[str, SchemaInfo] = field(default_factory=dict)

    def position_after(self, name: str) -> Position:
        """A member's next position: the commit's snapshot if it changed, otherwise unchanged."""
        known = self.known.get(name)
        if not self.made[name].changed and known is not None and known.position is not None:
            return known.position
        return PENDING


class Inputs:
    """Resolves the inputs of units in one process. For one thread."""

    def __init__(
        self, store: TableStore, topics: TopicPositions | None, api_key: str | None
    ) -> None:
        self._store = store
        self._lake: Catalog = store.lake
        self._topics = topics
        self._api_key = api_key
        self._positions = Positions()

    def close(self) -> None:
        """Close connections to topic servers."""
        if self._topics is not None:
            self._topics.close()

    def begin(self, claimed: ClaimedJob) -> UnitRun:
        """Fix what a unit reads, and begin the transaction that will commit it."""
        names = {source for table in claimed.tables for source in table.sources}
        lake_names = {name for name in names if topic_of(name) is None}
        with self._lake.look() as reader:
            snapshot = reader.latest()
            self._positions.advance(reader)
            positions: dict[str, Position] = dict(self._positions.of_all(reader, lake_names))
            known = self._store.frontiers(reader, claimed.job.members)
            streams = _streams(reader, lake_names - positions.keys())
            sources = read_sources_of(reader, names - lake_names)
        heads = self._heads(sources)
        positions.update({name: head.position for name, head in heads.items()})
        transaction = self._lake.begin(at=snapshot)
        transaction.token = claimed.token
        transaction.author = "penstock"
        transaction.message = f"refresh {claimed.job.unit_key} (job {claimed.job.job_id})"
        return UnitRun(snapshot, transaction, known, streams, positions, sources, heads)

    def of(self, run: UnitRun, source: str, before: Frontier | None) -> Input:
        """One relation as a member reads it; `before` is what its contents reflect."""
        since = None if before is None else before.get(source)
        if source in run.made:
            return self._just_made(run, source, since)
        topic = topic_of(source)
        if topic is not None:
            return self._topic(run, source, topic, since)
        position = run.positions.get(source)
        if position is None:
            raise _missing(run, source)
        version = self._lake.table_at(source, run.snapshot)
        changes = None
        if isinstance(since, LakePosition):
            changes = self._changes(version.table, since.snapshot, run.snapshot.id)
        return Input(source, position, since, version, False, changes)

    def _just_made(self, run: UnitRun, source: str, since: Position | None) -> Input:
        made = run.made[source]
        version = pending_version(run.before[source], made, run.snapshot)
        after = since.snapshot if isinstance(since, LakePosition) else None
        changes = None
        if after is not None:
            changes = _pending(self._lake, run, made, after)
        return Input(source, run.position_after(source), since, version, made.changed, changes)

    def _topic(self, run: UnitRun, source: str, topic: str, since: Position | None) -> Input:
        declared, head = run.sources.get(source), run.heads.get(source)
        if declared is None:
            raise SourceNotFound(topic)
        if head is None:
            raise Rejected(f"expected to be told where {source!r} stands, found nothing")
        read = TopicRead(
            declared.url, topic, declared.schema, head.position.seq, head.position.epoch,
            declared.key, self._api_key, head.earliest_seq,
        )  # fmt: skip
        return Input(source, head.position, since, topic=read)

    def _heads(self, sources: Mapping[str, TopicSource]) -> Mapping[str, TopicHead]:
        if not sources:
            return {}
        if self._topics is None:
            raise Rejected(
                f"expected to know where topics stand in this warehouse, found no way to ask: "
                f"{', '.join(sorted(sources))}"
            )
        return self._topics.heads(list(sources.values()))

    def _changes(self, table: TableInfo, after: int, until: int) -> Callable[[], Any]:
        def read() -> Any:
            with self._lake.look() as reader:
                created = reader.created_in(table.id)
            if created is not None and created > after:
                raise SourceRecreated(
                    f"expected the {table.qualified} of snapshot {after}, found one made later"
                )
            return self._lake.changes(table, after, until)

        return read


def _streams(reader: Reader, absent: Iterable[str]) -> frozenset[str]:
    """Which of the relations missing from the lake are stream tables that were never filled."""
    names = sorted(absent)
    if not names:
        return frozenset()
    select = rows.by_name(rows.SELECT_TABLE_NAMES, "name", len(names))
    return frozenset(name for (name,) in reader.rows(select, *names))


def recreated(inputs: Mapping[str, Input]) -> tuple[str, ...]:
    """Topics deleted and recreated since the current contents were made."""
    return tuple(
        name
        for name, found in inputs.items()
        if isinstance(found.since, TopicPosition)
        and isinstance(found.position, TopicPosition)
        and found.since.epoch != found.position.epoch
    )


def evicted(run: UnitRun, inputs: Mapping[str, Input]) -> str:
    """A note about topics that no longer retain all records up to their position."""
    said = [
        f"{name} holds records from seq {run.heads[name].earliest_seq} on"
        for name, found in inputs.items()
        if found.topic is not None and run.heads[name].earliest_seq > 1
    ]
    return "; ".join(said)


def _pending(lake: Catalog, run: UnitRun, made: Made, after: int) -> Callable[[], Any]:
    return lambda: pending_changes(lake, after, made, run.snapshot)


def _missing(run: UnitRun, source: str) -> PenstockError:
    if source in run.streams:
        return NotMadeYet(f"expected contents of {source!r}, found that it was never refreshed")
    return SourceMissing(f"expected a table or topic {source!r} in the lake, found none")
