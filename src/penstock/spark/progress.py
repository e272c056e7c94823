"""The progress of a query: events while it runs, derived from Spark's stage reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.kernel.clock import Clock
from penstock.kernel.system import SystemClock

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class SparkStage(Protocol):
    """What Spark says of a stage."""

    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int
    done: bool


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One look at a running query. `left_ms` is a guess by the share of tasks, None at first.

    Spark makes stages as it goes, so their number may grow.
    """

    operation_id: str
    stages: int
    stages_done: int
    tasks: int
    tasks_done: int
    tasks_running: int
    bytes_read: int
    elapsed_ms: int
    left_ms: int | None
    done: bool

    @property
    def share(self) -> float:
        """How much of the known work is done, from 0 to 1."""
        if self.done:
            return 1.0
        return self.tasks_done / self.tasks if self.tasks else 0.0


def look(
    stages: Iterable[SparkStage], *, operation_id: str, running: int, elapsed_ms: int, done: bool
) -> QueryProgress:
    """Convert a report of Spark into an event."""
    listed = list(stages)
    tasks = sum(stage.num_tasks for stage in listed)
    ended = sum(stage.num_completed_tasks for stage in listed)
    left = round(elapsed_ms * (tasks - ended) / ended) if ended and not done else None
    return QueryProgress(
        operation_id=operation_id,
        stages=len(listed),
        stages_done=sum(stage.done for stage in listed),
        tasks=tasks,
        tasks_done=ended,
        tasks_running=running,
        bytes_read=sum(stage.num_bytes_read for stage in listed),
        elapsed_ms=elapsed_ms,
        left_ms=0 if done else left,
        done=done,
    )


@contextmanager
def watching(
    spark: SparkSession, tell: Callable[[QueryProgress], None], clock: Clock | None = None
) -> Iterator[None]:
    """Report the progress of this session's queries, and once when each is done."""
    time: Clock = clock or SystemClock()
    begun: dict[str, int] = {}

    def handler(
        stages: Iterable[SparkStage] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        name = operation_id or ""
        now = time.monotonic_ms()
        elapsed = now - begun.setdefault(name, started)
        if done:
            begun.pop(name)
        running = 0 if done else inflight_tasks
        tell(look(stages or (), operation_id=name, running=running, elapsed_ms=elapsed, done=done))

    started = time.monotonic_ms()
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
