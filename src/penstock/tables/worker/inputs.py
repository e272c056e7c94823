"""The inputs of a unit: one lake snapshot, one head per topic, and results of earlier members.

Everything a unit reads is fixed before its first member is refreshed, so that all members read the
same version of a relation. An earlier member's result is a version without a snapshot yet. The
commit will create a snapshot after the one that inputs were read at; here it is numbered as the
next one. Its final number does not matter to readers of these values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from penstock.kernel.errors import Gone, PenstockError, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.changes import parse
from penstock.lake.feed import FeedFile, feed_between
from penstock.lake.model import (
    DataFile,
    InlinedRows,
    NameMap,
    NewFile,
    SchemaInfo,
    Snapshot,
    TableInfo,
    TableVersion,
)
from penstock.lake.reader import Reader
from penstock.lake.scan import ChangeSpan
from penstock.lake.transaction import LakeTransaction
from penstock.protocol.errors import SourceNotFound
from penstock.tables import rows
from penstock.tables.core.frontier import Frontier, LakePosition, Position, TopicPosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from penstock.tables.core.topics import TopicSource
from penstock.tables.delta.cost import learned
from penstock.tables.engine import (
    Input,
    Made,
    SourceRecreated,
    TopicHead,
    TopicPositions,
    TopicRead,
)
from penstock.tables.positions import Positions
from penstock.tables.query.names import topic_of
from penstock.tables.store import Known, TableStore, read_sources_of
from penstock.tables.worker.claim import ClaimedUnit
from penstock.tables.worker.outcomes import GateClosed, NotMadeYet, SourceMissing


def pending_version(current: TableVersion | None, made: Made, base: Snapshot) -> TableVersion:
    """A table as it will be after its result is committed."""
    snapshot = replace(base, id=base.id + 1)
    if current is not None and not made.changed:
        return replace(current, snapshot=snapshot)
    files, mappings = _new_files(made.files, snapshot.id)
    if current is None or made.replace or current.table.id != made.table.id:
        empty = InlinedRows(made.table.arrow_schema.empty_table())
        return TableVersion(made.table, snapshot, tuple(files), empty, mappings)
    kept = [file for file in _ended(current.files, made, snapshot.id) if file.end is None]
    return TableVersion(
        made.table,
        snapshot,
        (*kept, *files),
        _left(_ended_inlined(current.inlined, made, snapshot.id)),
        {**current.mappings, **mappings},
    )


def pending_changes(lake: Catalog, after: int, made: Made, base: Snapshot) -> ChangeSpan:
    """What changed in a table since a snapshot, including its uncommitted result."""
    if made.table.id < 0:
        raise SourceRecreated(
            f"{made.table.name} was recreated: its changes since then are unknown"
        )
    until = base.id + 1
    with lake.look() as reader:
        texts = reader.changes_after(after, base.id)
        if len(texts) < base.id - after:
            raise Gone(f"some snapshots from {after + 1} to {base.id} have expired")
        kinds = ("rewrite_delete", "compacted_table")
        rewrites = frozenset(n for n, text in texts if made.table.id in parse(text).ids(*kinds))
        files = reader.files(made.table, begun_by=base.id, not_ended_by=after)
        inlined = reader.inlined(made.table, begun_by=base.id, not_ended_by=after)
        known = reader.mappings(files)
    new, mappings = _new_files(made.files, until)
    version = TableVersion(
        made.table,
        replace(base, id=until),
        (*_ended(files, made, until), *new),
        _ended_inlined(inlined, made, until),
        {**known, **mappings},
    )
    return ChangeSpan(version, after, rewrites)


def _new_files(
    files: Iterable[NewFile], snapshot: int
) -> tuple[list[DataFile], dict[int, tuple[NameMap, ...]]]:
    """New files, under negative ids."""
    found, mappings = [], {}
    for number, file in enumerate(files):
        if not file.record_count:
            continue
        number_below = -1 - number
        if file.names is not None:
            mappings[number_below] = file.names
        found.append(
            DataFile(
                id=number_below,
                path=file.path,
                record_count=file.record_count,
                size_bytes=file.size_bytes,
                footer_bytes=file.footer_bytes,
                begin=snapshot,
                row_id_start=None if file.has_row_ids else 0,
                mapping_id=number_below if file.names is not None else None,
            )
        )
    return found, mappings


def _ended(files: Iterable[DataFile], made: Made, snapshot: int) -> list[DataFile]:
    """Files with the new deletes applied."""
    if not made.changed:
        return list(files)
    gone = {entry.file.id: entry.positions for entry in made.deletes if entry.count}
    found = []
    for file in files:
        if file.end is not None or (not made.replace and file.id not in gone):
            found.append(file)
        elif made.replace or (positions := gone[file.id]) is None:
            found.append(replace(file, end=snapshot))
        else:
            more = tuple((int(position), snapshot) for position in positions)
            found.append(replace(file, inlined_deletes=(*file.inlined_deletes, *more)))
    return found


def _ended_inlined(inlined: InlinedRows, made: Made, snapshot: int) -> InlinedRows:
    if not made.changed:
        return inlined
    gone = set(made.inlined_deletes)
    ends = tuple(
        snapshot if end is None and (made.replace or row_id in gone) else end
        for row_id, end in zip(inlined.row_ids, inlined.ends, strict=True)
    )
    return replace(inlined, ends=ends)


def _left(inlined: InlinedRows) -> InlinedRows:
    """The rows not yet deleted; a version contains no others."""
    at = [place for place, end in enumerate(inlined.ends) if end is None]
    return InlinedRows(
        inlined.rows.take(pa.array(at, pa.int64())),
        tuple(inlined.row_ids[place] for place in at),
        tuple(inlined.begins[place] for place in at),
        (None,) * len(at),
    )


PENDING: Final = LakePosition(-1)
"""Placeholder in a frontier for the snapshot that the commit creates."""


@dataclass(slots=True)
class UnitRun:
    """One unit being refreshed: its inputs and its results so far."""

    snapshot: Snapshot
    transaction: LakeTransaction
    known: Mapping[str, Known]
    streams: frozenset[str]
    positions: dict[str, Position]
    sources: Mapping[str, TopicSource]
    heads: Mapping[str, TopicHead]
    made: dict[str, Made] = field(default_factory=dict)
    before: dict[str, TableVersion | None] = field(default_factory=dict)
    frontiers: dict[str, Frontier] = field(default_factory=dict)
    schemas: dict[str, SchemaInfo] = field(default_factory=dict)
    rebuild: Mapping[str, ReasonCode] = field(default_factory=dict)
    """Members that have to be rebuilt, and why."""
    factors: Mapping[str, Mapping[Mode, float]] = field(default_factory=dict)
    """What refreshes of members cost, against what they were estimated to cost."""
    stateful: frozenset[str] = frozenset()
    """Members whose stored state belongs to their contents."""
    retained: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The first record of each topic that the contents of members reflect, where it is known."""

    def member_position(self, name: str) -> Position | None:
        """A member's position before this refresh, as its readers know it."""
        known = self.known.get(name)
        return None if known is None else known.position

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

    def begin(self, claimed: ClaimedUnit) -> UnitRun:
        """Fix what a unit reads, and begin the transaction that will commit it."""
        names = {source for table in claimed.tables for source in table.sources}
        lake_names = {name for name in names if topic_of(name) is None}
        with self._lake.look() as reader:
            snapshot = reader.latest()
            _check_gates(reader, names.union(claimed.job.members))
            self._positions.advance(reader)
            positions: dict[str, Position] = dict(self._positions.of_all(reader, lake_names))
            known = self._store.frontiers(reader, claimed.job.members)
            streams = _streams(reader, lake_names - positions.keys())
            sources = read_sources_of(reader, names - lake_names)
            rebuild = self._rebuild(reader, claimed.job.members)
            retained = {name: _retained(reader, name) for name in claimed.job.members}
            factors = {name: _learned(reader, name) for name in claimed.job.members}
            stateful = frozenset(name for name in known if _has_state(reader, name, known[name]))
        rebuild = {**self._overwritten(known, snapshot), **rebuild}
        heads = self._heads(sources)
        positions.update({name: head.position for name, head in heads.items()})
        transaction = self._lake.begin(at=snapshot)
        transaction.token = claimed.token
        transaction.author = "penstock"
        transaction.message = f"refresh {claimed.job.unit_key} (job {claimed.job.job_id})"
        return UnitRun(
            snapshot, transaction, known, streams, positions, sources, heads,
            rebuild=rebuild, factors=factors, stateful=stateful, retained=retained,
        )  # fmt: skip

    def _rebuild(self, reader: Reader, members: Iterable[str]) -> dict[str, ReasonCode]:
        """Members that a refresh found to disagree with their changes, and those it lost."""
        found = {}
        for name in members:
            stored = reader.rows(rows.SELECT_VALUE, f"{rows.REBUILD}{name}")
            if stored:
                found[name] = ReasonCode(stored[0][0])
        return found

    def _overwritten(self, known: Mapping[str, Known], snapshot: Snapshot) -> dict[str, ReasonCode]:
        """Members whose rows another writer changed since their last refresh."""
        found = {}
        for name, last in known.items():
            if last.position is not None and self._was_written(name, last.position, snapshot):
                found[name] = ReasonCode.STATE_DISAGREES
        return found

    def _was_written(self, name: str, since: LakePosition, snapshot: Snapshot) -> bool:
        try:
            table = self._lake.table(name, snapshot)
        except Rejected:
            return False
        if not self._positions.changed_after(table.id, since.snapshot):
            return False
        # DuckDB lists rows as deleted that it only moves from the catalog to a delete file.
        try:
            return not self._lake.changes(table, since.snapshot, snapshot.id).is_empty
        except (Gone, Rejected):
            return True

    def of(self, run: UnitRun, member: str, source: str, before: Frontier | None) -> Input:
        """One relation as a member reads it; `before` is what its contents reflect."""
        since = None if before is None else before.get(source)
        if source in run.made:
            return self._just_made(run, source, since)
        topic = topic_of(source)
        if topic is not None:
            found = self._topic(run, source, topic, since)
            return replace(found, from_seq=run.retained.get(member, {}).get(source, 1))
        position = run.positions.get(source)
        if position is None:
            raise _missing(run, source)
        version = self._lake.table_at(source, run.snapshot)
        if not isinstance(since, LakePosition):
            return Input(source, position, since, version)
        changes = self._changes(version.table, since.snapshot, run.snapshot.id)
        feed = self._feed(version.table, since, position)
        return Input(source, position, since, version, False, changes, feed=feed)

    def _just_made(self, run: UnitRun, source: str, since: Position | None) -> Input:
        made = run.made[source]
        version = pending_version(run.before[source], made, run.snapshot)
        position = run.position_after(source)
        if not isinstance(since, LakePosition):
            return Input(source, position, since, version, made.changed)
        changes = _pending(self._lake, run, made, since.snapshot)
        feed = self._feed(made.table, since, run.member_position(source))
        if feed is not None and made.changed:
            feed = None if made.feed is None else (*feed, made.feed)
        return Input(source, position, since, version, made.changed, changes, feed=feed)

    def _feed(
        self, table: TableInfo, since: LakePosition, position: Position | None
    ) -> tuple[FeedFile, ...] | None:
        """The change feed of a table from one position to another, if there is one."""
        if table.id < 0 or not isinstance(position, LakePosition):
            return None
        with self._lake.look() as reader:
            return feed_between(reader, table.id, since.snapshot, position.snapshot)

    def _topic(self, run: UnitRun, source: str, topic: str, since: Position | None) -> Input:
        declared, head = run.sources.get(source), run.heads.get(source)
        if declared is None:
            raise SourceNotFound(topic)
        if head is None:
            raise Rejected(f"the topic server did not say where {source!r} stands")
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
                "this warehouse was opened without a reader of topics, which it needs for "
                f"{', '.join(sorted(sources))}: pass `topics`"
            )
        return self._topics.heads(list(sources.values()))

    def _changes(self, table: TableInfo, after: int, until: int) -> Callable[[], ChangeSpan]:
        def look() -> ChangeSpan:
            with self._lake.look() as reader:
                created = reader.created_in(table.id)
            if created is not None and created > after:
                raise SourceRecreated(f"{table.qualified} was recreated since snapshot {after}")
            return self._lake.change_span(table, after, until)

        return look


def _has_state(reader: Reader, name: str, known: Known) -> bool:
    found = reader.rows(rows.SELECT_VALUE, f"{rows.STATE}{name}")
    return bool(found) and found[0][0] == str(known.job_id)


def _retained(reader: Reader, name: str) -> dict[str, int]:
    found = reader.rows(rows.SELECT_VALUE, f"{rows.RETAINED}{name}")
    return dict(json.loads(found[0][0])) if found else {}


def _check_gates(reader: Reader, relations: Collection[str]) -> None:
    """Refuse to read a gated source.

    The coordinator may not have seen the gate yet. Gates are read with the snapshot: whatever was
    written after one was closed is not in it.
    """
    closed = sorted(name for (name,) in reader.rows(rows.SELECT_GATES) if name in relations)
    if closed:
        raise GateClosed(f"gates of {', '.join(closed)} are closed")


def _learned(reader: Reader, name: str) -> dict[Mode, float]:
    return learned(json.loads(choice) for (choice,) in reader.rows(rows.SELECT_CHOICES, name))


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


def _pending(lake: Catalog, run: UnitRun, made: Made, after: int) -> Callable[[], ChangeSpan]:
    return lambda: pending_changes(lake, after, made, run.snapshot)


def _missing(run: UnitRun, source: str) -> PenstockError:
    if source in run.streams:
        return NotMadeYet(f"{source!r} was never refreshed")
    return SourceMissing(f"there is no table or topic {source!r} in the lake")
