"""A query's rows as they arrive, with a limit after which they are not wanted here any more.

Beside the public API of pyspark, which collects everything or row by row: what is used of the
client is pinned with pyspark's minor version.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.metrics import PlanMetrics


class ResultTooLarge(Exception):
    """More bytes arrived than were wanted; the query was stopped."""


class QueryRows:
    """One run of a query. `rows_read` and `took_ms` are known when all batches have arrived."""

    def __init__(self, frame: DataFrame, bytes_max: int | None, *, resumable: bool = True) -> None:
        self._frame = frame
        self._bytes_max = bytes_max
        self._resumable = resumable
        self.rows_read: int | None = None
        self.took_ms = 0.0

    def batches(self) -> Iterator[pa.Table]:
        """The rows in the order of arrival; at least one table, so that columns are known."""
        from pyspark.sql.connect.shell.progress import Progress
        from pyspark.sql.metrics import PlanMetrics

        began = time.monotonic()
        client: Any = self._frame.sparkSession.client
        client = client if self._resumable else without_resuming(client)
        request = client._execute_plan_request_with_metadata()
        request.plan.CopyFrom(self._frame._plan.to_proto(client))
        handlers = client._progress_handlers
        metrics: list[PlanMetrics] = []
        arrived = 0
        with Progress(handlers=handlers, operation_id=request.operation_id) as progress:
            observations = self._frame._plan.observations
            responses = client._execute_and_fetch_as_iterator(request, observations, progress)
            for response in responses:
                if isinstance(response, PlanMetrics):
                    metrics.append(response)
                elif isinstance(response, pa.RecordBatch):
                    arrived += response.nbytes
                    if self._bytes_max is not None and arrived > self._bytes_max:
                        responses.close()
                        self._frame.sparkSession.interruptOperation(request.operation_id)
                        raise ResultTooLarge
                    yield pa.Table.from_batches([response])
        self.rows_read = scanned(metrics)
        self.took_ms = (time.monotonic() - began) * 1_000


def arriving(frame: DataFrame, *, bytes_max: int | None, resumable: bool = True) -> QueryRows:
    """A query to be run when its batches are asked for.

    One that is not `resumable` fails when its connection breaks, and is cheaper: the server keeps
    no answers for a second connection, and is not told after each one that it may forget it.
    """
    return QueryRows(frame, bytes_max, resumable=resumable)


def without_resuming(client: Any) -> Any:
    """The same client for a query that runs at most once.

    No retries: without an operation to come back to, a retry would run the query again, and its
    rows would follow those that had arrived.
    """
    made = copy(client)
    made.disable_reattachable_execute()
    made.set_retry_policies([])
    return made


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
