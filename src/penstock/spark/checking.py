"""Whether Spark takes a query: what it says when it analyses one, before a table is made of it.

Nothing runs. The inputs are those that a refresh would read; a table that has no contents yet is
its own query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.lake.catalog import Catalog
from penstock.lake.columns import columns_of
from penstock.lake.model import TableVersion
from penstock.spark.lake.types import lake_type
from penstock.spark.lake.views import bind, bound_frame
from penstock.spark.query_errors import QueryRefused, said
from penstock.tables.engine import TopicRead

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

_log: Final = logging.getLogger(__name__)
_VIEW: Final = "penstock_checked_view"
_NO_TYPES: Final = ("void", "interval")
"""How the types begin that nothing keeps, in Spark's spelling."""

Inputs = Mapping[str, "TableVersion | TopicRead | str"]
Frame = Callable[["TableVersion | TopicRead"], "DataFrame"]


class QueryChecker:
    """Analyses queries over inputs; `frame` makes a DataFrame of a table or a topic."""

    def __init__(self, spark: SparkSession, lake: Catalog, inputs: Inputs, frame: Frame) -> None:
        self._spark, self._lake, self._inputs, self._frame = spark, lake, inputs, frame
        self._made: dict[str, DataFrame] = {}

    def check(self, query: str, functions: Callable[[], list[str]]) -> None:
        """Raise what Spark says against a query, or against a table of its result.

        What is wrong with another table, or with Spark, is left to the first refresh.
        """
        try:
            frame = self._over(query)
        except Exception as error:
            _log.info("a query could not be checked: %s", error)
            return
        try:
            schema = frame.schema
        except Exception as error:
            told = said(error, query, bind(query, _VIEW), functions)
            if isinstance(told, QueryRefused):
                raise told from error
            _log.info("a query could not be checked: %s", error)
            return
        check_result(schema)

    def _over(self, query: str) -> DataFrame:
        bound = bind(query, _VIEW)
        views = {view: self._source(name) for name, view in bound.views.items()}
        return bound_frame(self._spark, bound.query, views)

    def _source(self, name: str) -> DataFrame:
        if name not in self._made:
            found = self._inputs[name]
            frame = self._over(found) if isinstance(found, str) else self._frame(found)
            if isinstance(found, str):
                _ = frame.schema  # its own errors are not those of its readers
            self._made[name] = frame
        return self._made[name]


def check_result(schema: StructType) -> None:
    """Raise `Rejected` if no table can hold what a query gives."""
    columns_of(pa.schema([(field.name, pa.int64()) for field in schema.fields]))
    for field in schema.fields:
        if field.dataType.simpleString().startswith(_NO_TYPES):
            lake_type(field.dataType, field.name)
