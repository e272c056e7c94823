"""Which failures a retry can fix, by the names that Spark and Penstock give them.

A failure is permanent if the query itself is wrong: it does not parse, names something missing, or
mixes types. An unreachable engine is not the fault of any table. Everything else may pass. Data
that a function rejects (a division by zero) may be gone with the next change, so it is retried and
eventually suspended.

>>> classify(EngineFailure("AnalysisException", condition="UNRESOLVED_COLUMN")).value
'permanent'
>>> classify(EngineFailure("SparkException", condition="FAILED_READ_FILE.NO_HINT")).value
'retryable'
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class FailureKind(StrEnum):
    """What a failure means for its table."""

    PERMANENT = "permanent"
    RETRYABLE = "retryable"
    COLLISION = "collision"
    AWAY = "away"

    @property
    def blameless(self) -> bool:
        """Whether it says nothing about the table: neither counted nor recorded in its history."""
        return self in (FailureKind.COLLISION, FailureKind.AWAY)


class EngineFailure(NamedTuple):
    """An error as data: its class name, and for Spark its condition and SQLSTATE."""

    error_class: str
    condition: str | None = None
    sql_state: str | None = None


PERMANENT: Final = FailureKind.PERMANENT
RETRYABLE: Final = FailureKind.RETRYABLE
COLLISION: Final = FailureKind.COLLISION
AWAY: Final = FailureKind.AWAY

CONDITIONS: Final = {
    # a missing name
    "CATALOG_NOT_FOUND": PERMANENT,
    "COLUMN_NOT_FOUND": PERMANENT,
    "FIELD_NOT_FOUND": PERMANENT,
    "ROUTINE_NOT_FOUND": PERMANENT,
    "SCHEMA_NOT_FOUND": PERMANENT,
    "TABLE_OR_VIEW_NOT_FOUND": PERMANENT,
    "UNRESOLVED_COLUMN": PERMANENT,
    "UNRESOLVED_FIELD": PERMANENT,
    "UNRESOLVED_MAP_KEY": PERMANENT,
    "UNRESOLVED_ROUTINE": PERMANENT,
    "UNRESOLVED_USING_COLUMN_FOR_JOIN": PERMANENT,
    "UNRESOLVABLE_TABLE_VALUED_FUNCTION": PERMANENT,
    # an ambiguous name
    "AMBIGUOUS_COLUMN_OR_FIELD": PERMANENT,
    "AMBIGUOUS_COLUMN_REFERENCE": PERMANENT,
    "AMBIGUOUS_LATERAL_COLUMN_ALIAS": PERMANENT,
    "AMBIGUOUS_REFERENCE": PERMANENT,
    "AMBIGUOUS_REFERENCE_TO_FIELDS": PERMANENT,
    "COLUMN_ALREADY_EXISTS": PERMANENT,
    # incompatible types or shapes
    "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE": PERMANENT,
    "DATATYPE_MISMATCH": PERMANENT,
    "INCOMPARABLE_PIVOT_COLUMN": PERMANENT,
    "INCOMPATIBLE_COLUMN_TYPE": PERMANENT,
    "INVALID_EXTRACT_BASE_FIELD_TYPE": PERMANENT,
    "INVALID_EXTRACT_FIELD_TYPE": PERMANENT,
    "NUM_COLUMNS_MISMATCH": PERMANENT,
    "UNEXPECTED_INPUT_TYPE": PERMANENT,
    "WRONG_NUM_ARGS": PERMANENT,
    # an invalid query
    "GROUP_BY_AGGREGATE": PERMANENT,
    "GROUP_BY_POS_OUT_OF_RANGE": PERMANENT,
    "INVALID_SUBQUERY_EXPRESSION": PERMANENT,
    "INVALID_WHERE_CONDITION": PERMANENT,
    "MISSING_AGGREGATION": PERMANENT,
    "MISSING_GROUP_BY": PERMANENT,
    "NESTED_AGGREGATE_FUNCTION": PERMANENT,
    "ORDER_BY_POS_OUT_OF_RANGE": PERMANENT,
    "PARSE_EMPTY_STATEMENT": PERMANENT,
    "PARSE_SYNTAX_ERROR": PERMANENT,
    "UNSUPPORTED_EXPR_FOR_OPERATOR": PERMANENT,
    "UNSUPPORTED_FEATURE": PERMANENT,
    "UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY": PERMANENT,
    # otherwise of a permanent class, but caused by the environment, not the query
    "CANNOT_LOAD_FUNCTION_CLASS": RETRYABLE,
    "INVALID_HANDLE": RETRYABLE,
    "PATH_NOT_FOUND": RETRYABLE,
    "UNABLE_TO_INFER_SCHEMA": RETRYABLE,
}
"""Spark's error conditions, without the part after the dot. Checked before anything else."""

ERROR_CLASSES: Final = {
    "AnalysisException": PERMANENT,
    "ParseException": PERMANENT,
    "SparkNoSuchElementException": RETRYABLE,
    "UnsupportedOperationException": PERMANENT,
    # Penstock's own errors, by what the caller should do next
    "CatalogAway": AWAY,
    "Corrupt": PERMANENT,
    "EngineAway": AWAY,
    "InvalidQuery": PERMANENT,
    "InvalidTable": PERMANENT,
    "LockHeld": COLLISION,
    "Rejected": PERMANENT,
    "TableNotFound": PERMANENT,
}
"""Error classes, for errors whose condition is not listed."""

_QUERY_IS_WRONG: Final = "42"
"""SQLSTATEs of this class are syntax errors and broken references."""


def classify(failure: EngineFailure) -> FailureKind:
    """Classify a failure: by condition, then SQLSTATE, then class; otherwise it is retryable."""
    condition = (failure.condition or "").partition(".")[0]
    if condition in CONDITIONS:
        return CONDITIONS[condition]
    if (failure.sql_state or "").startswith(_QUERY_IS_WRONG):
        return PERMANENT
    return ERROR_CLASSES.get(failure.error_class.rpartition(".")[2], RETRYABLE)
