"""What changed in a table, commit by commit: for watchers, and for topics that it is published to.

The change feed says it where there is one; else the lake's own history is read. Where neither leads
on, because snapshots have expired, the table was recreated, or too much changed at once, a reader
begins again from the contents: it is told why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernel.errors import Gone, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.changes import parse
from penstock.lake.feed import FeedFile, FeedLost, read_feed
from penstock.lake.model import TableInfo, resolve
from penstock.lake.reader import Reader
from penstock.lake.row_codes import Weights, net
from penstock.protocol.errors import NoContents, TableNotFound
from penstock.tables import rows
from penstock.tables.positions import CHANGES
from penstock.tables.query.names import relation_name

ROWS_MAX: Final = 1_000_000
"""A commit that changes more rows than this is not told row by row."""


class Lost(StrEnum):
    """Why a reader of changes has to begin again from the contents."""

    RECREATED = "recreated"
    EXPIRED = "history_expired"
    TOO_LARGE = "too_large"
    AHEAD = "ahead"


class ResetNeeded(NamedTuple):
    """The changes after a snapshot cannot be told: for programs, and for people."""

    reason: Lost
    text: str


class Unchanged(NamedTuple):
    """Nothing changed up to a snapshot."""

    snapshot: int


class TableStep(NamedTuple):
    """The next commit that changed a table; `feed` is its change if the feed has it."""

    table: TableInfo
    after: int
    snapshot: int
    feed: FeedFile | None


class TableChange(NamedTuple):
    """The rows that a commit changed, each once, with their weights."""

    table: TableInfo
    after: int
    snapshot: int
    rows: pa.Table
    weights: Weights


def current_table(lake: Catalog, name: str, *, defined: bool) -> tuple[TableInfo, int]:
    """A table and the newest snapshot, or why it cannot be read."""
    plain = relation_name(name.split("."))
    with lake.look() as reader:
        latest = reader.latest()
        try:
            return reader.table(plain, latest), latest.id
        except Rejected:
            if defined:
                raise NoContents(plain, latest.id) from None
            raise TableNotFound(plain) from None


def next_step(
    lake: Catalog, name: str, uuid: str, after: int
) -> TableStep | ResetNeeded | Unchanged:
    """What changed first in a table after a snapshot at which all is known."""
    with lake.look() as reader:
        latest = reader.latest()
        try:
            table = reader.table(name, latest)
        except Rejected:
            return ResetNeeded(Lost.RECREATED, f"{name} is not in the lake any more")
        if table.uuid != uuid:
            return ResetNeeded(Lost.RECREATED, f"{name} was recreated")
        if after > latest.id:
            text = f"the lake ends with snapshot {latest.id}, before {after}: was it restored?"
            return ResetNeeded(Lost.AHEAD, text)
        fed = _fed(reader, table, after)
        if fed is not None:
            return fed
        last = after
        for number, text in reader.changes_after(after):
            if number != last + 1:
                break
            last = number
            if table.id in parse(text).ids(*CHANGES):
                return TableStep(table, after, number, None)
        if last < latest.id:
            text = f"snapshot {last + 1} of the lake has expired, and no feed tells what it changed"
            return ResetNeeded(Lost.EXPIRED, text)
        return Unchanged(latest.id)


def read_step(
    lake: Catalog, step: TableStep, rows_max: int = ROWS_MAX
) -> TableChange | ResetNeeded:
    """The rows of a step."""
    if step.feed is not None:
        if step.feed.rows > rows_max:
            return _too_large(step, step.feed.rows, rows_max)
        try:
            found, weights = read_feed(lake.storage, step.table, step.feed)
        except FeedLost:
            return read_step(lake, step._replace(feed=None), rows_max)
        signed: Weights = weights.to_numpy().astype(np.int64)
        return TableChange(step.table, step.after, step.snapshot, found, signed)
    try:
        changes = lake.changes(step.table, step.after, step.snapshot)
    except Gone as error:
        return ResetNeeded(Lost.EXPIRED, error.message)
    if changes.count > rows_max:
        return _too_large(step, changes.count, rows_max)
    came, went = changes.read_inserted(lake.storage), changes.read_deleted(lake.storage)
    weights = np.repeat(np.array([1, -1], np.int64), [came.num_rows, went.num_rows])
    made, sums = net(pa.concat_tables([came, went]), weights)
    return TableChange(step.table, step.after, step.snapshot, made, sums)


def frontier_at(lake: Catalog, name: str, snapshot: int) -> Mapping[str, Any] | None:
    """The positions of its inputs that a table stands for at a snapshot."""
    found = lake.query(rows.FRONTIER_AT, (name, snapshot))
    made: Mapping[str, Any] | None = json.loads(found[0][0]) if found else None
    return made


def ordered(change: TableChange, key: tuple[str, ...] | None) -> pa.Array:
    """The order in which the rows of a change are told: each as often as its weight says.

    Rows of one key follow each other, the one that goes before the one that comes; without a key
    all rows that go come first.
    """
    table = pa.table({"weight": np.sign(change.weights)})
    names = []
    for place, name in enumerate(key or ()):
        if pa.types.is_nested(change.rows.schema.field(name).type):
            continue  # cannot be sorted
        names.append(f"k{place}")
        table = table.append_column(names[-1], change.rows.column(name))
    order = [*((name, "ascending") for name in names), ("weight", "ascending")]
    places = pc.sort_indices(table, sort_keys=order)
    counts = np.abs(change.weights)[places.to_numpy()]
    return pa.array(np.repeat(places.to_numpy(), counts))


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as values that JSON can hold."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns"
        else field
        for field in table.schema
    ]
    found: list[dict[str, Any]] = table.cast(pa.schema(fields), safe=False).to_pylist()
    return found


def _fed(reader: Reader, table: TableInfo, after: int) -> TableStep | None:
    """The entry of the feed that begins at a snapshot, or before it with the same rows.

    An entry is listed only if nothing else changed the table between its ends.
    """
    found = reader.rows(rows.NEXT_FEED, table.id, after, after)
    if not found:
        return None
    until, path, is_relative, count, size = found[0]
    file = FeedFile(resolve(reader.data_path, path, bool(is_relative)), count, size)
    return TableStep(table, after, until, file)


def _too_large(step: TableStep, count: int, rows_max: int) -> ResetNeeded:
    text = (
        f"snapshot {step.snapshot} changed {count:,} rows of {step.table.name}, "
        f"more than the {rows_max:,} that are told one by one"
    )
    return ResetNeeded(Lost.TOO_LARGE, text)
