"""Runs compiled queries on DuckDB: old rows, changes and the result after each batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import duckdb
import sqlglot

from penstock.tables.delta.coerced import key_types_sql, with_safe_keys
from penstock.tables.delta.compiler import Compiled, compile_query
from penstock.tables.delta.ranges import Range
from penstock.tables.delta.stages import Kept, staged
from penstock.tables.delta.state import Root

Row = tuple[Any, ...]
_SPARK = {"INTEGER": "int", "BIGINT": "bigint", "HUGEINT": "bigint", "DOUBLE": "double"}


class Views:
    """The views of old rows and of changes."""

    def old(self, relation: str) -> str:
        return f"`old_{relation}`"

    def delta(self, relation: str) -> str:
        return f"`delta_{relation}`"


class Duck:
    """Relations in DuckDB: `old_NAME` as they were, `delta_NAME` what changes, `NAME` now."""

    def __init__(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        self.db = duckdb.connect()
        # DuckDB 1.5.5 loses rows of nested EXISTS with it (seed 1081 of the random queries).
        self.db.execute("SET disabled_optimizers = 'deliminator'")
        self.tables = tables
        self.looks_up = True
        self._views = 0
        self.columns = {name: list(columns) for name, columns in tables.items()}
        for name, columns in tables.items():
            fields = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
            self.db.execute(f"CREATE TABLE {name} ({fields})")
            self.db.execute(f"CREATE TABLE old_{name} ({fields})")
            self.db.execute(f"CREATE TABLE delta_{name} ({fields}, __w BIGINT)")
        self.db.execute("CREATE MACRO raise_error(t) AS error(t)")

    def insert(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows."""
        values = [list(row) for row in rows]
        if values:
            marks = ", ".join("?" for _ in values[0])
            self.db.executemany(f"INSERT INTO {name} VALUES ({marks})", values)

    def replace(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Make these all rows."""
        self.db.execute(f"DELETE FROM {name}")
        self.insert(name, rows)

    def delete_some(self, name: str, count: int, seed: float) -> None:
        """Delete some rows, which the seed chooses."""
        self.db.execute(
            f"DELETE FROM {name} WHERE rowid IN "
            f"(SELECT rowid FROM {name} ORDER BY hash(rowid + {seed}) LIMIT {count})"
        )

    def remember(self) -> None:
        """Make what is there now the old rows; nothing has changed."""
        for name in self.tables:
            self.db.execute(f"DELETE FROM old_{name}")
            self.db.execute(f"INSERT INTO old_{name} SELECT * FROM {name}")
            self.db.execute(f"DELETE FROM delta_{name}")

    def changed(self) -> frozenset[str]:
        """Fill `delta_NAME` with what changed since the old rows; the relations that did."""
        found = set()
        for name in self.tables:
            self.db.execute(
                f"INSERT INTO delta_{name} SELECT *, 1 FROM "
                f"(SELECT * FROM {name} EXCEPT ALL SELECT * FROM old_{name}) "
                f"UNION ALL SELECT *, -1 FROM "
                f"(SELECT * FROM old_{name} EXCEPT ALL SELECT * FROM {name})"
            )
            if self.db.execute(f"SELECT count(*) FROM delta_{name}").fetchone() != (0,):
                found.add(name)
        return frozenset(found)

    def run(self, sql: str) -> Counter[Row]:
        """The rows of a query in Spark's dialect, as a multiset."""
        return Counter(plain(row) for row in self.db.execute(in_duckdb(sql)).fetchall())

    def keep(self, name: str, sql: str) -> None:
        """Store the rows of a query in Spark's dialect as a table."""
        self.db.execute(f"CREATE OR REPLACE TABLE {name} AS {in_duckdb(sql)}")

    def compile(self, query: str) -> Compiled:
        """A query over these relations, compiled for the types that they have."""
        compiled = compile_query(query, self.columns)
        asked = key_types_sql(compiled, Views())
        if asked is None:
            return compiled
        found = self.db.execute(f"DESCRIBE {in_duckdb(asked)}").fetchall()
        kinds = (kind for _, kind, *_ in found)
        return with_safe_keys(compiled, [_SPARK.get(kind, kind.lower()) for kind in kinds])

    def check(self, query: str) -> frozenset[str]:
        """Whether old result and delta give the new result; the relations that had changed."""
        compiled = self.compile(query)
        before = self.run(compiled.full(Views()))
        changed = self.changed()
        ranges = self if len(query) % 3 else None  # some queries with them, some without
        self.looks_up = len(query) % 3 == 1
        text = compiled.delta(changed, Views(), broadcast=False, ranges=ranges)
        after = before if text is None else applied(before, self.weighted(text))
        wanted = self.now(query, compiled)
        assert after == wanted, f"{query}\n{self.difference(after, wanted)}"
        return changed

    def check_stages(self, query: str, changed: frozenset[str]) -> int:
        """The same with inner aggregates as tables that the rest reads; how many there are."""
        compiled = self.compile(query)
        plan = staged(compiled, self._types)
        relations = set(changed)
        for kept in plan.stages:
            self._keep_stage(kept)
            if self.run(f"SELECT count(*) FROM {Views().delta(kept.relation)}") != Counter([(0,)]):
                relations.add(kept.relation)
        text = plan.rest.delta(relations, Views(), broadcast=False)
        before = self.run(compiled.full(Views()))
        after = before if text is None else applied(before, self.weighted(text))
        wanted = self.now(query, compiled)
        assert after == wanted, f"staged: {query}\n{self.difference(after, wanted)}"
        return len(plan.stages)

    def _types(self, root: Root) -> tuple[str, ...]:
        """The types of an aggregate's arguments, as Spark would call them."""
        found = self.db.execute(f"DESCRIBE {in_duckdb(root.arguments_sql(Views()))}").fetchall()
        return tuple(_SPARK.get(kind, "string") for name, kind, *_ in found if name[0] == "a")

    def _keep_stage(self, kept: Kept) -> None:
        """The rows of an inner aggregate, before and after, and what lies between them."""
        old, new = f"old_{kept.relation}", kept.relation
        for name, views in ((old, Views()), (new, _Now())):
            self.keep("state", kept.whole.full(views))
            self.keep(f'"{name}"', kept.state.result("state"))
        self.db.execute(f"""CREATE OR REPLACE TABLE "delta_{new}" AS
            SELECT *, 1::BIGINT AS __w FROM (FROM "{new}" EXCEPT ALL FROM "{old}")
            UNION ALL SELECT *, -1 FROM (FROM "{old}" EXCEPT ALL FROM "{new}")""")

    def kind(self, relation: str, field: str) -> str | None:
        """The type of a column."""
        return self.tables[relation].get(field)

    def changed_range(self, relation: str, field: str) -> Range | None:
        """The range of a column in the changes of its relation."""
        low, high, nulls = self.db.execute(
            f'SELECT min("{field}"), max("{field}"), count(*) - count("{field}") '
            f"FROM delta_{relation}"
        ).fetchone()
        return Range(self.tables[relation][field], low, high, nulls > 0, ((relation, field),))

    def near(self, relation: str, field: str, found: Range, fields: tuple[str, ...]) -> str | None:
        """A view of the old rows with values of a range in a column, and of no others."""
        if not self.looks_up:
            return None
        values = " UNION ALL ".join(f'SELECT "{name}" FROM delta_{of}' for of, name in found.of)
        where = f'"{field}" IN ({values})' + (f' OR "{field}" IS NULL' if found.has_null else "")
        shown = ", ".join(f'"{name}"' for name in fields)
        self._views += 1
        view = f"near_{self._views}"
        self.db.execute(f"CREATE VIEW {view} AS SELECT {shown} FROM old_{relation} WHERE {where}")
        return f"`{view}`"

    def leaving(self, relation: str) -> int:
        """How many rows of a relation leave."""
        found = self.db.execute(f"SELECT -sum(least(__w, 0)) FROM delta_{relation}").fetchone()
        return int(found[0] or 0)

    def now(self, query: str, compiled: Compiled) -> Counter[Row]:
        """The result over the rows as they are."""
        return self.run(query if not compiled.breaks_ties else compiled.full(_Now()))

    def weighted(self, text: str) -> dict[Row, int]:
        """The rows of a delta; each must come once."""
        found: dict[Row, int] = {}
        for row, times in self.run(text).items():
            assert times == 1, f"{row} comes {times} times"
            assert row[:-1] not in found, f"{row[:-1]} comes with two weights"
            found[row[:-1]] = int(row[-1])
        return found

    def difference(self, found: Counter[Row], wanted: Counter[Row]) -> str:
        """What is wrong with a result."""
        return f"too many: {dict(found - wanted)}\n  missing: {dict(wanted - found)}"


class _Now:
    def old(self, relation: str) -> str:
        return f"`{relation}`"

    def delta(self, relation: str) -> str:
        raise AssertionError(relation)


def plain(row: Sequence[Any]) -> Row:
    """A row whose cells can be compared and counted."""
    return tuple(_value(cell) for cell in row)


def _value(cell: Any) -> Any:
    if isinstance(cell, list):
        return tuple(_value(inner) for inner in cell)
    if isinstance(cell, dict):
        return tuple((key, _value(inner)) for key, inner in cell.items())
    if isinstance(cell, float):
        return "NaN" if cell != cell else round(cell, 6) + 0.0
    return cell


@lru_cache(maxsize=4_096)
def in_duckdb(sql: str) -> str:
    """A query in Spark's dialect in DuckDB's."""
    assert not re.search(r"(SELECT|BY|DISTINCT|,)\s*,", sql), "sqlglot forgives what Spark does not"
    return sqlglot.transpile(sql, read="spark", write="duckdb")[0]


def applied(before: Counter[Row], delta: Mapping[Row, int]) -> Counter[Row]:
    """A multiset with weighted rows added."""
    after = Counter(before)
    for row, weight in delta.items():
        assert weight != 0, f"{row} has weight 0"
        after[row] += weight
    assert all(count >= 0 for count in after.values()), f"too few: {after - +after}"
    return +after
