"""Whether the compiled text is the query: Spark must take it, with the same columns and types.

The parser knows less of Spark's SQL than Spark does. Where it reads a query in another way, the
compiled text is not used: the table is refreshed in full, and the reason is on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.spark.delta.changes import InputChange
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.lake.views import ViewNames, bind, bound_frame
from penstock.spark.query_errors import one_line
from penstock.tables.core.history import ReasonCode
from penstock.tables.delta.compiler import Compiled

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_KNOWN: Final[dict[tuple[str, ...], str]] = {}
_KNOWN_MAX: Final = 1_024


def check_agreement(
    spark: SparkSession, compiled: Compiled, changes: Mapping[str, InputChange]
) -> None:
    """Raise `MustBeFull` if Spark does not take the compiled text for the query.

    Spark is asked once for a query over columns of the same types. What it says against the query
    itself is raised as it is.
    """
    key = (compiled.query, *(changes[name].shape for name in sorted(changes)))
    if key not in _KNOWN:
        frames = {name: change.old for name, change in changes.items()}
        _KNOWN[key] = disagreement(spark, compiled, lambda name: frames[name](spark))
        while len(_KNOWN) > _KNOWN_MAX:
            _KNOWN.pop(next(iter(_KNOWN)))
    if _KNOWN[key]:
        raise MustBeFull(ReasonCode.COMPILER_DISAGREES, _KNOWN[key])


def disagreement(
    spark: SparkSession, compiled: Compiled, source: Callable[[str], DataFrame]
) -> str:
    """How the compiled text differs from the query by Spark's word; empty if it does not."""
    from pyspark.errors import AnalysisException

    bound = bind(compiled.query)
    asked = bound_frame(
        spark, bound.query, {view: source(name) for name, view in bound.views.items()}
    ).schema
    names = ViewNames()
    text = compiled.full(names)
    views = {view: source(name) for view, (name, _) in names.views.items()}
    try:
        found = bound_frame(spark, text, views).schema
    except AnalysisException as error:
        return f"Spark does not take the compiled query: {one_line(error)}"
    if len(found) != len(asked):
        return f"the compiled query has {len(found)} columns, the query {len(asked)}"
    for ours, theirs in zip(found, asked, strict=True):
        kinds = [field.dataType.simpleString() for field in (ours, theirs)]
        if kinds[0] != kinds[1]:
            return f"{theirs.name} is {kinds[0]} in the compiled query and {kinds[1]} in the query"
    return ""
