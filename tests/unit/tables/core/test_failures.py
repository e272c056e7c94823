from __future__ import annotations

import pytest

from penstock.tables.core.failures import Failure, FailureKind, classify


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure("AnalysisException", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703"), "permanent"),
        (Failure("AnalysisException", "TABLE_OR_VIEW_NOT_FOUND", "42P01"), "permanent"),
        (Failure("AnalysisException", "DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES"), "permanent"),
        (Failure("pyspark.errors.exceptions.captured.AnalysisException"), "permanent"),
        (Failure("ParseException", "PARSE_SYNTAX_ERROR", "42601"), "permanent"),
        (Failure("SparkException", "SOMETHING_NEW", "42ABC"), "permanent"),
        (Failure("AnalysisException", "PATH_NOT_FOUND", "42K03"), "retryable"),
        (Failure("SparkArithmeticException", "DIVIDE_BY_ZERO", "22012"), "retryable"),
        (Failure("SparkException", "FAILED_READ_FILE.NO_HINT", "KD001"), "retryable"),
        (Failure("SparkConnectGrpcException"), "retryable"),
        (Failure("OSError"), "retryable"),
        (Failure("Conflict"), "retryable"),
        (Failure("Busy"), "retryable"),
        (Failure("Rejected"), "permanent"),
        (Failure("LockHeld"), "collision"),
        (Failure("EngineAway"), "away"),
    ],
)
def test_a_failure_is_permanent_only_if_the_query_is_wrong(failure, kind):
    assert classify(failure) is FailureKind(kind)
