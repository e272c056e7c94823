"""Queries that Spark's optimizer fails on, planned once more without the rules that fail.

A table is often a union: of files in two shapes, or of files and rows in the catalog. Spark 4 moves
a SELECT list into both sides of a union, and there fails on a correlated subquery in it, as in
`SELECT id, (SELECT max(m) FROM u WHERE u.k = t.k) FROM t`: "key not found: k#115". Nothing has run
then, and without these rules the same query is planned.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
_RULES: Final = (
    "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion",
    "org.apache.spark.sql.catalyst.optimizer.CombineUnions",  # it calls the other
)
_SAYS: Final = re.compile(r"NoSuchElementException\) key not found: .+#\d+")

T = TypeVar("T")


def planned(spark: SparkSession, run: Callable[[], T]) -> T:
    """What `run` makes with a session; a second time if Spark could not plan its query."""
    try:
        return run()
    except Exception as error:
        if not _SAYS.search(str(error)):
            raise
    before = spark.conf.get(_EXCLUDED, "") or ""
    spark.conf.set(_EXCLUDED, ",".join(rule for rule in (before, *_RULES) if rule))
    try:
        return run()
    finally:
        if before:
            spark.conf.set(_EXCLUDED, before)
        else:
            spark.conf.unset(_EXCLUDED)
