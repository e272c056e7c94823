"""DataFrames into topics: every row a record.

For streams, and for those who like it better, there is the format `penstock`; what it guarantees
is in docs/how-to/spark-topics.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.topic_http import TopicAddress
from penstock.spark.topic_source import register

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame


def write_topic(
    frame: DataFrame,
    url: str,
    topic: str,
    *,
    write_id: str | None = None,
    api_key: str | None = None,
    create: bool = False,
) -> None:
    """Append the rows of a frame to a topic.

    A frame with a column `data` has JSON text in it, and may have `tag`, `node` and `meta`; of any
    other frame each row becomes a JSON object of its columns. With a `write_id` the same rows are
    written once, however often this is called within the topic's `idempotency_window_ms`.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    address = TopicAddress(url, topic, api_key)
    if "data" not in frame.columns:
        frame = frame.select(F.to_json(F.struct("*")).alias("data"))
    options = {"url": address.url, "topic": topic, "create": str(create).lower()}
    if api_key is not None:
        options["api_key"] = api_key
    if write_id is not None:
        options["write_id"] = write_id
    register(frame.sparkSession)
    frame.write.format("penstock").mode("append").options(**options).save()
