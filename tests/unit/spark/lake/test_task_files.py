"""Files that are here against the rows that Spark's tasks say they wrote."""

from __future__ import annotations

import pytest

from penstock.lake.model import NewFile
from penstock.spark.lake.task_files import FilesDiffer, check_complete
from penstock.tables.core.failures import FailureKind
from penstock.tables.worker.outcomes import kind_of


def part(task: int, rows: int, name: str = "c000") -> NewFile:
    return NewFile(f"/lake/t/penstock-x/part-{task:05d}-abc-{name}.zstd.parquet", rows, 9, 9, ())


def test_as_many_rows_as_were_told_are_complete() -> None:
    check_complete(30, [part(0, 10), part(3, 20)], "/lake/t/penstock-x/")
    check_complete(0, [part(0, 0)], "/lake/t/penstock-x/")
    check_complete(0, [], "/lake/t/penstock-x/")
    check_complete(5, [part(0, 0), part(1, 5)], "/lake/t/penstock-x/")


@pytest.mark.parametrize(
    ("told", "files", "said"),
    [
        (30, [part(0, 10)], "wrote 30 rows, but the 1 files of 1 tasks at /d/ hold 10"),
        (30, [], "wrote 30 rows, but the 0 files of 0 tasks at /d/ hold 0"),
        (10, [part(0, 10), part(1, 1)], "the 2 files of 2 tasks at /d/ hold 11"),
        (20, [part(0, 10), part(0, 10, "again")], "the 2 files of 1 tasks at /d/ hold 20"),
        (9, [part(0, 10)], "wrote 9 rows"),
    ],
)
def test_any_difference_is_refused_and_may_pass(told: int, files: list[NewFile], said: str) -> None:
    with pytest.raises(FilesDiffer, match="nothing was committed") as caught:
        check_complete(told, files, "/d/")
    assert said in caught.value.message
    assert kind_of(caught.value) is FailureKind.RETRYABLE
