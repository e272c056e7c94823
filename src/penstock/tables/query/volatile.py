"""Functions whose result may change although the query's inputs did not.

A table that uses one is refreshed on every schedule, because its contents may become stale while
its sources stay the same.
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
"""Functions that the parser knows only by name."""


_WORD: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE)
"""Text that Spark reads as a timestamp, optionally followed by a time zone."""

_READS_WORDS: Final = frozenset(
    {"to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "try_to_date", "try_to_timestamp"}
)


def volatile_functions(query: str) -> tuple[str, ...]:
    """The volatile functions of a query, sorted."""
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
    """The function behind a text read as a timestamp: `TIMESTAMP 'now'`."""
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
