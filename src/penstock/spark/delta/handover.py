"""Rows that are here, handed to Spark: with the query, or as a file that it reads.

Spark takes rows that come with a query one by one, and sends them to its tasks one by one: 170,000
rows take six times as long as from a file. The files are those of one refresh. They bear its token,
so that the sweep removes what a killed worker left.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from penstock.kernel.errors import PenstockError
from penstock.lake.columns import Column
from penstock.lake.model import DataFile
from penstock.lake.parquet import write_scratch
from penstock.lake.selection import FileRows
from penstock.lake.storage import Storage
from penstock.spark.lake.reading import local_frame, read_rows
from penstock.spark.lake.types import is_writable

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession


class Handover:
    """Hands rows to Spark for one refresh. Use it as a context: at the end its files are gone.

    Fewer rows than `file_from_rows` go with the query: a file has to be opened.
    """

    def __init__(self, storage: Storage, directory: str, token: str, file_from_rows: int) -> None:
        self._storage, self._directory, self._token = storage, directory, token
        self._file_from_rows = file_from_rows
        self._files: dict[int, tuple[DataFile, pa.Table]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file, _rows in self._files.values():
            with suppress(OSError, PenstockError):  # what stays is swept
                self._storage.remove(file.path)
        self._files.clear()

    def is_file(self, rows: pa.Table, columns: tuple[Column, ...]) -> bool:
        """Whether Spark reads these rows from a file, and so counts them as read."""
        return rows.num_rows >= self._file_from_rows and all(
            is_writable(column) for column in columns
        )

    def frame(self, spark: SparkSession, rows: pa.Table, columns: tuple[Column, ...]) -> DataFrame:
        """Rows in the lake's types as a DataFrame in one partition: small rows need no shuffle."""
        if not self.is_file(rows, columns):
            return local_frame(spark, rows, columns).coalesce(1)
        listed = [FileRows(self._file(rows, columns))]
        none = rows.slice(0, 0)
        return read_rows(spark, self._storage, listed, none, columns, {}).coalesce(1)

    def _file(self, rows: pa.Table, columns: tuple[Column, ...]) -> DataFile:
        """The file with some rows; written once, however often a query needs them."""
        if id(rows) not in self._files:
            made = write_scratch(self._storage, self._directory, columns, rows, self._token)
            file = DataFile(0, made, rows.num_rows, self._storage.size_bytes(made), 0, 0)
            self._files[id(rows)] = (file, rows)
        return self._files[id(rows)][0]
