"""Whether a Spark that runs elsewhere sees the files of a local lake, and we see its.

Tasks write files and read files by their paths. Where executors have disks of their own the same
path is another file, or none, so that a Spark that was not started here is tried before it is used.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from penstock.lake.columns import columns_of
from penstock.lake.model import NewFile, SchemaInfo, TableInfo
from penstock.lake.parquet import write_file
from penstock.lake.paths import joined
from penstock.lake.storage import Storage
from penstock.spark.errors import FilesNotShared
from penstock.spark.reading import spark_path
from penstock.spark.task_files import FilesDiffer, tidy, write_by_tasks
from penstock.spark.types import spark_schema

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


def check_shared(spark: SparkSession, storage: Storage) -> None:
    """Refuse a Spark whose executors have other files than we at the paths of a local lake.

    Each core that is free gets a task at once, so that every executor takes part unless it is busy:
    they write and we read, then we write and they read. One that comes later, or was busy, is found
    out by what it writes: no files are committed that are not all here.
    """
    if not storage.is_local:
        return
    directory = joined(storage.root, f"penstock-probe-{uuid4().hex}/")
    columns = columns_of(pa.schema([("id", pa.int64())]))
    table = TableInfo(-1, "", SchemaInfo(-1, "main", directory), "probe", directory, columns)
    tasks = max(_cores(spark), TASKS_MIN)
    rows = pa.table({"id": pa.array(range(ROWS_PER_TASK), pa.int64())})
    try:
        try:
            ours = [write_file(storage, directory, columns, rows) for _ in range(tasks)]
        except OSError as error:
            # That is our own disk, which says nothing of Spark; whoever writes to it is told.
            _LOG.warning("files at %s cannot be tried with Spark: %s", storage.root, error)
            return
        _write(spark, storage, table, tasks)
        _read(spark, storage, table, ours)
    finally:
        tidy(storage, directory, ())


def _cores(spark: SparkSession) -> int:
    """How many tasks Spark would run at the same time."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    return int(spark.range(1 << 12).select(F.spark_partition_id()).distinct().count())


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
