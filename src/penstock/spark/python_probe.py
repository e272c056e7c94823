"""Whether Spark's executors can run our Python: asked once in each session, before any work.

What Penstock sends to executors names functions of its package. Where that is not installed, every
task ends in a traceback whose last line says so, after as many tries as Spark has; one small job
says it at once, and names the machine.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import penstock
from penstock.kernel.errors import Rejected
from penstock.kernel.text import shortened
from penstock.spark.errors import is_lost

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_LOG: Final = logging.getLogger(__name__)
_COLUMNS: Final = "host string, python string, version string, error string"
_MISSING: Final = "No module named 'penstock"
_OURS: Final = "penstock"
_PROBE: Final = """
def probe(batches):
    import platform
    import sys

    import pyarrow

    for _ in batches:
        pass
    version, error = "", ""
    try:
        import penstock
        import penstock.spark.topic_source

        version = penstock.__version__
    except Exception as found:
        error = f"{type(found).__name__}: {found}"
    row = {"host": platform.node(), "python": sys.executable, "version": version, "error": error}
    yield pyarrow.RecordBatch.from_pylist([row])
"""
"""As text, for a function of ours would be sent by its name, which is what may not be known."""


class PenstockMissing(Rejected):
    """The Python of Spark's executors cannot import Penstock."""

    code = "penstock_missing"


def check_python(spark: SparkSession) -> None:
    """Ask a task on each core for Penstock, once in a session; `PenstockMissing` says what to do.

    A Spark that Penstock started on this machine has its Python, and is not asked.
    """
    if getattr(spark, "_penstock_checked", False):
        return
    settings = spark.conf.getAll
    is_ours = settings.get("spark.app.name") == _OURS
    if not (is_ours and settings.get("spark.master", "").startswith("local")):
        _check(_ask(spark))
    spark._penstock_checked = True


def explained(error: Exception) -> Exception:
    """The error, or what to do about it where it says that Penstock is missing."""
    if isinstance(error, Rejected) or _MISSING not in str(error):
        return error
    return PenstockMissing(_advice("that Python cannot import it", "the Python of Spark"))


def _ask(spark: SparkSession) -> list[Any]:
    from pyspark.errors import PySparkException

    made: dict[str, Any] = {"__name__": "__main__"}
    exec(_PROBE, made)
    try:
        # As many tasks as Spark has cores; no task asks twice.
        found: list[Any] = spark.range(1_000).mapInArrow(made["probe"], _COLUMNS).collect()
    except PySparkException as error:
        if is_lost(error):
            raise
        raise PenstockMissing(
            "expected Spark's executors to run Python with pyspark and pyarrow, found: "
            f"{shortened(str(error), 800)}"
        ) from error
    return found


def _check(found: list[Any]) -> None:
    for row in found:
        if row.error:
            raise PenstockMissing(_advice(row.error, f"{row.python} on {row.host}", row.python))
    others = sorted({row.version for row in found} - {penstock.__version__})
    if others:
        _LOG.warning(
            "Spark's executors have Penstock %s, this is %s: install the same on both",
            ", ".join(others), penstock.__version__,
        )  # fmt: skip


def _advice(what: str, where: str, python: str = "python") -> str:
    return (
        f"expected Penstock in the Python of Spark's executors, found {what} ({where}): install it "
        f"there with `{python} -m pip install 'penstock[spark]'`, or start Spark with "
        "PYSPARK_PYTHON set to a Python that has it"
    )
