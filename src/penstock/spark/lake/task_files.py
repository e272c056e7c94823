"""Files that Spark's tasks write for a table, taken over only if they are what the tasks wrote.

Two things can go wrong in silence. Spark's optimizer may leave a column the field id that it had in
the table it was read from, and readers find columns by id. And a task may run where the directory
is another disk, so that its file is not here. So each column gets its id by an alias of its own,
each footer is compared with the table's columns, and the rows that the tasks counted are compared
with those in the files that are here.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from penstock.kernel.errors import PenstockError
from penstock.lake.columns import Column
from penstock.lake.model import NewFile, TableInfo, joined
from penstock.lake.parquet import describe_file
from penstock.lake.storage import Storage
from penstock.spark.lake.evolution import quoted
from penstock.spark.lake.reading import spark_path
from penstock.spark.lake.types import FIELD_ID, check_types, spark_type

if TYPE_CHECKING:
    from pyspark.sql.connect.column import Column as Expression
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.observation import Observation

_LOG: Final = logging.getLogger(__name__)
_PART: Final = re.compile(r"part-(\d+)-")
"""How Spark names a file: after the task that wrote it."""


class FilesDiffer(PenstockError):
    """The files that are here are not those that Spark's tasks wrote. Nothing was committed."""

    code = "files_differ"


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """What a job left in its directory. `ran_ms` is how long Spark took."""

    directory: str
    files: list[NewFile]
    ran_ms: float


def write_by_tasks(
    storage: Storage, table: TableInfo, frame: DataFrame, token: str | None
) -> TaskFiles:
    """Have Spark write the rows of a query below the table's path, and look at what it wrote.

    `FilesDiffer` or `WrongFields` if that is not the table's, or not all of it; then nothing of it
    stays.
    """
    check_types(frame.schema, table.columns)
    directory = joined(table.path, f"penstock-{token or uuid4().hex}-{uuid4().hex[:8]}/")
    observed, observation = _observed(frame, table.columns)
    # Bounds leave NaN out while readers order it above everything: floats have none.
    without = {f"parquet.column.statistics.enabled#{path}": "false"
               for path in _float_paths(table.columns)}  # fmt: skip
    writer = observed.write.mode("error").options(
        compression="zstd", maxRecordsPerFile="0", **without
    )
    began = time.monotonic()
    try:
        writer.parquet(spark_path(directory.rstrip("/")))
        ran_ms = (time.monotonic() - began) * 1_000
        found = [describe_file(storage, path, table.columns, is_ours=True)
                 for path in _data_files(storage, directory)]  # fmt: skip
        check_complete(_rows_told(observation), found, directory)
    except BaseException:
        tidy(storage, directory, ())
        raise
    files = [file for file in found if file.record_count]
    for file in files:
        storage.sync(file.path)
    return TaskFiles(directory, files, ran_ms)


def check_complete(rows_told: int, files: Sequence[NewFile], directory: str) -> None:
    """Refuse files that are not exactly those that the tasks wrote, by the rows that they counted.

    Spark Connect tells nothing else of a write. It is enough: a task writes one file, named after
    the task, and none without rows counts; so with as many rows as were told, and no task's file
    twice, no file is missing and none is there that should not be.
    """
    filled = [file for file in files if file.record_count]
    rows = sum(file.record_count for file in filled)
    tasks = {_task(file.path) for file in filled}
    if rows == rows_told and len(tasks) == len(filled):
        return
    raise FilesDiffer(
        f"Spark's tasks wrote {rows_told} rows, but the {len(filled)} files of {len(tasks)} tasks "
        f"at {directory} hold {rows}: keep the lake on storage that this process and every "
        "executor share; nothing was committed",
        path=directory,
    )


def tidy(storage: Storage, directory: str, kept: Iterable[str]) -> None:
    """Remove what a job left beside the files to keep. What cannot be removed now is swept later.

    Hadoop leaves checksums and marks of its own where nothing keeps it from doing so. Nothing about
    them is worth a refresh.
    """
    names = set(kept)
    try:
        for stored in list(storage.files(directory)):
            if stored.path not in names:
                storage.remove(stored.path)
        if storage.is_local:
            _remove_empty(Path(directory))
    except Exception as error:  # whatever a filesystem may raise
        _LOG.warning("%s is left for the next sweep: %s", directory, error)


def _observed(frame: DataFrame, columns: Sequence[Column]) -> tuple[DataFrame, Observation]:
    """The table's columns of a query, and what counts them while they are written.

    The count is part of the plan, below the last projection and in the stage that writes: Spark
    takes it over from each task once, when the task has succeeded.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name
    from pyspark.sql.connect.observation import Observation

    known = {column.name.lower(): column.name for column in columns}
    named = frame.toDF(*[known[name.lower()] for name in frame.schema.fieldNames()])
    observation = Observation(f"penstock_{uuid4().hex}")
    counted = named.observe(observation, F.count(F.lit(1)).alias("rows"))
    return counted.select(*map(own_column, columns)), observation


def own_column(column: Column) -> Expression:
    """A column of a frame with the table's field ids, whatever ids it was read with.

    `DataFrame.to` would not do: it marks the column where it stands, and the optimizer then takes
    the marked column for the one below, as both are the same column. An alias is another column.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812

    typed = F.col(quoted(column.name)).cast(spark_type(column))
    return typed.alias(column.name, metadata={FIELD_ID: column.id})


def _rows_told(observation: Observation) -> int:
    found: dict[str, Any] = observation.get
    if "rows" not in found:
        raise FilesDiffer(
            "Spark did not say how many rows its tasks wrote, so the files cannot be checked; "
            "nothing was committed"
        )
    return int(found["rows"])


def _data_files(storage: Storage, directory: str) -> Iterator[str]:
    """The Parquet files of a directory itself; below it lies what attempts have given up."""
    name = directory.rstrip("/").rpartition("/")[2]
    for path in sorted(stored.path for stored in storage.files(directory)):
        if path.endswith(".parquet") and path.split("/")[-2:-1] == [name]:
            yield path


def _task(path: str) -> int:
    found = _PART.match(path.rpartition("/")[2])
    return -1 if found is None else int(found[1])


def _remove_empty(directory: Path) -> None:
    """Remove a directory and those below it, as far as there are no files in them."""
    for place, _, files in os.walk(directory, topdown=False):
        if not files and not any(Path(place).iterdir()):
            Path(place).rmdir()


def _float_paths(columns: Iterable[Column], above: str = "") -> Iterator[str]:
    """Parquet's paths of all columns of floats."""
    for column in columns:
        path = above + column.name
        if column.type in ("float32", "float64"):
            yield path
        middle = {"list": ".list.", "map": ".key_value."}.get(column.type, ".")
        yield from _float_paths(column.children, path + middle)
