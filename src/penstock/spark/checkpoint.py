"""Rows that stay inside Spark from one job to the next, until they are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame


def checkpoint(frame: DataFrame) -> DataFrame:
    """Run a query now and keep its rows inside Spark, until `release` or the end of the session.

    pyspark gives the result to the session that is active in this thread, which need not be the
    frame's where a process has several.

    pyspark would also ask the server to release the rows when the result is garbage-collected: a
    call without a timeout, in whichever thread the collector runs, which deadlocks if that thread
    is in the middle of another call on the same channel. So that is disabled.
    """
    spark = frame.sparkSession
    active = type(spark)._active_session
    before = getattr(active, "session", None)
    active.session = spark
    try:
        made: DataFrame = frame.localCheckpoint()
    finally:
        active.session = before
    made._plan._spark_session = None
    return made


def release(frame: DataFrame) -> None:
    """Release rows that Spark holds; a closed session holds none."""
    from pyspark.sql.connect.plan import RemoveRemoteCachedRelation

    client = frame.sparkSession.client
    if not client.is_closed:
        client.execute_command(RemoveRemoteCachedRelation(frame._plan).command(client))
