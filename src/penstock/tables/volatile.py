"""Functions that may answer differently though nothing that a query reads has changed.

A table whose query has one is refreshed on every schedule, for its contents may be out of date
while its sources stand still.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from penstock.tables.sources import parse_query

_KNOWN: Final[dict[type[exp.Expr], str]] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTime: "current_time",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentUser: "current_user",
    exp.Localtimestamp: "localtimestamp",
    exp.Rand: "rand",
    exp.Randn: "randn",
    exp.Randstr: "randstr",
    exp.SessionUser: "session_user",
    exp.Shuffle: "shuffle",
    exp.TableSample: "tablesample",
    exp.Uniform: "uniform",
    exp.Uuid: "uuid",
}
_BY_NAME: Final = frozenset(
    {
        "getdate", "input_file_block_length", "input_file_block_start", "input_file_name",
        "java_method", "monotonically_increasing_id", "now", "random", "reflect",
        "spark_partition_id", "try_reflect", "user", "version",
    }
)  # fmt: skip
"""Functions that the parser knows by name only."""


def volatile_functions(query: str) -> tuple[str, ...]:
    """The functions of a query that may answer differently each time, sorted."""
    found = set()
    for node in parse_query(query).walk():
        name = _KNOWN.get(type(node))
        if name is None and isinstance(node, exp.Anonymous) and node.name.lower() in _BY_NAME:
            name = node.name.lower()
        if name is not None:
            found.add(name)
    return tuple(sorted(found))
