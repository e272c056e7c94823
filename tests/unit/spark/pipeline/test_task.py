"""What a task does with its rows, without Spark around it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.lake.columns import columns_of
from penstock.lake.storage import Storage
from penstock.spark.lake.task_files import FilesDiffer
from penstock.spark.pipeline.store import checked_files
from penstock.spark.pipeline.task import (
    DeadRow,
    SideFiles,
    TargetTable,
    TaskReport,
    TaskStep,
    TaskWork,
    Wanted,
    loaded,
    read_report,
)

ROWS = pa.schema([("_seq", pa.int64()), ("_row", pa.int32()), ("_reason", pa.string()),
                  ("n", pa.int64())])  # fmt: skip
COLUMNS = columns_of(pa.schema([("n", pa.int64())]))


def rows(*numbers: int, bad: tuple[int, ...] = ()) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"_seq": n, "_row": 0, "_reason": "bad" if n in bad else None, "n": n} for n in numbers],
        schema=ROWS,
    )


def work(directory: Path, *steps: TaskStep, **more: Any) -> TaskWork:
    target = TargetTable(f"{directory}/t/", COLUMNS, ("n",))
    return TaskWork(str(directory), "token", (target,), steps=steps, **more)


def run(task: TaskWork, *batches: pa.RecordBatch) -> TaskReport:
    (found,) = task(iter(batches))
    return read_report(found["report"][0].as_py())


def held(report: TaskReport) -> list[int]:
    return [n for _, file in report.files for n in pq.read_table(file.path)["n"].to_pylist()]


def test_good_rows_are_written_and_bad_ones_reported_with_the_stage_they_come_from(
    tmp_path: Path,
) -> None:
    def evens_are_bad(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert "_reason" not in batch.schema.names
            seqs = batch["_seq"].to_pylist()
            yield rows(*seqs, bad=tuple(n for n in seqs if n % 2 == 0))

    task = work(tmp_path, TaskStep("evaluate", evens_are_bad), arrived="parse")
    report = run(task, rows(1, 2, 3, bad=(3,)), rows(4, 5))
    assert (report.rows_in, report.rows) == (5, 2)
    assert held(report) == [1, 5]
    assert report.dead == [
        DeadRow(3, 0, "parse", "bad"), DeadRow(2, 0, "evaluate", "bad"),
        DeadRow(4, 0, "evaluate", "bad"),
    ]  # fmt: skip


def test_a_task_without_rows_reports_that_and_writes_nothing(tmp_path: Path) -> None:
    report = run(work(tmp_path))
    assert (report.rows_in, report.rows, report.files, report.failure) == (0, 0, [], None)


def test_a_task_begins_another_file_when_one_is_large(tmp_path: Path) -> None:
    report = run(work(tmp_path, file_bytes=1), rows(1, 2), rows(3))
    assert len(report.files) == 2
    assert held(report) == [1, 2, 3]


def test_only_what_is_looked_for_is_stored_and_reported(tmp_path: Path) -> None:
    wanted = Wanted(frozenset({(1, 0), (3, 0)}), frozenset({4}))
    report = run(work(tmp_path, only=wanted), rows(1, 2, 3, 4, 5, bad=(3, 5)))
    assert held(report) == [1, 4]
    assert [row.seq for row in report.dead] == [3]


@pytest.mark.parametrize("slow", ["parse", "evaluate", "store"])
def test_the_time_of_each_stage_is_its_own(
    tmp_path: Path, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.pipeline import task

    def step(stage: str) -> TaskStep:
        def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if stage == slow:
                    spin()
                yield batch

        return TaskStep(stage, function)

    if slow == "store":
        true = task.write_file
        monkeypatch.setattr(task, "write_file", lambda *a, **k: (spin(), true(*a, **k))[1])
    report = run(work(tmp_path, step("parse"), step("evaluate")), rows(1), rows(2))
    assert max(("parse", "evaluate", "store"), key=report.spent_ns.__getitem__) == slow


def spin() -> None:
    """Take 50 ms of time."""
    end_ns = time.perf_counter_ns() + 50_000_000
    while time.perf_counter_ns() < end_ns:
        pass


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise ValueError("no such thing")
    yield from ()


@pytest.mark.parametrize("stage", ["parse", "evaluate"])
def test_an_exception_says_which_stage_it_came_from(tmp_path: Path, stage: str) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    steps = [TaskStep(each, fails if each == stage else same) for each in ("parse", "evaluate")]
    failure = run(work(tmp_path, *steps), rows(1)).failure
    assert failure is not None
    assert (failure.stage, failure.kind, failure.text) == (stage, "ValueError", "no such thing")
    assert not failure.is_io


def test_a_disk_that_cannot_be_written_is_the_store_and_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("not a directory")
    failure = run(work(tmp_path), rows(1)).failure
    assert failure is not None
    assert (failure.stage, failure.is_io) == ("store", True)


def test_what_breaks_before_the_task_is_left_to_spark(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        raise EOFError("the JVM is gone")
        yield

    with pytest.raises(EOFError):
        list(work(tmp_path)(broken()))


def test_a_side_input_is_read_once_for_each_version(tmp_path: Path) -> None:
    path = str(tmp_path / "side.parquet")
    pq.write_table(pa.table({"price": [7]}), path)
    loads: list[int] = []

    def load(tables: Any) -> int:
        loads.append(1)
        return int(tables["prices"]["price"][0].as_py())

    def add(batches: Iterator[pa.RecordBatch], price: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield rows(*(n + price for n in batch["n"].to_pylist()))

    for version in ("one", "one", "two"):
        side = SideFiles(f"{tmp_path}:{version}", {"prices": path}, load)
        assert held(run(work(tmp_path, TaskStep("evaluate", add, side)), rows(1))) == [8]
    assert len(loads) == 2
    for number in range(9):
        loaded(str(tmp_path), SideFiles(f"{tmp_path}:{number}", {"prices": path}, load))
    loaded(str(tmp_path), SideFiles(f"{tmp_path}:one", {"prices": path}, load))
    assert len(loads) == 12, "only the last few are kept"


def checked(directory: Path, *reports: TaskReport) -> int:
    storage = Storage(str(directory))
    return len(checked_files(storage, work(directory).targets, reports))


def test_files_that_are_what_tasks_wrote_are_taken(tmp_path: Path) -> None:
    task = work(tmp_path)
    assert checked(tmp_path, run(task, rows(1, 2)), run(task, rows(3)), run(task)) == 2


def test_files_that_are_not_what_tasks_wrote_are_refused(tmp_path: Path) -> None:
    report = run(work(tmp_path), rows(1, 2))
    ((_, file),) = report.files
    with pytest.raises(FilesDiffer, match="tasks wrote 4 rows, the files here hold 4"):
        checked(tmp_path, report, report)
    report.rows = 3
    with pytest.raises(FilesDiffer, match="tasks wrote 3 rows, the files here hold 2"):
        checked(tmp_path, report)
    report.rows = 2
    other = run(work(tmp_path), rows(7, 8, 9))
    Path(file.path).write_bytes(Path(other.files[0][1].path).read_bytes())
    with pytest.raises(FilesDiffer, match="this file differs"):
        checked(tmp_path, report)
    Path(file.path).write_bytes(b"PAR1")
    with pytest.raises(FilesDiffer, match="is not here"):
        checked(tmp_path, report)
    Path(file.path).unlink()
    with pytest.raises(FilesDiffer, match="is not here"):
        checked(tmp_path, report)


def test_a_file_with_a_planted_wrong_id_is_refused(tmp_path: Path) -> None:
    wrong = columns_of(pa.schema([("n", pa.int64())]), 99)
    target = TargetTable(f"{tmp_path}/t/", wrong, ("n",))
    report = run(TaskWork(str(tmp_path), "token", (target,)), rows(1))
    with pytest.raises(Exception, match="internal error: expected column 'n'"):
        checked(tmp_path, report)


def test_a_file_outside_of_its_table_is_refused(tmp_path: Path) -> None:
    target = TargetTable(f"{tmp_path}/other/", COLUMNS, ("n",))
    report = run(TaskWork(str(tmp_path), "token", (target,)), rows(1))
    with pytest.raises(FilesDiffer, match="lies outside"):
        checked(tmp_path, report)
