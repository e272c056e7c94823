"""Old rows that changes can meet, looked up in local copies of files instead of read by Spark.

A join of a thousand changes with ten million rows reads the ten million, if changes lie all over
them. In the sorted copies (`lake.row_index`) the rows of a thousand keys are found in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.lake.locate import rows_with
from penstock.lake.model import TableVersion, held_bytes, held_rows
from penstock.lake.row_index import RowIndex
from penstock.lake.storage import Storage
from penstock.spark.delta.handover import Handover
from penstock.spark.delta.limits import DeltaLimits
from penstock.spark.lake.views import ViewNames
from penstock.tables.delta.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Values = Callable[[str, str], "pa.ChunkedArray | None"]
"""The values of a column of the changes of a relation, if they are here."""


@dataclass(slots=True)
class NearRows:
    """Looks up the old rows for one text, and gives their views to its names."""

    spark: SparkSession
    storage: Storage
    index: RowIndex
    handover: Handover
    limits: DeltaLimits
    names: ViewNames
    held: Mapping[str, TableVersion]
    """The old versions of the relations that are lake tables."""
    _views: dict[tuple[object, ...], str | None] = field(default_factory=dict)

    def view(
        self, relation: str, name: str, found: Range, fields: tuple[str, ...], values: Values
    ) -> str | None:
        """The view of rows with values of a range in a column; None if Spark is to read them."""
        key = (relation, name, found.of, found.has_null, fields)
        if key not in self._views:
            self._views[key] = self._view(relation, name, found, fields, values)
        return self._views[key]

    def _view(
        self, relation: str, name: str, found: Range, fields: tuple[str, ...], values: Values
    ) -> str | None:
        version = self.held.get(relation)
        columns = [values(*source) for source in found.of]
        if version is None or not columns or not self._is_worth_it(version):
            return None
        kind = version.table.arrow_schema.field(name).type
        known = [column.cast(kind) for column in columns if column is not None]
        if len(known) < len(columns):
            return None
        wanted = pa.chunked_array([chunk for each in known for chunk in each.chunks], kind).unique()
        wanted = wanted if found.has_null else wanted.drop_null()
        rows_max = min(self.limits.near_rows_max, held_rows(version) // self.limits.near_part)
        if len(wanted) > rows_max:
            return None
        rows = rows_with(
            self.storage, self.index, version, pa.table({name: wanted}), fields, rows_max
        )
        if rows is None:
            return None
        by_name = {column.name: column for column in version.table.columns}
        listed = tuple(by_name[each] for each in fields)
        return self.names.give(self.handover.frame(self.spark, rows, listed))

    def _is_worth_it(self, version: TableVersion) -> bool:
        """Small tables are read as fast by Spark, and copies of very large ones take much room."""
        rows = held_rows(version)
        return rows >= self.limits.near_from_rows and held_bytes(version) <= (
            self.limits.near_bytes_max
        )
