"""Rows that stay inside Spark from one job to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame


def held(frame: DataFrame) -> DataFrame:
    """Run a query now and keep its rows inside Spark, for as long as the result is used.

    pyspark gives the result to the session that is active in this thread, which need not be the
    frame's where a process has several.
    """
    spark = frame.sparkSession
    active = type(spark)._active_session
    before = getattr(active, "session", None)
    active.session = spark
    try:
        made: DataFrame = frame.localCheckpoint()
    finally:
        active.session = before
    return made
