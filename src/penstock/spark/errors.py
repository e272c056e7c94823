"""Errors of the Spark side, in the kernel's error groups."""

from __future__ import annotations

from typing import Final

from penstock.kernel.errors import Rejected, Unavailable

_LOST: Final = ("INVALID_HANDLE", "SESSION_")
_GONE: Final = ("UNAVAILABLE", "SparkContext was shut down", "stopped SparkContext")
"""What errors say where the Spark behind a session has ended."""


class SparkMissing(Unavailable):
    """Spark cannot be used here: a package or Java is not installed."""

    code = "spark_missing"


class SparkNotStarted(Unavailable):
    """Spark's JVM ended or did not respond; the message ends with its last output."""

    code = "spark_not_started"


class UnsharedType(Rejected):
    """A column's type is known to only one of Spark and the lake."""

    code = "unshared_type"


class FilesNotShared(Rejected):
    """Executors of a Spark have other files at the lake's paths than this machine."""

    code = "files_not_shared"


def is_lost(error: BaseException) -> bool:
    """Whether an error says that the session, or the Spark behind it, is gone."""
    if isinstance(error, SparkNotStarted) or (_condition(error) or "").startswith(_LOST):
        return True
    text = str(error)[:2_000]
    return type(error).__module__.startswith("grpc") or any(word in text for word in _GONE)


def _condition(error: BaseException) -> str | None:
    found: str | None = getattr(error, "getCondition", lambda: None)()
    return found
