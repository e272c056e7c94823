"""Runs compiled queries on Spark over the relations of a `Duck`, and compares types too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from penstock.tables.delta.compiler import compile_query
from tests.unit.tables.delta.duck import Duck, Row, Views, applied, plain


class OnSpark:
    """Views in Spark of what a `Duck` holds: old rows, changes and rows as they are."""

    def __init__(self, spark: Any, duck: Duck) -> None:
        self.spark, self.duck = spark, duck

    def show(self, *prefixes: str) -> None:
        """Make views of tables of the Duck: `old_`, `delta_` or the plain ones."""
        for prefix in prefixes:
            for name in self.duck.tables:
                rows = self.duck.db.execute(f"SELECT * FROM {prefix}{name}").to_arrow_table()
                frame = self.spark.createDataFrame(_spark_types(rows))
                frame.createOrReplaceTempView(f"{prefix}{name}")

    def run(self, sql: str) -> Counter[Row]:
        """The rows of a query."""
        rows = self.spark.sql(sql).toArrow()
        return Counter(plain(tuple(row.values())) for row in _rows(rows))

    def check(self, query: str) -> str:
        """That compiled text, old rows and delta give what the query gives, with its types."""
        asked = self.spark.sql(query).schema
        compiled = compile_query(query, self.duck.columns, [field.name for field in asked])
        full = compiled.full(Views())
        _same_types(self.spark.sql(full).schema, asked)
        text = compiled.delta(self.duck.tables, Views())
        assert text is not None
        changes = self.spark.sql(text)
        _same_types(changes.schema[:-1], asked)
        before = self.run(full)
        delta: dict[Row, int] = {}
        for row in _rows(changes.toArrow()):
            *cells, weight = plain(tuple(row.values()))
            assert tuple(cells) not in delta
            delta[tuple(cells)] = weight
        wanted = self.run(compiled.full(Now()) if compiled.breaks_ties else query)
        after = applied(before, delta)
        assert after == wanted, f"{query}\n{self.duck.difference(after, wanted)}"
        return text


class Now:
    """The views of rows as they are."""

    def old(self, relation: str) -> str:
        return f"`{relation}`"

    def delta(self, relation: str) -> str:
        raise AssertionError(relation)


def _same_types(found: Any, wanted: Any) -> None:
    assert [(field.name, field.dataType) for field in found] == [
        (field.name, field.dataType) for field in wanted
    ]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    names = [f"c{place}" for place in range(table.num_columns)]
    return table.rename_columns(names).to_pylist()


def _spark_types(rows: pa.Table) -> pa.Table:
    """Rows without types that Spark does not have."""
    fields = [
        pa.field(field.name, pa.decimal128(38, 0) if field.type == pa.uint64() else field.type)
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))
