"""Whether the contents of a table are its query at its frontier, compared by the engine.

The query's own text runs, not what was compiled from it, over the inputs as they were when the
contents were made. Where the query leaves an order open, the compiled text runs, which breaks ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import TableVersion
from penstock.protocol.errors import NoContents, NotDifferentiable
from penstock.tables.core.frontier import Frontier, LakePosition, TopicPosition
from penstock.tables.core.model import TableDefinition
from penstock.tables.core.topics import TopicSource
from penstock.tables.delta.compiler import compile_query
from penstock.tables.delta.writing import quoted
from penstock.tables.engine import Input, Refresher, TopicRead
from penstock.tables.query.names import topic_of
from penstock.tables.store import TableStore

DIFFERENCES_MAX: Final = 100_000
"""No more rows that differ are looked at."""
EXAMPLES_MAX: Final = 5
CLOSE: Final = 1e-6
"""How far apart floats may be: their last digits depend on the order of rows."""

_SIDE: Final = "penstock_side"

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a table lacks of its query, and what it has beside it: counts, and some of the rows.

    With `more` there are further rows of both.
    """

    table: str
    columns: tuple[str, ...]
    missing: int
    surplus: int
    missing_rows: tuple[Row, ...] = ()
    surplus_rows: tuple[Row, ...] = ()
    more: bool = False

    @property
    def is_same(self) -> bool:
        """Whether the contents are the query."""
        return not self.missing and not self.surplus

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        shown = {
            name: [dict(zip(self.columns, row, strict=True)) for row in rows]
            for name, rows in (("missing", self.missing_rows), ("surplus", self.surplus_rows))
        }
        return {
            "table": self.table, "same": self.is_same, "missing": self.missing,
            "surplus": self.surplus, "more": self.more, "examples": shown,
        }  # fmt: skip


def verify(
    store: TableStore, engine: Refresher, table: TableDefinition, api_key: str | None
) -> Verified:
    """Compare the contents of a table with its query at their frontier, as multisets."""
    lake = store.lake
    with lake.look() as reader:
        snapshot = reader.latest()
        known = store.frontiers(reader, [table.name]).get(table.name)
    if known is None:
        raise NoContents(table.name, snapshot.id)
    declared = store.definitions().topics
    inputs = {name: _input(lake, name, known.frontier, declared, api_key) for name in table.sources}
    held = lake.table_at(table.name, snapshot.id)
    read: dict[str, TableVersion | TopicRead] = {table.name: held}
    read |= {
        name: source for name, each in inputs.items() if (source := each.version or each.topic)
    }
    found = engine.query(_differences(table, inputs), read)
    sides = found.column(0).to_pylist()
    rows = list(zip(*(column.to_pylist() for column in found.columns[1:]), strict=True))
    missing = [row for row, side in zip(rows, sides, strict=True) if side > 0]
    surplus = [row for row, side in zip(rows, sides, strict=True) if side < 0]
    missing, surplus = without_close_rows(missing, surplus, held.table.arrow_schema)
    return Verified(
        table.name,
        tuple(held.table.arrow_schema.names),
        len(missing),
        len(surplus),
        tuple(missing[:EXAMPLES_MAX]),
        tuple(surplus[:EXAMPLES_MAX]),
        len(rows) >= DIFFERENCES_MAX,
    )


def _input(
    lake: Catalog,
    name: str,
    frontier: Frontier,
    declared: Mapping[str, TopicSource],
    api_key: str | None,
) -> Input:
    """An input as it was when the contents were made."""
    at = frontier.get(name)
    if isinstance(at, LakePosition):
        return Input(name, at, version=lake.table_at(name, at.snapshot))
    if not isinstance(at, TopicPosition) or name not in declared:
        raise Rejected(f"the contents were not made from {name!r}: refresh the table first")
    source = declared[name]
    topic = topic_of(name) or name
    read = TopicRead(source.url, topic, source.schema, at.seq, at.epoch, source.key, api_key)
    return Input(name, at, topic=read)


def _differences(table: TableDefinition, inputs: Mapping[str, Input]) -> str:
    """Rows of the query that the table lacks (1), and those that it has beside them (-1)."""
    held = f"SELECT * FROM {_named(table.name)}"
    asked = f"SELECT * FROM ({_asked(table, inputs)}\n) q"
    sides = ((1, asked, held), (-1, held, asked))
    both = " UNION ALL ".join(
        f"SELECT {weight} AS {_SIDE}, * FROM ({one} EXCEPT ALL {other}) d"
        for weight, one, other in sides
    )
    return f"{both} LIMIT {DIFFERENCES_MAX}"


def _asked(table: TableDefinition, inputs: Mapping[str, Input]) -> str:
    columns = {name: each.columns for name, each in inputs.items()}
    try:
        compiled = compile_query(table.query, columns)
    except NotDifferentiable:
        return table.query
    return compiled.full(_Relations()) if compiled.breaks_ties else table.query


class _Relations:
    """Relations by their own names."""

    def old(self, relation: str) -> str:
        return _named(relation)

    def delta(self, relation: str) -> str:
        raise AssertionError(relation)


def _named(relation: str) -> str:
    return ".".join(part if part.isidentifier() else quoted(part) for part in relation.split("."))


def without_close_rows(
    missing: Sequence[Row], surplus: Sequence[Row], schema: pa.Schema
) -> tuple[list[Row], list[Row]]:
    """Both sides without the rows that differ only in the last digits of their floats."""
    floats = [pa.types.is_floating(kind) for kind in schema.types]
    if not any(floats):
        return list(missing), list(surplus)
    sides = [_by_key(rows, floats) for rows in (missing, surplus)]
    kept: list[list[Row]] = [[], []]
    for key in {**sides[0], **sides[1]}:
        one, other = (side.get(key, []) for side in sides)
        if len(one) != len(other) or not all(map(_is_close, one, other)):
            kept[0] += one
            kept[1] += other
    return kept[0], kept[1]


def _by_key(rows: Iterable[Row], floats: Sequence[bool]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        key = repr([cell for cell, is_float in zip(row, floats, strict=True) if not is_float])
        found.setdefault(key, []).append(row)
    for same in found.values():
        same.sort(
            key=lambda row: [
                (cell is None, cell or 0.0)
                for cell, is_float in zip(row, floats, strict=True)
                if is_float
            ]
        )
    return found


def _is_close(one: Row, other: Row) -> bool:
    return all(map(_same, one, other))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)
    return bool(one == other)
