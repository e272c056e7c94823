"""What a task of a batch's job does: run the Arrow steps, write files, and report.

This runs in Spark's Python workers, as the last operator of the plan. A task writes the files of
every target table itself, under names that no other attempt has, and returns one report: which
files they are, how many rows went where, how long each stage took, and the rows that are dead
letters. Files count only if the report of the attempt that succeeded names them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from time import perf_counter_ns
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.lake.columns import Column
from penstock.lake.model import NewFile
from penstock.lake.parquet import write_file
from penstock.lake.storage import Storage
from penstock.spark.lake.types import for_lake
from penstock.spark.pipeline.definition import Batches

INPUT: Final = "input"
PARSE: Final = "parse"
EVALUATE: Final = "evaluate"
STORE: Final = "store"
STAGES: Final = (PARSE, EVALUATE, STORE)
FILE_BYTES: Final = 128 << 20
"""A task begins another file after so many bytes of rows."""
REPORT: Final = pa.schema([("report", pa.binary())])
_SIDES_MAX: Final = 3
"""Side inputs that a worker keeps: a batch may still go by the last one but one."""


class DeadRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that cannot be stored, and the stage that said so."""

    seq: int
    row: int | None
    stage: str
    reason: str


class TaskFailure(msgspec.Struct, frozen=True):
    """What ended a task's work, and in which stage. `is_io` says that trying again may help."""

    stage: str
    kind: str
    text: str
    is_io: bool


class TaskReport(msgspec.Struct):
    """What a task did with its rows; `files` name the target by its number."""

    rows_in: int = 0
    rows: int = 0
    files: list[tuple[int, NewFile]] = []
    dead: list[DeadRow] = []
    spent_ns: dict[str, int] = {}
    failure: TaskFailure | None = None


@dataclass(frozen=True, slots=True)
class TargetTable:
    """Where rows go: a table's directory and columns, and which columns of the rows it takes."""

    directory: str
    columns: tuple[Column, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SideFiles:
    """Where the tables of a side input lie, and what to make of them."""

    version: str
    paths: Mapping[str, str]
    load: Callable[[Mapping[str, pa.Table]], Any]


@dataclass(frozen=True, slots=True)
class TaskStep:
    """An Arrow step as tasks run it."""

    stage: str
    function: Callable[..., Batches]
    side: SideFiles | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of messages are looked for: some of a message, or all of it."""

    rows: frozenset[tuple[int, int | None]]
    messages: frozenset[int]

    def has(self, seq: int, row: int | None) -> bool:
        """Whether a row is looked for."""
        return seq in self.messages or (seq, row) in self.rows


@dataclass(frozen=True, slots=True)
class TaskWork:
    """What every task of a job has to do.

    `arrived` is the stage that rows with a `_reason` come from when they arrive here; the steps run
    behind it. `only` limits what is stored and reported.
    """

    root: str
    token: str | None
    targets: tuple[TargetTable, ...]
    arrived: str = EVALUATE
    steps: tuple[TaskStep, ...] = ()
    only: Wanted | None = None
    file_bytes: int = FILE_BYTES

    def __call__(self, batches: Batches) -> Batches:
        """For `mapInArrow`: rows in, one report out."""
        yield _Task(self).report(batches)
        _settle()


@cache
def _settle() -> None:
    """Exclude what this worker has loaded from collections, after its first task.

    Spark's workers collect all garbage after every task. With pyarrow, numpy and our modules that
    took 50 ms of a core each time, five times as long as a task of a small batch.
    """
    gc.collect()
    gc.freeze()


class Stopwatch:
    """Time by stage: while one waits for another, only the other's time runs."""

    def __init__(self, on: str) -> None:
        self.spent_ns: dict[str, int] = {}
        self.failed: str | None = None
        """The stage that an exception came out of."""
        self._on = on
        self._since = perf_counter_ns()

    def switch(self, to: str) -> str:
        """Run another stage's time from now on; returns the stage whose time ran."""
        now = perf_counter_ns()
        before, self._on = self._on, to
        self.spent_ns[before] = self.spent_ns.get(before, 0) + now - self._since
        self._since = now
        return before

    def timed(self, stage: str, batches: Batches) -> Batches:
        """The same batches; the time it takes to make them is that of a stage."""
        while True:
            before = self.switch(stage)
            try:
                batch = next(batches)
            except StopIteration:
                return
            except BaseException:
                self.failed = self.failed or stage
                raise
            finally:
                self.switch(before)
            yield batch


class _Task:
    """One attempt at a part of a batch."""

    def __init__(self, work: TaskWork) -> None:
        self._work = work
        self._watch = Stopwatch(STORE)
        self._made = TaskReport()

    def report(self, batches: Batches) -> pa.RecordBatch:
        made = self._made
        try:
            self._run(batches)
        except Exception as error:
            stage = self._watch.failed or STORE
            if stage == INPUT:
                raise  # Spark knows what it was
            made.failure = TaskFailure(
                stage, type(error).__name__, str(error), isinstance(error, OSError)
            )
        self._watch.switch(STORE)
        made.spent_ns = self._watch.spent_ns
        return pa.record_batch(
            [pa.array([msgspec.msgpack.encode(made)], pa.binary())], schema=REPORT
        )

    def _run(self, batches: Batches) -> None:
        work, watch = self._work, self._watch
        rows = self._gate(work.arrived, self._counted(watch.timed(INPUT, iter(batches))))
        for step in work.steps:
            rows = self._gate(step.stage, watch.timed(step.stage, self._applied(step, rows)))
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in rows:
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= work.file_bytes:
                self._write(held)
                held, held_bytes = [], 0
        self._write(held)

    def _counted(self, batches: Batches) -> Batches:
        for batch in batches:
            self._made.rows_in += batch.num_rows
            yield batch

    def _applied(self, step: TaskStep, rows: Batches) -> Batches:
        if step.side is None:
            return iter(step.function(rows))
        return iter(step.function(rows, loaded(self._work.root, step.side)))

    def _gate(self, stage: str, batches: Batches) -> Batches:
        """The good rows of a stage, without `_reason`; the others are dead."""
        for batch in batches:
            if "_reason" not in batch.schema.names:
                yield batch
                continue
            reasons = batch.column("_reason")
            if reasons.null_count < len(reasons):
                is_dead = pc.is_valid(reasons)
                self._bury(stage, batch.filter(is_dead))
                batch = batch.filter(pc.invert(is_dead))  # noqa: PLW2901
            if batch.num_rows:
                yield batch.drop_columns(["_reason"])

    def _bury(self, stage: str, dead: pa.RecordBatch) -> None:
        stages = [stage] * dead.num_rows
        if "_stage" in dead.schema.names:
            stages = dead.column("_stage").to_pylist()
        found = zip(_seqs(dead), _rows(dead), stages, dead["_reason"].to_pylist(), strict=True)
        only = self._work.only
        self._made.dead += [
            DeadRow(*each) for each in found if only is None or only.has(each[0], each[1])
        ]

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        rows = self._chosen(pa.Table.from_batches(batches)) if batches else None
        if rows is None or not rows.num_rows:
            return
        work = self._work
        storage = _storage(work.root)
        for number, target in enumerate(work.targets):
            part = for_lake(rows.select(target.names), target.columns)
            file = write_file(storage, target.directory, target.columns, part, token=work.token)
            self._made.files.append((number, file))
        self._made.rows += rows.num_rows

    def _chosen(self, rows: pa.Table) -> pa.Table:
        only = self._work.only
        if only is None:
            return rows
        found = zip(_seqs(rows), _rows(rows), strict=True)
        return rows.filter(pa.array([only.has(seq, row) for seq, row in found], pa.bool_()))


def read_report(data: bytes) -> TaskReport:
    """A report as a task sent it."""
    return msgspec.msgpack.decode(data, type=TaskReport)


def loaded(root: str, side: SideFiles) -> Any:
    """A side input, read once by each worker."""
    found = _SIDES.pop(side.version, None)
    if found is None:
        found = side.load({name: _table(root, path) for name, path in side.paths.items()})
    _SIDES[side.version] = found
    while len(_SIDES) > _SIDES_MAX:
        del _SIDES[next(iter(_SIDES))]
    return found


_SIDES: Final[dict[str, Any]] = {}


def _table(root: str, path: str) -> pa.Table:
    with _storage(root).open_input(path) as source:
        return pq.read_table(source)


@lru_cache(maxsize=4)
def _storage(root: str) -> Storage:
    return Storage(root)


def _seqs(rows: pa.RecordBatch | pa.Table) -> Iterator[int]:
    return iter(rows["_seq"].to_pylist())


def _rows(rows: pa.RecordBatch | pa.Table) -> Iterator[int | None]:
    if "_row" not in rows.schema.names:
        return iter([0] * rows.num_rows)
    return iter(rows["_row"].to_pylist())
