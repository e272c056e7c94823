"""Rows that stay inside Spark from one job to the next, until they are released."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame


def checkpoint(frame: DataFrame) -> DataFrame:
    """Run a query now and keep its rows inside Spark, until `release` or the end of the session.

    pyspark gives the result to the session that is active in this thread, which need not be the
    frame's where a process has several.

    pyspark would also ask the server to forget the rows when the result is collected as garbage:
    a call without a limit, in whichever thread the collector happens to run, which waits for ever
    if that thread is in the middle of another call on the same channel. So that is switched off.
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
    """Have Spark forget rows that it holds; a session that is closed has none."""
    from pyspark.sql.connect.plan import RemoveRemoteCachedRelation

    client = frame.sparkSession.client
    if not client.is_closed:
        client.execute_command(RemoveRemoteCachedRelation(frame._plan).command(client))
