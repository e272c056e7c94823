"""Functions that may answer differently though nothing that a query reads has changed.

A table whose query has one is refreshed on every schedule, for its contents may be out of date
while its sources stand still.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from penstock.tables.query.sources import parse_query

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
        "monotonically_increasing_id", "now", "random", "spark_partition_id", "user", "version",
    }
)  # fmt: skip
"""Functions that the parser knows by name only."""


_WORD: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE)
"""Texts that Spark takes for a moment, with a time zone behind them or not."""

_READS_WORDS: Final = frozenset(
    {"to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "try_to_date", "try_to_timestamp"}
)


def volatile_functions(query: str) -> tuple[str, ...]:
    """The functions of a query that may answer differently each time, sorted."""
    found = set()
    for node in parse_query(query).walk():
        name = _KNOWN.get(type(node))
        if name is None and isinstance(node, exp.Anonymous) and node.name.lower() in _BY_NAME:
            name = node.name.lower()
        if isinstance(node, exp.Literal):
            name = _moment(node)
        if name is not None:
            found.add(name)
    return tuple(sorted(found))


def _moment(text: exp.Literal) -> str | None:
    """The function that a text stands for where it is read as a moment: `TIMESTAMP 'now'`."""
    word = _WORD.fullmatch(text.name) if text.is_string else None
    if word is None:
        return None
    around = text.parent
    is_read = (
        (isinstance(around, exp.Cast) and around.to.is_type(*exp.DataType.TEMPORAL_TYPES))
        or isinstance(around, exp.TsOrDsToDate)
        or (isinstance(around, exp.Anonymous) and around.name.lower() in _READS_WORDS)
    )
    if not is_read:
        return None
    return "now" if word[1].lower() == "now" else "current_date"
