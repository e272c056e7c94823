"""The types of the keys that a query matches rows by, as Spark has them.

They decide whether matches can be counted by key (`tables.delta.coerced`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.spark.delta.changes import InputChange
from penstock.spark.lake.views import ViewNames, bound_frame
from penstock.tables.delta.coerced import key_types_sql, with_safe_keys
from penstock.tables.delta.compiler import Compiled

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_KNOWN: Final[dict[tuple[str, ...], Compiled]] = {}
_KNOWN_MAX: Final = 1_024


def with_keys_of(
    spark: SparkSession, compiled: Compiled, changes: Mapping[str, InputChange]
) -> Compiled:
    """A query whose keys match as its inputs' types say.

    Spark is asked once for a query over columns of the same types.
    """
    key = (compiled.query, *(changes[name].shape for name in sorted(changes)))
    if key not in _KNOWN:
        _KNOWN[key] = with_spark_keys(spark, compiled, lambda name: changes[name].old(spark))
        while len(_KNOWN) > _KNOWN_MAX:
            _KNOWN.pop(next(iter(_KNOWN)))
    return _KNOWN[key]


def with_spark_keys(
    spark: SparkSession, compiled: Compiled, source: Callable[[str], DataFrame]
) -> Compiled:
    """The same over any frames of the inputs; Spark is asked each time."""
    names = ViewNames()
    asked = key_types_sql(compiled, names)
    if asked is None:
        return compiled
    views = {view: source(name) for view, (name, _) in names.views.items()}
    schema = bound_frame(spark, asked, views).schema
    return with_safe_keys(compiled, [field.dataType.simpleString() for field in schema])
