"""Spark's SQL, read so that what is written again means the same.

sqlglot turns functions that it knows into its own terms, and writes some of them back as another
function: `to_char(x, format)` as a cast, `percentile_cont` as an approximation. Those are read as
calls by name, which are written as they were.
"""

from __future__ import annotations

from typing import Final

from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

_BY_NAME: Final = frozenset(
    {
        "CURRENT_CATALOG", "INSTR", "LISTAGG", "MAX_BY", "MIN_BY", "PARSE_JSON", "PERCENTILE_CONT",
        "PERCENTILE_DISC", "STRING_AGG", "TO_CHAR", "TO_VARCHAR", "UNIX_DATE",
    }
)  # fmt: skip


class ExactSpark(Spark):
    """Spark's dialect without what is lost on the way back."""

    class Parser(SparkParser):
        FUNCTIONS = {  # noqa: RUF012 - as sqlglot declares it
            name: build for name, build in SparkParser.FUNCTIONS.items() if name not in _BY_NAME
        }
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parse
            for name, parse in SparkParser.FUNCTION_PARSERS.items()
            if name not in _BY_NAME
        }
