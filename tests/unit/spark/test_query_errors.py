"""Texts of Spark as one line: no plan, no stack, and the cause that counts."""

from __future__ import annotations

import pytest

from penstock.spark.lake.views import bind
from penstock.spark.query_errors import QueryFailed, lost, one_line, said
from penstock.tables.core.failures import FailureKind
from penstock.tables.worker.outcomes import kind_of

STACK = (
    "\n\nJVM stacktrace:\norg.apache.spark.SparkException\n\tat org.apache.spark.Thing(A.scala:1)"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` instead. If necessary set "
         '"spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n'
         "== SQL (line 1, position 8) ==\nSELECT 1/0\n       ^^^" + STACK,
         "Division by zero. Use `try_divide` instead."),
        ("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file a.parquet.  SQLSTATE: "
         "KD001" + STACK + "\nCaused by: java.io.IOException: outer\n\tat a.B(C:1)\n"
         "Caused by: java.lang.RuntimeException: corrupted file: the footer is wrong",
         "Encountered error while reading file a.parquet: corrupted file: the footer is wrong"),
        ("\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
         "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most "
         'recent call last):\n  File "x.py", line 1, in f\n    raise ValueError("no luck")\n'
         "ValueError: no luck\n SQLSTATE: 38000" + STACK,
         "ValueError: no luck"),
        ("(java.lang.OutOfMemoryError) Java heap space" + STACK, "Java heap space"),
        ('[MISSING_ATTRIBUTES] Resolved attribute(s) "k" missing from [k#16, v#17L].',
         'Resolved attribute(s) "k" missing from [k, v].'),
        ("", "Exception"),
    ],
)  # fmt: skip
def test_a_text_of_spark_is_told_without_plan_stack_and_advice(text: str, line: str) -> None:
    assert one_line(Exception(text)) == line


def test_a_place_is_that_of_the_query_as_it_was_written() -> None:
    from pyspark.errors import AnalysisException

    query = "SELECT sales.t.a,\n  b + c\nFROM sales.t\nWHERE zz"
    bound = bind(query)
    at = bound.query.index("zz")
    line = bound.query.count("\n", 0, at) + 1
    pos = at - (bound.query.rindex("\n", 0, at) + 1)
    error = AnalysisException(f"[THING] Wrong. SQLSTATE: 42000; line {line} pos {pos};")
    told = said(error, query, bound)
    assert told is not None
    assert told.message == "Wrong (line 4, column 7)"
    assert kind_of(told) is FailureKind.PERMANENT
    for piece in ("sales.t.a", "b + c", "zz", "sales.t\n"):
        assert bound.original(bound.query.rindex(piece[-1])) >= 0
    assert bound.original(bound.query.index("b + c")) == query.index("b + c")
    assert bound.original(at) == query.index("zz")


def test_an_error_that_is_not_spark_s_is_left_as_it_is() -> None:
    assert said(ValueError("x"), "SELECT 1") is None


def test_a_spark_that_went_away_is_told_with_the_reason_if_it_is_known() -> None:
    assert "memory_mb" in lost("… java.lang.OutOfMemoryError: Java heap space").message
    assert "went away" in lost("").message
    assert kind_of(QueryFailed("x")) is FailureKind.RETRYABLE
