from __future__ import annotations

import pytest

from penstock.tables.core.failures import EngineFailure, FailureKind, classify


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (
            EngineFailure("AnalysisException", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703"),
            "permanent",
        ),
        (EngineFailure("AnalysisException", "TABLE_OR_VIEW_NOT_FOUND", "42P01"), "permanent"),
        (EngineFailure("AnalysisException", "DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES"), "permanent"),
        (EngineFailure("pyspark.errors.exceptions.captured.AnalysisException"), "permanent"),
        (EngineFailure("ParseException", "PARSE_SYNTAX_ERROR", "42601"), "permanent"),
        (EngineFailure("SparkException", "SOMETHING_NEW", "42ABC"), "permanent"),
        (EngineFailure("AnalysisException", "PATH_NOT_FOUND", "42K03"), "retryable"),
        (EngineFailure("SparkArithmeticException", "DIVIDE_BY_ZERO", "22012"), "retryable"),
        (EngineFailure("SparkException", "FAILED_READ_FILE.NO_HINT", "KD001"), "retryable"),
        (EngineFailure("SparkConnectGrpcException"), "retryable"),
        (EngineFailure("OSError"), "retryable"),
        (EngineFailure("Conflict"), "retryable"),
        (EngineFailure("Busy"), "retryable"),
        (EngineFailure("Rejected"), "permanent"),
        (EngineFailure("LockHeld"), "collision"),
        (EngineFailure("EngineAway"), "away"),
        (EngineFailure("EngineLost"), "lost"),
    ],
)
def test_a_failure_is_permanent_only_if_the_query_is_wrong(failure, kind):
    assert classify(failure) is FailureKind(kind)
