"""Settings of a warehouse: where it is, which engine, and limits on everything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from penstock.kernel.errors import Rejected
from penstock.tables.core.capacity import DispatchSettings, ParallelMode
from penstock.tables.core.failures import FailurePolicy
from penstock.tables.core.jobs import RETENTION_MS
from penstock.tables.engine import Factory, TopicPositions, TopicWriter

LEASE_MS: Final = 10_000
LEASES_MS: Final = {"sqlite": 120_000}


@dataclass(frozen=True, slots=True)
class WarehouseSettings:
    """Everything a coordinator, a worker or a caller needs to know about a warehouse.

    `runner` creates engines, and `topics` creates readers of topic positions; programs choose them
    (`penstock.app.tables`), because this package knows no engine and no client. `pool` is the
    address of the database with the cluster's permits, for warehouses that share machines; None:
    the catalog's own. `catalog_timeout_ms` is how long one step waits for other writers to the
    catalog. `tick_ms` is how often the coordinator reads the catalog without a notification,
    `lease_ms` how long its lease lasts without renewal (None: 2 min in a SQLite catalog, where any
    process can check whether the holder is alive, and every write may block another tool; otherwise
    10 s), `reserve_ms` how long the sweep spares files of a running refresh between two heartbeats,
    `cancel_ms` how long a worker may take to give up a job before it is killed. `topics_api_key` is
    the key for topic servers, `topics_poll_ms` how often they are polled. `snapshot_retention_ms`
    is how long the lake's snapshots are kept, 0 for ever; None: a day in a lake that Penstock
    created, for ever in any other.
    """

    catalog: str
    runner: Factory
    data_path: str | None = None
    topics: Factory | None = None
    topics_api_key: str | None = field(default=None, repr=False)
    parallel_refresh_mode: ParallelMode = ParallelMode.ON
    max_concurrent_refreshes: int = 4
    max_workers: int = 4
    pool: str | None = None
    pool_name: str = "refresh"
    retry: FailurePolicy = field(default_factory=FailurePolicy)
    yield_ms: int = 1_000
    catalog_timeout_ms: int = 10_000
    tick_ms: int = 100
    topics_poll_ms: int = 250
    lease_ms: int | None = None
    reserve_ms: int = 3_600_000
    cancel_ms: int = 10_000
    job_retention_ms: int = RETENTION_MS
    history_retention_ms: int = 30 * 86_400_000
    snapshot_retention_ms: int | None = None
    sweep_every_ms: int = 600_000
    sweep_grace_ms: int = 3_600_000

    def __post_init__(self) -> None:
        for name in (
            "max_workers", "catalog_timeout_ms", "tick_ms", "topics_poll_ms", "reserve_ms",
            "cancel_ms",
            "job_retention_ms", "history_retention_ms", "sweep_every_ms",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise Rejected(f"{name} must be at least 1, not {getattr(self, name)}")
        if (self.snapshot_retention_ms or 0) < 0:
            raise Rejected(
                f"snapshot_retention_ms must be at least 0, not {self.snapshot_retention_ms}"
            )
        if self.lease_ms is not None and self.lease_ms < 4 * self.tick_ms:
            raise Rejected(
                f"expected lease_ms of at least four ticks ({4 * self.tick_ms}), "
                f"found {self.lease_ms}"
            )

    @property
    def dispatch(self) -> DispatchSettings:
        """The limits of the coordinator's core."""
        return DispatchSettings(
            parallel_refresh_mode=self.parallel_refresh_mode,
            max_concurrent_refreshes=self.max_concurrent_refreshes,
            yield_ms=self.yield_ms,
            retry=self.retry,
        )

    def lease_of(self, kind: str) -> int:
        """The lease duration for a kind of database, in milliseconds."""
        return LEASES_MS.get(kind, LEASE_MS) if self.lease_ms is None else self.lease_ms

    def topic_positions(self) -> TopicPositions | None:
        """A reader of topic positions that uses the configured key."""
        if self.topics is None:
            return None
        return self.topics.topics({"api_key": self.topics_api_key} if self.topics_api_key else {})

    def topic_writer(self) -> TopicWriter | None:
        """A writer to topics that uses the configured key."""
        make = None if self.topics is None else self.topics.beside("make_writer")
        if make is None:
            return None
        key = {"api_key": self.topics_api_key} if self.topics_api_key else {}
        made: TopicWriter = make({**(self.topics.options if self.topics else {}), **key})
        return made

    def to_json(self) -> str:
        """As text, for a worker process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WarehouseSettings:
        """Parse the output of `to_json`."""
        found: dict[str, Any] = json.loads(text)
        return cls(
            **{
                **found,
                "runner": _factory(found["runner"]),
                "topics": _factory(found["topics"]) if found["topics"] else None,
                "parallel_refresh_mode": ParallelMode(found["parallel_refresh_mode"]),
                "retry": FailurePolicy(**found["retry"]),
            }
        )


def _factory(found: Mapping[str, Any]) -> Factory:
    return Factory(found["name"], found["options"])
