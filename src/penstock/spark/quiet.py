"""pyspark's own voice, turned off: what it would say stands in the errors that it raises."""

from __future__ import annotations

import logging
import warnings
from typing import Final

_LOGGERS: Final = (
    "SQLQueryContextLogger",
    "DataFrameQueryContextLogger",
    "pyspark.sql.connect.logging",
)


def silence() -> None:
    """Let pyspark write nothing to standard error in this process. Idempotent."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"pyspark\..*")
