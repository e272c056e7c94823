"""What the rules write with: names, weights, and pieces of SQL in Spark's dialect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from sqlglot import exp

from penstock.tables.delta.algebra import Node
from penstock.tables.delta.ranges import Range

WEIGHT: Final = "__w"
SAME: Final = "<=>"
"""Compares keys: NULL is a key like others."""
ONE: Final = "CAST(1 AS BIGINT)"
NONE: Final = "CAST(0 AS BIGINT)"


class Names(Protocol):
    """What the views of a relation are called in SQL, quoted where necessary."""

    def old(self, relation: str) -> str:
        """The view of a relation's rows before the changes."""
        ...

    def delta(self, relation: str) -> str:
        """The view of a relation's changes: its columns and `__w`."""
        ...


class DeltaWriter(Protocol):
    """What a rule needs of the text that it is part of."""

    def rows(self, node: Node) -> str:
        """The old rows of an operator, without weights."""
        ...

    def delta(self, node: Node) -> str | None:
        """The weighted changes of an operator, or None if nothing that it reads has changed."""
        ...

    def within(self, node: Node, ranges: Mapping[str, Range]) -> str:
        """The old rows of an operator, without those out of the ranges of some columns.

        Rows out of them may still be there: it is a help and no filter.
        """
        ...

    def range_of(self, node: Node, column: str) -> Range | None:
        """The range of a column in the changes of an operator; None if it is not known."""
        ...

    def leaving(self, node: Node) -> int | None:
        """How many rows at most leave an operator with its changes; None if it is not known."""
        ...

    def floats(self, node: Node) -> tuple[str, ...]:
        """The columns of an operator that are known to be floats of a relation, as they are."""
        ...

    def alias(self) -> str:
        """A table alias that nothing else has."""
        ...

    def hint(self, alias: str) -> str:
        """A hint that a side of a join is small."""
        ...


def semi(
    writer: DeltaWriter, rows: str, shown: Sequence[str], keys: Sequence[str], found: str
) -> str:
    """The rows whose keys are among those found; NULL is a key like others."""
    large, small = writer.alias(), writer.alias()
    on = " AND ".join(f"{large}.{key} {SAME} {small}.{key}" for key in keys)
    return (
        f"SELECT {writer.hint(small)}{listed(f'{large}.{name}' for name in shown)} "
        f"FROM ({rows}) AS {large} LEFT SEMI JOIN ({found}) AS {small} ON {on}"
    )


def each_row(writer: DeltaWriter, node: Node) -> tuple[str, str]:
    """The columns of equal rows, and what makes them equal.

    As a key, -0.0 is 0.0, and Spark gives it back as that; a CAST to STRING above tells them apart.
    So floats that are as they were read are told apart here.
    """
    floats = frozenset(writer.floats(node))
    shown = listed(f"MAX({c}) AS {c}" if c in floats else c for c in node.columns)
    signs = (f"IF({c} = 0, CAST({c} AS STRING), NULL)" for c in node.columns if c in floats)
    return shown, listed((*node.columns, *signs))


def ranges_of(writer: DeltaWriter, node: Node, columns: Iterable[str]) -> dict[str, Range]:
    """The ranges that are known of columns in the changes of an operator."""
    found = {column: writer.range_of(node, column) for column in columns}
    return {column: each for column, each in found.items() if each is not None}


def quoted(name: str) -> str:
    """A name as an identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def named(expressions: Iterable[exp.Expr], names: Iterable[str]) -> tuple[str, ...]:
    """Expressions with the names of their columns."""
    pairs = zip(expressions, names, strict=True)
    return tuple(f"{sql(expression)} AS {name}" for expression, name in pairs)


def renamed(columns: Iterable[str], names: Iterable[str]) -> str:
    """Columns under other names."""
    return listed(f"{old} AS {new}" for old, new in zip(columns, names, strict=True))


def listed(texts: Iterable[str]) -> str:
    """Texts with commas between them."""
    return ", ".join(texts)


def all_of(conditions: Sequence[exp.Expr]) -> str:
    """The conjunction of conditions."""
    return " AND ".join(f"({sql(c)})" for c in conditions) or "TRUE"


def sql(expression: exp.Expr) -> str:
    """An expression in Spark's dialect."""
    return expression.sql(dialect="spark", comments=False)
