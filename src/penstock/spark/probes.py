"""Checks, before any work begins, that an external Spark can do it.

Its executors must share the files of a local lake: tasks read and write files by path, and where an
executor has a disk of its own, the same path names another file or none. And their Python must be
able to import Penstock: what we send to executors names functions of this package, and without it
every task ends in a traceback, after as many tries as Spark has. One small job for each says so at
once, and names the machine.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

import penstock
from penstock.kernel.errors import Rejected
from penstock.kernel.text import shortened
from penstock.lake.columns import columns_of
from penstock.lake.model import NewFile, SchemaInfo, TableInfo, joined
from penstock.lake.parquet import write_file
from penstock.lake.storage import Storage
from penstock.spark.errors import FilesNotShared, is_lost
from penstock.spark.lake.reading import spark_path
from penstock.spark.lake.task_files import FilesDiffer, tidy, write_by_tasks
from penstock.spark.lake.types import spark_schema
from penstock.spark.link import Check

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_LOG: Final = logging.getLogger(__name__)
TASKS_MIN: Final = 8
ROWS_PER_TASK: Final = 8
_ABOUT_FILES: Final = re.compile(
    r"FileNotFound|NoSuchFile|AccessDenied|Permission denied|Mkdirs failed|Read-only file system"
    r"|PATH_NOT_FOUND|FAILED_READ_FILE|TASK_WRITE_FAILED|does not exist"
)
"""Words of errors that say what became of a file; any other error says nothing of the disks."""
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
        import penstock.spark.topics.source

        version = penstock.__version__
    except Exception as found:
        error = f"{type(found).__name__}: {found}"
    row = {"host": platform.node(), "python": sys.executable, "version": version, "error": error}
    yield pyarrow.RecordBatch.from_pylist([row])
"""
"""As text: a function of ours would be sent by its name, which the executor may not know."""


class PenstockMissing(Rejected):
    """The Python of Spark's executors cannot import Penstock."""

    code = "penstock_missing"


def pipeline_checks(storage: Storage, *, is_ours: bool) -> tuple[Check, ...]:
    """What a session must pass before a pipeline runs on it."""
    if is_ours:
        return (check_python,)
    return (once_a_spark(check_python, lambda spark: check_shared(spark, storage)),)


def once_a_spark(*checks: Check) -> Check:
    """A check that asks each Spark which a link meets once: one that has passed is known again.

    On a server that has just been started again, checks take longer than the work that waits for
    them. So a Spark of the same version, master and machine as the one that has passed is not asked
    again. If it were different after all, nothing wrong would be committed: a Python without
    Penstock says so in its error (`explained`), a file that a task does not find is an error, and
    what tasks wrote is compared with what is here.
    """
    passed: tuple[str | None, ...] | None = None

    def check(spark: SparkSession) -> None:
        nonlocal passed
        settings = spark.conf.getAll
        found = (spark.version, settings.get("spark.master"), settings.get("spark.driver.host"))
        if found != passed:
            for each in checks:
                each(spark)
            passed = found

    return check


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


def check_shared(spark: SparkSession, storage: Storage) -> None:
    """Refuse a Spark whose executors see other files at the paths of a local lake.

    Each core that is free gets a task at once, so that every executor takes part unless it is busy:
    they write and we read, then we write and they read. One that comes later, or was busy, is found
    out by what it writes: no files are committed that are not all here.
    """
    if not storage.is_local:
        return
    directory = joined(storage.root, f"penstock-probe-{uuid4().hex}/")
    columns = columns_of(pa.schema([("id", pa.int64())]))
    table = TableInfo(-1, "", SchemaInfo(-1, "main", directory), "probe", directory, columns)
    tasks = _tasks(spark)
    rows = pa.table({"id": pa.array(range(ROWS_PER_TASK), pa.int64())})
    try:
        try:
            ours = [write_file(storage, directory, columns, rows) for _ in range(tasks)]
        except OSError as error:
            # That is our own disk, which says nothing about Spark; the first write will report it.
            _LOG.warning("files at %s cannot be tried with Spark: %s", storage.root, error)
            return
        _write(spark, storage, table, tasks)
        _read(spark, storage, table, ours)
    finally:
        tidy(storage, directory, ())


def _tasks(spark: SparkSession) -> int:
    """How many tasks reach every executor: more than Spark would run at the same time.

    With a local master all tasks run in one process, so one is enough: on a server that has just
    started, the first jobs take seconds, and all work waits for them.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name

    if (spark.conf.get("spark.master", "") or "").startswith("local"):
        return 1
    cores = int(spark.range(1 << 12).select(F.spark_partition_id()).distinct().count())
    return max(cores, TASKS_MIN)


def _write(spark: SparkSession, storage: Storage, table: TableInfo, tasks: int) -> None:
    """Have tasks write files, which must be here."""
    from pyspark.errors import PySparkException

    frame = spark.range(0, tasks * ROWS_PER_TASK, 1, tasks)
    try:
        write_by_tasks(storage, table, frame, None)
    except FilesDiffer as error:
        raise _refused(storage, "a file that an executor wrote is not here") from error
    except OSError as error:
        raise _refused(
            storage, f"a file that an executor wrote is closed to us ({error})"
        ) from error
    except PySparkException as error:
        if not _ABOUT_FILES.search(str(error)):
            raise
        raise _refused(storage, f"an executor cannot write there ({_line(error)})") from error


def _read(spark: SparkSession, storage: Storage, table: TableInfo, ours: Sequence[NewFile]) -> None:
    """Have tasks read files of ours."""
    from pyspark.errors import PySparkException

    paths = [spark_path(file.path) for file in ours]
    rows = sum(file.record_count for file in ours)
    try:
        found = spark.read.schema(spark_schema(table.columns)).parquet(*paths).count()
    except PySparkException as error:
        if not _ABOUT_FILES.search(str(error)):
            raise
        raise _refused(storage, f"Spark cannot read what is here ({_line(error)})") from error
    if found != rows:
        raise _refused(storage, f"Spark finds {found} of {rows} rows that are here")


def _refused(storage: Storage, found: str) -> FilesNotShared:
    return FilesNotShared(
        f"this Spark does not share the lake's files at {storage.root}: {found}; keep the lake on "
        "storage that this machine and every executor see under one path, or in an object store",
        path=storage.root,
    )


def _line(error: Exception) -> str:
    """The part of an error that says what became of a file, in one line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    return next((line for line in lines if _ABOUT_FILES.search(line)), lines[0])[:300]


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
            "Spark's executors cannot run Python with pyspark and pyarrow: "
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
        f"the Python of Spark's executors cannot use Penstock: {what} ({where}); install it "
        f"there with `{python} -m pip install 'penstock[spark]'`, or start Spark with "
        "PYSPARK_PYTHON set to a Python that has it"
    )
