"""The plan of a batch's job: messages, parse, evaluate, and the tasks that write, in one chain.

| parse | evaluate | the plan |
|---|---|---|
| Arrow | Arrow | messages ▸ [parse ▸ evaluate ▸ write] |
| frame | Arrow | messages ▸ parse ▸ [evaluate ▸ write] |
| any | frame | messages ▸ parse ▸ evaluate ▸ [write] |

What is in brackets is one operator in a Python worker. Rows that a `parse` in front of a frame's
`evaluate` calls bad never reach that function; the plan counts and collects them on their way
(`DataFrame.observe`).

Spark is asked what columns a step gives once in a session, before the first batch.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from penstock.kernel.errors import Busy, PenstockError, Rejected, Unavailable
from penstock.kernel.units import MIB
from penstock.spark.errors import is_lost
from penstock.spark.lake.collect import arriving
from penstock.spark.lake.types import arrived_schema, lake_schema
from penstock.spark.pipeline.definition import (
    OWN,
    ArrowStep,
    Batches,
    Pipeline,
    Step,
    raw_schema,
)
from penstock.spark.pipeline.task import (
    EVALUATE,
    INPUT,
    PARSE,
    REPORT,
    STORE,
    DeadRow,
    TaskFailure,
    TaskReport,
    TaskWork,
    read_report,
)
from penstock.spark.topics.http import TopicMissing

if TYPE_CHECKING:
    from pyspark.sql.connect.column import Column
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.observation import Observation
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

INLINE_BYTES_MAX: Final = 32 * MIB
"""Up to so many bytes of messages travel inside the plan; more are sent before it, in pieces."""
TASK_BYTES_MIN: Final = 256 << 10
"""A task is not worth starting for fewer bytes of messages."""
SAMPLE_MS: Final = 5_000
"""How often the share of parse in the time of frames is measured again."""
_SPENT: Final = "_spent_ns"


class NotChainable(Rejected):
    """A step does more than describe rows, so it cannot be part of a batch's job."""

    code = "not_chainable"


class StageFailed(PenstockError):
    """A batch could not be processed; `stage` says in which stage, the text says why."""

    code = "stage_failed"

    def __init__(self, stage: str, text: str, *, is_io: bool = False) -> None:
        super().__init__(f"{stage}: {text}", stage=stage)
        self.stage = stage
        self.is_io = is_io


class StepFailed(StageFailed):
    """A step's own code failed where it says what to do, before any row was looked at."""

    code = "step_failed"


@dataclass(slots=True)
class JobResult:
    """What came of a batch: reports of tasks, dead rows, and the time of each stage."""

    reports: list[TaskReport]
    dead: list[DeadRow]
    spent_ns: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many good rows the tasks wrote."""
        return sum(report.rows for report in self.reports)


class Chain:
    """The jobs of one pipeline on one session. For one thread."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self.spark = spark
        self._pipeline = pipeline
        self._columns: dict[str, frozenset[str]] = {}
        self._schemas: dict[str, StructType] = {}
        self._parse_share = 0.5
        """The part of parse in the time that frames take, as last measured."""
        self._sampled_ms: float | None = None

    def check(self) -> None:
        """Refuse steps that cannot be chained.

        An `evaluate` whose documents cannot be had now is looked at with its first batch.
        """
        pipeline, evaluate = self._pipeline, self._evaluate_now()
        is_frame = evaluate is not None and not isinstance(evaluate, ArrowStep)
        if self._is_whole and not is_frame:
            return
        raw = self._raw(raw_schema(pipeline.payload).empty_table())
        parsed = self._stepped(PARSE, pipeline.parse, raw)
        if evaluate is not None and is_frame:
            self._evaluated(parsed, evaluate)

    def _evaluate_now(self) -> Step | None:
        with suppress(Busy, Unavailable, TopicMissing), in_stage(EVALUATE):
            return self._pipeline.pinned().evaluate
        return None

    def schema(self, evaluate: Step) -> pa.Schema:
        """The columns that a batch gives, in types of the lake, without those of the pipeline."""
        if isinstance(evaluate, ArrowStep):
            found = arrived_schema(evaluate.schema)
        else:
            raw = self._raw(raw_schema(self._pipeline.payload).empty_table())
            made = self._evaluated(self._stepped(PARSE, self._pipeline.parse, raw), evaluate)
            found = lake_schema(made.schema)
        return pa.schema([each for each in found if each.name not in OWN])

    def begin(self, messages: pa.Table) -> DataFrame:
        """Messages on their way: parsed already, unless that is done where evaluate is."""
        raw = self._raw(messages)
        return raw if self._is_whole else self._stepped(PARSE, self._pipeline.parse, raw)

    def run(self, begun: DataFrame, evaluate: Step, work: TaskWork) -> JobResult:
        """Run the job of a batch to its end. `work` has the Arrow steps, as tasks find them.

        `StageFailed` says which stage broke; nothing of the batch counts then.
        """
        began_ns = monotonic_ns()
        plan = self._planned(begun, evaluate, work)
        try:
            reports = _arrived(plan.frame)
        except Exception as error:
            if is_lost(error) or isinstance(error, PenstockError):
                raise
            raise self._explained(error, begun, evaluate) from error
        check_failures(report.failure for report in reports)
        dead = [row for report in reports for row in report.dead] + plan.dead(work)
        took_ns = monotonic_ns() - began_ns
        return JobResult(reports, dead, self._times(reports, took_ns, plan))

    def steps(self, evaluate: Step) -> list[tuple[str, ArrowStep]]:
        """The Arrow steps that tasks run before they write, with their stages."""
        if not isinstance(evaluate, ArrowStep):
            return []
        parse = self._pipeline.parse
        first = [(PARSE, parse)] if self._is_whole and isinstance(parse, ArrowStep) else []
        return [*first, (EVALUATE, evaluate)]

    @property
    def _is_whole(self) -> bool:
        """Whether tasks parse and evaluate, so that plans have no frame of a user's."""
        pipeline = self._pipeline
        is_frame = callable(pipeline.evaluate) and not isinstance(pipeline.evaluate, ArrowStep)
        return isinstance(pipeline.parse, ArrowStep) and not is_frame

    # the plan

    def _raw(self, messages: pa.Table) -> DataFrame:
        """Messages as a frame, in as many parts as are worth a task."""
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.plan import LocalRelation

        if messages.nbytes > INLINE_BYTES_MAX:
            frame: DataFrame = self.spark.createDataFrame(messages)
        else:
            # As `createDataFrame` does, without asking the server for settings each time.
            frame = DataFrame(LocalRelation(messages), self.spark)
        return self._known(INPUT, frame.coalesce(max(1, messages.nbytes // TASK_BYTES_MIN)))

    def _known(self, what: str, frame: DataFrame) -> DataFrame:
        """The same frame with its schema: the server is asked for it once, not for every batch.

        To describe a step over Arrow batches pyspark needs the names of its input, and would send
        the plan, with all its messages, to ask for them.
        """
        if what not in self._schemas:
            self._schemas[what] = frame.schema
        frame._cached_schema = self._schemas[what]
        return frame

    def _planned(self, begun: DataFrame, evaluate: Step, work: TaskWork) -> _Plan:
        if not isinstance(evaluate, ArrowStep):
            parsed = self._stepped(PARSE, self._pipeline.parse, begun) if self._is_whole else begun
            return self._framed(parsed, evaluate, work)
        begun = begun if self._is_whole else self._known(PARSE, begun)
        return _Plan(_reported(begun, replace(work, arrived=PARSE)))

    def _framed(self, parsed: DataFrame, evaluate: Step, work: TaskWork) -> _Plan:
        """A plan whose `evaluate` is a frame's: bad rows of `parse` are observed on their way."""
        from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name
        from pyspark.sql.connect.observation import Observation

        observed = Observation(f"penstock_{uuid4().hex}")
        bad = "IF(_reason IS NULL, NULL, struct(_seq, _row, _reason))"
        metrics = [F.expr(f"collect_list({bad})").alias("rows")]
        is_sampled = self._is_sample_due()
        if is_sampled:
            parsed = self._known("timed", parsed)
            parsed = parsed.mapInArrow(pass_timed, _timed(parsed.schema))
            metrics.append(F.sum(_SPENT).alias("spent_ns"))
        parsed = _observed(parsed, observed, metrics)
        if is_sampled:
            parsed = parsed.drop(_SPENT)
        made = self._known(EVALUATE, self._evaluated(parsed, evaluate))
        return _Plan(_reported(made, work), observed)

    def _evaluated(self, parsed: DataFrame, evaluate: Step) -> DataFrame:
        return self._stepped(EVALUATE, evaluate, parsed.where("_reason IS NULL").drop("_reason"))

    def _stepped(self, stage: str, step: Step, frame: DataFrame) -> DataFrame:
        """What a step makes of a frame, with `_row` and `_reason`, which it may have left out."""
        from pyspark.sql.connect import functions as F  # noqa: N812

        with in_stage(stage):
            if stage in self._columns:
                made = step(frame)
            else:
                made = _checked(stage, step, frame)
                self._columns[stage] = frozenset(made.columns)
        columns = self._columns[stage]
        if "_seq" not in columns:
            found = ", ".join(sorted(columns)) or "none"
            raise Rejected(f"{stage} must keep the column _seq; it gives {found}")
        if "_row" not in columns:
            made = made.withColumn("_row", F.lit(0))
        if "_reason" not in columns:
            made = made.withColumn("_reason", F.lit(None).cast("string"))
        return made

    # times

    def _is_sample_due(self) -> bool:
        now_ms = monotonic_ns() / 1e6
        is_due = self._sampled_ms is None or now_ms - self._sampled_ms >= SAMPLE_MS
        if is_due:
            self._sampled_ms = now_ms
        return is_due

    def _times(self, reports: list[TaskReport], took_ns: int, plan: _Plan) -> dict[str, int]:
        """How long each stage took, out of the time from the start of the job to its end.

        Tasks run side by side, so their mean counts. Parse begins with the job: what a job costs
        before and around its tasks is its.
        """
        spent = dict.fromkeys((INPUT, PARSE, EVALUATE, STORE), 0)
        for report in reports:
            for stage, stage_ns in report.spent_ns.items():
                spent[stage] += stage_ns // len(reports)
        if plan.observed is not None:
            spent_ns = plan.observed.get.get("spent_ns")
            if spent_ns is not None and spent[INPUT]:
                self._parse_share = min(1.0, int(spent_ns) / len(reports) / spent[INPUT])
            spent[EVALUATE] += int((1 - self._parse_share) * spent[INPUT])
        made = {stage: spent[stage] for stage in (EVALUATE, STORE)}
        return {PARSE: max(0, took_ns - sum(made.values())), **made}

    def _explained(self, error: Exception, begun: DataFrame, evaluate: Step) -> Exception:
        """Which step an error of Spark's own came from: parse, if parse alone fails too."""
        if (self._is_whole and isinstance(evaluate, ArrowStep)) or _is_canceled(error):
            return error
        stage = PARSE
        if not isinstance(evaluate, ArrowStep):
            try:
                tried = begun.mapInArrow(swallow, "n BIGINT")
                for _ in arriving(tried, bytes_max=None).batches():
                    stage = EVALUATE
            except Exception as found:
                if is_lost(found):
                    return found
        return StageFailed(stage, f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class _Plan:
    """A job's plan, and what it observes beside its result."""

    frame: DataFrame
    observed: Observation | None = None

    def dead(self, work: TaskWork) -> list[DeadRow]:
        """Rows that parse called bad and evaluate never saw; a task that ran twice told twice."""
        if self.observed is None:
            return []
        told = self.observed.get
        if "rows" not in told:
            raise StageFailed(PARSE, "Spark did not say which rows are bad; nothing was committed")
        rows = told["rows"] or ()
        found = dict.fromkeys((row["_seq"], row["_row"], row["_reason"]) for row in rows)
        only = work.only
        return [DeadRow(seq, row, PARSE, reason) for seq, row, reason in found
                if only is None or only.has(seq, row)]  # fmt: skip


def pass_timed(batches: Batches) -> Batches:
    """The same rows; the first of each batch says how long the batch was waited for."""
    while True:
        began_ns = perf_counter_ns()
        batch = next(batches, None)
        if batch is None:
            return
        spent = np.zeros(batch.num_rows, np.int64)
        if len(spent):
            spent[0] = perf_counter_ns() - began_ns
        yield batch.append_column(pa.field(_SPENT, pa.int64()), pa.array(spent))


def swallow(batches: Batches) -> Batches:
    """Take all rows with all their columns, and give none."""
    for _ in batches:
        pass
    yield from ()


def check_failures(failures: Iterable[TaskFailure | None]) -> None:
    """Raise what tasks say went wrong, if anything did."""
    for failure in failures:
        if failure is not None:
            text = f"{failure.kind}: {failure.text}"
            raise StageFailed(failure.stage, text, is_io=failure.is_io)


def job_reports(rows: DataFrame, work: TaskWork) -> list[TaskReport]:
    """Run a job whose tasks only write; `rows` know their schema. `StageFailed` if one failed."""
    reports = _arrived(_reported(rows, work))
    check_failures(report.failure for report in reports)
    return reports


def _arrived(frame: DataFrame) -> list[TaskReport]:
    batches = arriving(frame, bytes_max=None, resumable=False).batches()
    return [read_report(row) for batch in batches for row in batch.column("report").to_pylist()]


def _is_canceled(error: Exception) -> bool:
    return "OPERATION_CANCELED" in str(error)[:1_000]


def _reported(frame: DataFrame, work: TaskWork) -> DataFrame:
    made: DataFrame = frame.mapInArrow(work, _report_schema())
    return made


def _observed(frame: DataFrame, observed: Observation, metrics: list[Column]) -> DataFrame:
    """As `observe` does, without asking the server first whether the frame is a stream."""
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import CollectMetrics

    observed._result = {}
    return DataFrame(CollectMetrics(frame._plan, observed, metrics), frame.sparkSession)


@cache
def _report_schema() -> StructType:
    """Not as text, which the server would have to be asked about."""
    from pyspark.sql.pandas.types import from_arrow_schema

    found: StructType = from_arrow_schema(REPORT)
    return found


def _timed(parsed: StructType) -> StructType:
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([*parsed.fields, StructField(_SPENT, LongType())])


@contextmanager
def in_stage(stage: str) -> Iterator[None]:
    """What is wrong with a step of a user's is told with its stage."""
    from pyspark.errors import SessionNotSameException

    try:
        yield
    except SessionNotSameException as error:
        raise NotChainable(f"{stage} uses a DataFrame of another session: {_ITS_FRAME}") from error
    except Exception as error:
        if is_lost(error) or isinstance(error, PenstockError):
            raise
        raise StepFailed(stage, f"{type(error).__name__}: {error}") from error


def _checked(stage: str, step: Step, frame: DataFrame) -> DataFrame:
    """Call a step under watch: it may describe rows, and nothing else."""
    from pyspark.sql.connect.dataframe import DataFrame

    with _describing(stage, frame.sparkSession):
        made = step(frame)
    if not isinstance(made, DataFrame):
        raise NotChainable(
            f"{stage} must return a DataFrame of Spark Connect, not {type(made).__name__}"
        )
    if made.sparkSession is not frame.sparkSession:
        raise NotChainable(f"{stage} returned a DataFrame of another session: {_ITS_FRAME}")
    if made.isStreaming:
        raise NotChainable(f"{stage} returned a streaming DataFrame: {_ITS_FRAME}")
    return made


_ITS_FRAME: Final = "build it from the frame it is given"


@contextmanager
def _describing(stage: str, spark: SparkSession) -> Iterator[None]:
    """Refuse a query or a write in the middle of a step: a batch is one job."""
    client: Any = spark.client
    thread = threading.get_ident()

    def watched(true: Callable[..., Any], is_action: Callable[[Any], bool]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            asked = args[0] if args else kwargs.get("method")
            if threading.get_ident() == thread and is_action(asked):
                raise NotChainable(
                    f"{stage} runs a query of its own (collect, count, write, cache, checkpoint, "
                    "…): it must only describe rows, as all of a batch is one Spark job"
                )
            return true(*args, **kwargs)

        return call

    names: dict[str, Callable[[Any], bool]] = {
        "_execute_and_fetch_as_iterator": _is_action, "_execute": _is_action,
        "_analyze": "persist".__eq__,
    }  # fmt: skip
    for name, is_action in names.items():
        setattr(client, name, watched(getattr(client, name), is_action))
    try:
        yield
    finally:
        for name in names:
            delattr(client, name)


_ACTIONS: Final = frozenset((
    "write_operation", "write_operation_v2", "write_stream_operation_start", "checkpoint_command",
    "merge_into_table_command", "ml_command", "execute_external_command",
))  # fmt: skip
_SQL_ACTION: Final = re.compile(
    r"\s*(INSERT|MERGE|UPDATE|DELETE|TRUNCATE|CACHE|(CREATE\s+|OR\s+|REPLACE\s+)+TABLE)\b",
    re.IGNORECASE,
)
"""Spark runs these at once; a SELECT is only described, and a view or a setting runs nothing."""


def _is_action(request: Any) -> bool:
    plan = request.plan
    if plan.WhichOneof("op_type") != "command":
        return bool(plan.WhichOneof("op_type") == "root")
    command = plan.command
    if command.WhichOneof("command_type") != "sql_command":
        return command.WhichOneof("command_type") in _ACTIONS
    given = command.sql_command.input
    sql = given.with_relations.root.sql if given.HasField("with_relations") else given.sql
    return _SQL_ACTION.match(sql.query) is not None
