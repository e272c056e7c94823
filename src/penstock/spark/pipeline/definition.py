"""A pipeline as its author defines it: a raw topic, two functions over DataFrames, a target.

`parse` gets the columns of `RAW_DDL`, a row for each message, and gives typed rows. They keep
`_seq`; where a message becomes several rows, `_row` numbers them. A row that cannot be parsed has
its reason in `_reason` (and no `_row` if the message as a whole is bad); it becomes a dead letter.
`evaluate` gets the good rows and gives rows with the columns of the target, `_seq`, `_row`, and
where a row cannot be evaluated a `_reason`.

Both must be functions of their rows alone: after a crash a batch is made again from the topic. An
`evaluate` that needs documents of a space as well is `Pinning`: it says before each batch which seq
of the space it goes by, and that is recorded in the commit of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.spark.pipeline.space import Basis

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

Step = Callable[["DataFrame"], "DataFrame"]
Payload = Literal["json", "base64"]


class Pinned(NamedTuple):
    """An `evaluate` for one batch, and the documents it is based on, if any."""

    evaluate: Step
    basis: Basis | None = None


class Pinning(Protocol):
    """An `evaluate` that uses documents of a space."""

    def pin(self) -> Pinned:
        """Pin the current documents. `Busy` and `Unavailable` mean: retry later."""
        ...

    def close(self) -> None:
        """Close connections for now; `pin` may open them again."""
        ...


RAW: Final = pa.schema(
    [
        ("_seq", pa.int64()),
        ("device", pa.string()),
        ("message_id", pa.string()),
        ("received_at", pa.timestamp("us", tz="UTC")),
        ("payload", pa.string()),
    ]
)
"""Messages on their way to Spark; `payload` is the record's data, as JSON text."""

OWN: Final = ("_seq", "_row", "_reason")
DEAD_LETTERS: Final = pa.schema(
    [
        ("pipeline", pa.string()),
        ("seq", pa.int64()),
        ("row_no", pa.int32()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("device", pa.string()),
        ("message_id", pa.string()),
        ("received_at", pa.timestamp("us", tz="UTC")),
        ("payload", pa.binary()),
        ("failed_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""What could not be parsed or evaluated. `row_no` is NULL where it is the message as a whole."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """From a raw topic to tables of the lake.

    `target` is a table that takes every column that `evaluate` gives (beside `_seq`, `_row` and
    `_reason`), or several tables with the columns that each takes. `payload` says what a record's
    data is: `json` hands its text to `parse`, `base64` the bytes that a JSON string encodes.
    `horizon`: a message whose (device, id) stood in the topic at most so many records before is a
    duplicate and dropped; records without a device or an id are never duplicates.
    """

    raw_topic: str
    parse: Step
    evaluate: Step | Pinning
    target: str | Mapping[str, Sequence[str]]
    name: str = ""
    payload: Payload = "json"
    dead_letters: str = "dead_letters"
    horizon: int = 100_000
    targets: Mapping[str, Sequence[str] | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.raw_topic)
        whole = isinstance(self.target, str)
        targets = {self.target: None} if whole else dict(self.target)  # type: ignore[arg-type]
        object.__setattr__(self, "targets", targets)
        if not self.raw_topic or not targets or not all(targets):
            raise Rejected(
                f"expected a topic and a target, found {self.raw_topic!r} and {self.target!r}"
            )
        if self.dead_letters in targets:
            raise Rejected(f"expected another table for dead letters, found {self.dead_letters!r}")
        if self.payload not in ("json", "base64"):
            raise Rejected(f"expected payload 'json' or 'base64', found {self.payload!r}")
        if self.horizon < 0:
            raise Rejected(f"expected a horizon of at least 0 records, found {self.horizon}")

    def pinned(self) -> Pinned:
        """What evaluates the next batch."""
        evaluate = self.evaluate
        return Pinned(evaluate) if callable(evaluate) else evaluate.pin()

    def close(self) -> None:
        """Close connections for now; the next batch opens new ones."""
        if not callable(self.evaluate):
            self.evaluate.close()


def raw_frame(spark: SparkSession, pipeline: Pipeline, messages: pa.Table) -> DataFrame:
    """Messages of `RAW` as `parse` gets them."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    frame: DataFrame = spark.createDataFrame(messages)
    if pipeline.payload == "base64":
        # The text is a JSON string: two quotes around an alphabet that needs no escapes.
        frame = frame.withColumn(
            "payload", F.expr("try_to_binary(substring(payload, 2, length(payload) - 2), 'base64')")
        )
    return frame


Known = dict[str, frozenset[str]]
"""The columns that a pipeline's steps give, so that Spark is asked once and not for every batch."""


def parsed_frame(pipeline: Pipeline, raw: DataFrame, known: Known | None = None) -> DataFrame:
    """What the pipeline's `parse` makes of messages, with the columns the rest relies on."""
    return with_own(pipeline.parse(raw), "parse", known)


def evaluated_frame(pinned: Pinned, parsed: DataFrame, known: Known | None = None) -> DataFrame:
    """What `evaluate` makes of the good rows, and the bad ones beside it."""
    from pyspark.sql.connect import functions as F  # noqa: N812

    good = parsed.where("_reason IS NULL").drop("_reason")
    made = with_own(pinned.evaluate(good), "evaluate", known)
    made = made.withColumn("_stage", F.lit("evaluate"))
    bad = parsed.where("_reason IS NOT NULL").select(*OWN, F.lit("parse").alias("_stage"))
    return made.unionByName(bad, allowMissingColumns=True)


def with_own(frame: DataFrame, step: str, known: Known | None = None) -> DataFrame:
    """A step's result with `_row` and `_reason`, which it may have left out."""
    from pyspark.sql.connect import functions as F  # noqa: N812

    known = {} if known is None else known
    columns = known.get(step)
    if columns is None:
        columns = known[step] = frozenset(frame.columns)
    if "_seq" not in columns:
        found = ", ".join(sorted(columns)) or "none"
        raise Rejected(f"expected {step} to keep the column _seq, found {found}")
    if "_row" not in columns:
        frame = frame.withColumn("_row", F.lit(0))
    if "_reason" not in columns:
        frame = frame.withColumn("_reason", F.lit(None).cast("string"))
    return frame
