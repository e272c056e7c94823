"""Topics as DataFrames: a range of one for those that know which, and the format `penstock`.

A short range is fetched here and handed to Spark as Arrow; a long one is read by Spark's tasks.
What is short was measured (`bench/bench_topic_source.py`): Python workers cost more than they
spare until there are many records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.spark.topics.http import TopicAddress, TopicConnection
from penstock.spark.topics.options import SourceOptions
from penstock.spark.topics.pages import DDL, SCHEMA, Lost, SeqRange, read_range

if TYPE_CHECKING:
    from pyspark.sql.connect.column import Column
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

FETCH_ROWS_MAX: Final = 30_000
"""Up to so many records are fetched here rather than by tasks."""

OWN_COLUMNS: Final = {"_seq": "seq", "_ts": "ts", "_node": "node", "_tag": "tag"}
"""Columns of a declared schema that come from the record itself, not from its data."""

_PARSED: Final[dict[str, StructType]] = {}


def register(spark: SparkSession) -> None:
    """Register `spark.read.format("penstock")` with a session. Idempotent."""
    from penstock.spark.topics.format import TopicDataSource

    spark.dataSource.register(TopicDataSource)


def read_topic(
    spark: SparkSession,
    url: str,
    topic: str,
    schema: str | StructType | None,
    upto_seq: int,
    from_seq: int = 0,
    key: str | Iterable[str] | None = None,
    api_key: str | None = None,
    *,
    epoch: int | None = None,
    lost: Lost = "fail",
    fetch_rows_max: int = FETCH_ROWS_MAX,
) -> DataFrame:
    """The records after `from_seq` and up to `upto_seq`, as rows.

    Without a schema they have the columns of a topic: seq, ts, node, tag, data, meta. With one
    (DDL or a type) the columns are taken from the JSON of `data`; what does not fit is NULL. Those
    named `_seq`, `_ts`, `_node` and `_tag` are the record's own.

    With `key` there is one row for each key, from its last record in the range, and none if that
    record deletes it: by `"op": "delete"` in its meta, or by data that is JSON's null. Records
    without a key are left out. An empty range does not ask the server.
    """
    wanted = SeqRange(from_seq, upto_seq, epoch)
    if from_seq < 0 or upto_seq < from_seq:
        raise Rejected(f"0 <= from_seq <= upto_seq must hold, not {from_seq} and {upto_seq}")
    address = TopicAddress(url, topic, api_key)
    if len(wanted) <= fetch_rows_max:
        raw = fetched_frame(spark, address, wanted, lost)
    else:
        options = SourceOptions(address, from_seq, upto_seq, epoch, lost)
        register(spark)
        raw = spark.read.format("penstock").options(**options.as_options()).load()
    if schema is None:
        if key is not None:
            raise Rejected("a key needs a schema, whose columns it names")
        return raw
    return shaped(raw, schema, [key] if isinstance(key, str) else list(key or ()))


def fetched_frame(
    spark: SparkSession, address: TopicAddress, wanted: SeqRange, lost: Lost = "fail"
) -> DataFrame:
    """A range that is fetched here, and handed to Spark as Arrow."""
    return frame_of(spark, fetch(address, wanted, lost))


def frame_of(spark: SparkSession, records: pa.Table) -> DataFrame:
    """Records that are here as a DataFrame; Spark cannot tell the columns of no rows."""
    made: DataFrame = spark.createDataFrame(
        *((records,) if records.num_rows else ([], declared_schema(spark, DDL)))
    )
    return made


def fetch(address: TopicAddress, wanted: SeqRange, lost: Lost = "fail") -> pa.Table:
    """A range of a topic, here."""
    return pa.Table.from_batches(list(read_range(address, wanted, lost)), schema=SCHEMA)


def head_of(url: str, topic: str, api_key: str | None = None) -> tuple[int, int]:
    """The epoch and the head of a topic: how far it can be read now."""
    with TopicConnection(TopicAddress(url, topic, api_key)) as connection:
        state = connection.state()
    return state.epoch, state.head_seq


def shaped(raw: DataFrame, schema: str | StructType, key: list[str]) -> DataFrame:
    """Records as rows of a declared schema; with a key, the last of each key that is left."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name

    declared = declared_schema(raw.sparkSession, schema)
    strangers = [name for name in key if name not in declared.fieldNames()]
    if strangers:
        raise Rejected(
            f"there is no column {', '.join(strangers)} for the key; columns are "
            f"{', '.join(declared.fieldNames())}"
        )
    inner = [field for field in declared.fields if field.name not in OWN_COLUMNS]
    parsed = raw
    if inner:
        text = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in inner)
        parsed = raw.withColumn("_parsed", F.from_json("data", text))
    columns = [_column(name) for name in declared.fieldNames()]
    if not key:
        return parsed.select(*columns)
    places = {name: f"_key_{number}" for number, name in enumerate(key)}
    keyed = parsed.select(
        F.col("seq").alias("_order"),
        ((F.get_json_object("meta", "$.op") == "delete") | (F.col("data") == "null"))
        .alias("_is_delete"),
        F.struct(*columns).alias("_row"),
        *[_column(name).alias(place) for name, place in places.items()],
    )  # fmt: skip
    for place in places.values():
        keyed = keyed.where(F.col(place).isNotNull())
    last = keyed.groupBy(*places.values()).agg(
        F.max_by(F.struct("_row", "_is_delete"), "_order").alias("_last")
    )
    left = last.where(~F.coalesce(F.col("_last._is_delete"), F.lit(False)))
    return left.select("_last._row.*")


def declared_schema(spark: SparkSession, schema: str | StructType) -> StructType:
    """A schema as Spark's type; any other text is refused."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    found = _PARSED.get(schema)
    if found is None:
        try:
            # What StructType.fromDDL does for a classic session; only Spark knows its DDL.
            found = spark.client._analyze(method="ddl_parse", ddl_string=schema).parsed
        except PySparkException as error:
            said = str(error).partition("\n")[0]
            raise Rejected(
                f"{schema!r} does not declare columns, as 'id BIGINT, name STRING' does: {said}"
            ) from error
        if not isinstance(found, StructType):
            raise Rejected(f"{schema!r} does not declare columns, as 'id BIGINT, name STRING' does")
        _PARSED[schema] = found
    return found


def _column(name: str) -> Column:
    from pyspark.sql.connect import functions as F  # noqa: N812

    own = OWN_COLUMNS.get(name)
    return F.col(own).alias(name) if own else F.col("_parsed").getField(name).alias(name)
