"""Tables, refreshes and jobs as plain values, the same for HTTP, `--json` and programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from penstock.tables.core.frontier import Frontier
from penstock.tables.core.health import TableStatus
from penstock.tables.core.history import RefreshRecord
from penstock.tables.core.jobs import Job
from penstock.tables.core.model import TableDefinition
from penstock.tables.core.topics import TopicSource


def definition_facts(table: TableDefinition) -> dict[str, Any]:
    """A table as configured."""
    return {**asdict(table), "sources": list(table.sources), "schedule": table.schedule.text}


def status_facts(row: TableStatus) -> dict[str, Any]:
    """A table's freshness, and what it waits for."""
    return {**asdict(row), "frontier": frontier_facts(row.frontier)}


def record_facts(record: RefreshRecord) -> dict[str, Any]:
    """One refresh of one table."""
    return {
        **asdict(record),
        "frontier": frontier_facts(record.frontier),
        "timings_ms": dict(record.timings_ms),
        "stale": list(record.stale),
    }


def job_facts(job: Job) -> dict[str, Any]:
    """One job, as stored."""
    return {**asdict(job), "members": list(job.members)}


def source_facts(source: TopicSource) -> dict[str, Any]:
    """A topic that tables may read."""
    return {
        "topic": source.topic,
        "relation": source.name,
        "schema": source.schema,
        "key": list(source.key),
        "url": source.url,
    }


def frontier_facts(frontier: Frontier | None) -> dict[str, Any] | None:
    """Positions by relation: `[snapshot]` of a table, `[epoch, seq]` of a topic."""
    found: dict[str, Any] | None = None if frontier is None else json.loads(frontier.to_json())
    return found
