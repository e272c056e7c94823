"""Whether the compiled text is the query, and whether the query means what it meant.

The parser knows less of Spark's SQL than Spark does. Where it reads a query in another way, the
compiled text is not used: the table is refreshed in full, and the reason is on record. A query over
columns that are gone or have other types is an error: its table would silently become another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from penstock.kernel.errors import Gone, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.columns import Column, arrow_type
from penstock.protocol.errors import NotDifferentiable
from penstock.spark.delta.changes import InputChange
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.settings import settings_of
from penstock.spark.lake.views import ViewNames, bind, bound_frame
from penstock.spark.query_errors import QueryRefused, one_line
from penstock.tables.core.frontier import LakePosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.delta.algebra import Scan, walk
from penstock.tables.delta.compiler import Compiled, compile_query
from penstock.tables.engine import Input
from penstock.tables.query.names import at_parts
from penstock.tables.query.sources import parse_query

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
    misread = settings_of(spark).misread
    if misread:
        raise MustBeFull(ReasonCode.COMPILER_DISAGREES, misread)
    key = (compiled.query, *(changes[name].shape for name in sorted(changes)))
    if key not in _KNOWN:
        frames = {name: change.old for name, change in changes.items()}
        _KNOWN[key] = disagreement(spark, compiled, lambda name: frames[name](spark))
        while len(_KNOWN) > _KNOWN_MAX:
            _KNOWN.pop(next(iter(_KNOWN)))
    if _KNOWN[key]:
        raise MustBeFull(ReasonCode.COMPILER_DISAGREES, _KNOWN[key])


def check_columns(lake: Catalog, query: str, inputs: Mapping[str, Input]) -> None:
    """Raise `QueryRefused` if a column that a query uses was dropped, renamed or changed its type.

    Changes are of the columns that the query meant when it was last run: under one name they would
    be those of another column.
    """
    before: dict[str, tuple[Column, ...]] = {}
    lost: dict[str, dict[str, str]] = {}
    for name, found in inputs.items():
        columns = () if found.version is None else found.version.table.columns
        before[name] = _columns_then(lake, found) or columns
        lost[name] = _lost(before[name], columns)
    if not any(lost.values()):
        return
    try:
        names = {name: [column.name for column in found] for name, found in before.items()}
        compiled = compile_query(query, names)
    except NotDifferentiable:
        return
    for scan in (node for node in walk(compiled.node) if isinstance(node, Scan)):
        for field in scan.fields:
            if field in lost[scan.relation]:
                raise QueryRefused(
                    f"column {field!r} of {scan.relation} {lost[scan.relation][field]}"
                    f"{_place(query, field)}: change the query, or refresh the table with force "
                    "to take the columns as they are now"
                )


def _columns_then(lake: Catalog, found: Input) -> tuple[Column, ...]:
    """The columns that a lake table had when it was read last; none if they are not known."""
    now, since = found.version, found.since
    if now is None or not isinstance(since, LakePosition) or now.table.id < 0:
        return ()
    try:
        with lake.look() as reader:
            then = reader.snapshot(since.snapshot)
            if then.schema_version == now.snapshot.schema_version:
                return ()
            table = reader.table(now.table.qualified, then)
    except (Gone, Rejected):
        return ()
    return table.columns if table.id == now.table.id else ()


def _lost(before: Iterable[Column], now: Iterable[Column]) -> dict[str, str]:
    """What became of columns whose names mean another column, another type or none now."""
    columns = list(now)
    there = {column.id: column for column in columns}
    named = {column.name.lower(): column for column in columns}
    found = {}
    for column in before:
        same, namesake = there.get(column.id), named.get(column.name.lower())
        if namesake is not None and namesake.id != column.id:
            found[column.name] = "was renamed or replaced, and another column has its name now"
        elif same is None:
            found[column.name] = "was dropped"
        elif namesake is None:
            found[column.name] = f"was renamed to {same.name!r}"
        elif arrow_type(same) != arrow_type(column):
            found[column.name] = f"was {column.type} and is {same.type} now"
    return found


def _place(query: str, column: str) -> str:
    """Where a query names a column; where it takes all of them, the first place that does."""
    tree = parse_query(query)
    named = [node for node in tree.find_all(exp.Column) if node.name.lower() == column.lower()]
    places = [node.parts for node in named] or [[node] for node in tree.find_all(exp.Star)]
    return at_parts(query, places[0]) if places else ""


def disagreement(
    spark: SparkSession, compiled: Compiled, source: Callable[[str], DataFrame]
) -> str:
    """How the compiled text differs from the query by Spark's word; empty if it does not."""
    from pyspark.errors import AnalysisException

    misread = settings_of(spark).misread
    if misread:
        return misread
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
