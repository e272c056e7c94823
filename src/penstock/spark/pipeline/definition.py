"""A pipeline as its author defines it: a raw topic, two steps, target tables.

`parse` gets the columns of `RAW`, a row for each message, and gives typed rows. They keep `_seq`;
where a message becomes several rows, `_row` numbers them. A row that cannot be parsed has its
reason in `_reason` (and no `_row` if the message as a whole is bad); it becomes a dead letter.
`evaluate` gets the good rows and gives rows with the columns of the target, `_seq`, `_row`, and
where a row cannot be evaluated a `_reason`.

A step is a function from DataFrame to DataFrame, or an `ArrowStep`, which runs inside the task that
writes the files. Either way all of a batch is one Spark job, so a step may only describe rows: it
must not run anything itself, nor leave the session of the frame it was given.

Both must be functions of their rows alone: after a crash a batch is made again from the topic. An
`evaluate` that needs documents of a space as well is `Pinning`: it says before each batch which seq
of the space it goes by, and that is recorded in the commit of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from penstock.kernel.errors import Rejected, Unavailable
from penstock.spark.pipeline.space import Basis

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

Batches = Iterator[pa.RecordBatch]
Payload = Literal["json", "base64"]


@dataclass(frozen=True, slots=True)
class SideInput:
    """Tables that every task of a step needs, such as prices.

    They are written to the lake's storage once for each `version`. Each worker reads them once, and
    keeps what `load` makes of them.
    """

    version: str
    tables: Mapping[str, pa.Table]
    load: Callable[[Mapping[str, pa.Table]], Any]


@dataclass(frozen=True, slots=True)
class ArrowStep:
    """A step as a function over Arrow batches: `function(batches)`, or `(batches, loaded)`.

    It runs in the Python worker that writes the files, without a way through the JVM in between.
    `schema` is what it gives, with `_row` and `_reason`. The function is sent by its name, so it
    belongs to an importable module.
    """

    function: Callable[..., Batches]
    schema: pa.Schema
    side: SideInput | None = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The step as an operator of a plan, where what follows is not an Arrow step."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if self.side is not None:
            raise Rejected("an Arrow step with a side input can only be the last step")
        made: DataFrame = frame.mapInArrow(self.function, from_arrow_schema(self.schema))
        return made


Step = Callable[["DataFrame"], "DataFrame"] | ArrowStep


class Pinned(NamedTuple):
    """An `evaluate` for one batch, and the documents it is based on, if any."""

    evaluate: Step
    basis: Basis | None = None


class Pinning(Protocol):
    """An `evaluate` that uses documents of a space."""

    def pin(self) -> Pinned:
        """Pin the current documents. `Busy`, `Unavailable` and `OSError` mean: retry later."""
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
"""Messages on their way to Spark; `payload` is the record's data, as JSON text or as bytes."""

OWN: Final = ("_seq", "_row", "_reason")
"""Columns that belong to the pipeline and not to its tables."""

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


def raw_schema(payload: Payload) -> pa.Schema:
    """The columns of messages as `parse` gets them."""
    if payload == "json":
        return RAW
    return RAW.set(RAW.get_field_index("payload"), pa.field("payload", pa.binary()))


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
                f"a pipeline needs a topic and a target, not {self.raw_topic!r} and {self.target!r}"
            )
        if self.dead_letters in targets:
            raise Rejected(
                f"dead letters need a table of their own: {self.dead_letters!r} is a target"
            )
        if self.payload not in ("json", "base64"):
            raise Rejected(f"payload must be 'json' or 'base64', not {self.payload!r}")
        if self.horizon < 0:
            raise Rejected(f"horizon must be at least 0 records, not {self.horizon}")

    def pinned(self) -> Pinned:
        """What evaluates the next batch; `Busy` and `Unavailable` mean: retry later."""
        evaluate = self.evaluate
        if callable(evaluate):
            return Pinned(evaluate)
        try:
            return evaluate.pin()
        except OSError as error:  # of the author's own connection, for example
            raise Unavailable(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close connections for now; the next batch opens new ones."""
        if not callable(self.evaluate):
            self.evaluate.close()
