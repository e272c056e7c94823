"""A query's rows as they arrive, with a limit after which they are not wanted here any more.

Beside the public API of pyspark, which collects everything or row by row: what is used of the
client is pinned with pyspark's minor version.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.metrics import PlanMetrics


class TooLarge(Exception):
    """More bytes arrived than were wanted; the query was stopped."""


class Arrivals:
    """One run of a query. `rows_read` and `took_ms` are known when all batches have arrived."""

    def __init__(self, frame: DataFrame, bytes_max: int | None) -> None:
        self._frame = frame
        self._bytes_max = bytes_max
        self.rows_read: int | None = None
        self.took_ms = 0.0

    def batches(self) -> Iterator[pa.Table]:
        """The rows in the order of arrival; at least one table, so that columns are known."""
        from pyspark.sql.connect.shell.progress import Progress
        from pyspark.sql.metrics import PlanMetrics

        began = time.monotonic()
        client: Any = self._frame.sparkSession.client
        request = client._execute_plan_request_with_metadata()
        request.plan.CopyFrom(self._frame._plan.to_proto(client))
        handlers = client._progress_handlers
        metrics: list[PlanMetrics] = []
        arrived = 0
        with Progress(handlers=handlers, operation_id=request.operation_id) as progress:
            responses = client._execute_and_fetch_as_iterator(request, {}, progress)
            for response in responses:
                if isinstance(response, PlanMetrics):
                    metrics.append(response)
                elif isinstance(response, pa.RecordBatch):
                    arrived += response.nbytes
                    if self._bytes_max is not None and arrived > self._bytes_max:
                        responses.close()
                        self._frame.sparkSession.interruptOperation(request.operation_id)
                        raise TooLarge
                    yield pa.Table.from_batches([response])
        self.rows_read = scanned(metrics)
        self.took_ms = (time.monotonic() - began) * 1_000


def arriving(frame: DataFrame, *, bytes_max: int | None) -> Arrivals:
    """A query to be run when its batches are asked for."""
    return Arrivals(frame, bytes_max)


def scanned(metrics: Iterable[PlanMetrics]) -> int | None:
    """The rows that scans of files gave, or None if no scan told."""
    rows = [
        int(value.value)
        for plan in metrics
        if plan.name.startswith("Scan ")
        for value in plan.metrics
        if value.name == "numOutputRows"
    ]
    return sum(rows) if rows else None
