"""The output of `penstock table` and `penstock query`: for people, or lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import click
import pyarrow as pa
from rich.live import Live
from rich.text import Text

from penstock.cli.output import DIM, Output, grid, when
from penstock.cli.table_live import STATUS_STYLES, health_text, look, picture
from penstock.kernel.units import format_ms
from penstock.tables.core.history import RefreshOutcome, RefreshRecord
from penstock.tables.core.jobs import Job, JobStatus
from penstock.tables.core.model import TableDefinition
from penstock.tables.core.topics import TopicSource
from penstock.tables.plain import (
    definition_facts,
    job_facts,
    record_facts,
    source_facts,
    status_facts,
)
from penstock.tables.plan import TablePlan
from penstock.tables.warehouse import Warehouse

_OUTCOME: Final = {
    RefreshOutcome.SUCCEEDED: "green",
    RefreshOutcome.FAILED: "red",
    RefreshOutcome.SKIPPED: DIM,
}
_JOB: Final = {
    JobStatus.RUNNING: "cyan",
    JobStatus.SUCCEEDED: "green",
    JobStatus.RETRYABLE_FAILED: "yellow",
    JobStatus.PERMANENT_FAILED: "red",
}
_WATCH_S: Final = 0.5


class TableOutput(Output):
    """The output of `penstock table` and `penstock query`."""

    def json(self, value: Any) -> None:
        """One line; column values that JSON cannot represent are strings."""
        click.echo(json.dumps(value, default=_plain))

    def definitions(self, tables: Sequence[TableDefinition]) -> None:
        """Tables as they are defined."""
        if self.plain:
            for table in tables:
                self.json(definition_facts(table))
            return
        shown = grid("table", "schedule", "mode", "status", "reads")
        for table in tables:
            shown.add_row(
                table.name,
                table.schedule.text,
                table.mode.value,
                Text(table.status.value, STATUS_STYLES[table.status]),
                ", ".join(table.sources),
            )
        self.console.print(shown if tables else "no stream tables")

    def sources(self, sources: Sequence[TopicSource]) -> None:
        """Topics that tables may read."""
        if self.plain:
            for source in sources:
                self.json(source_facts(source))
            return
        shown = grid("topic", "columns", "key", "server")
        for source in sources:
            shown.add_row(
                source.topic,
                source.schema.replace("`", ""),
                ", ".join(source.key) or Text("every record", DIM),
                source.url,
            )
        self.console.print(shown if sources else "no topics declared")

    def definition(self, facts: Mapping[str, Any], table: TableDefinition, why: str) -> None:
        """One table in full."""
        if self.plain:
            self.json({**definition_facts(table), **facts, "why": why})
            return
        rows = {
            "table": table.name,
            "description": table.description or "none",
            "status": table.status.value,
            "schedule": table.schedule.text,
            "mode": table.mode.value,
            "consistency": table.consistency.value,
            "unit": f"{facts['unit']['key']} ({facts['unit']['kind']})",
            "now": why,
        }
        for source, at in facts["inputs"].items():
            rows[f"reads {source}"] = "never read" if at is None else f"at {_position(at)}"
        last = facts["last_refresh"]
        if last is not None:
            mode = last["executed"] or "not run"
            rows["last refresh"] = (
                f"{last['outcome']}, {mode} ({last['reason']}), {format_ms(last['took_ms'])}, "
                f"{last['rows_written']:,} rows written"
            )
            if last["reason_text"]:
                rows["because"] = last["reason_text"]
        self.facts(rows)
        self.console.print(Text(f"\n{table.query}"))

    def status(self, warehouse: Warehouse, *, watch: bool) -> None:
        """Every table; with `watch` repeatedly until Ctrl-C."""
        if not watch:
            if self.plain:
                for row in warehouse.status():
                    self.json(status_facts(row))
            else:
                self.console.print(picture(look(warehouse, _now_ms())))
            return
        try:
            if self.plain:
                self._follow(lambda: [status_facts(row) for row in warehouse.status()])
            with Live(console=self.console, auto_refresh=False, screen=True) as live:
                while True:
                    live.update(picture(look(warehouse, _now_ms())), refresh=True)
                    time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return

    def _follow(self, look: Callable[[], list[Any]]) -> None:
        """Lines for changes, forever."""
        seen: list[Any] = []
        while True:
            now = look()
            for row in now:
                if row not in seen:
                    self.json(row)
            seen = now
            time.sleep(_WATCH_S)

    def history(self, records: Sequence[RefreshRecord]) -> None:
        """Refreshes, the newest first."""
        if self.plain:
            for record in records:
                self.json(record_facts(record))
            return
        shown = grid("when", "table", "outcome", "executed", "took", "read", "written", "why")
        for record in records:
            shown.add_row(
                when(record.finished_at_ms, millis=False),
                record.table,
                Text(record.outcome.value, _OUTCOME[record.outcome]),
                record.executed.value if record.executed else "",
                format_ms(record.took_ms),
                f"{record.rows_read:,}",
                f"{record.rows_written:,}",
                Text(record.reason_text or record.reason.value, DIM),
            )
        self.console.print(shown if records else "no refreshes yet")

    def jobs(self, jobs: Sequence[Job]) -> None:
        """Jobs, the newest first."""
        if self.plain:
            for job in jobs:
                self.json(job_facts(job))
            return
        shown = grid("job", "unit", "status", "try", "enqueued", "worker", "detail")
        for job in jobs:
            shown.add_row(
                str(job.job_id),
                job.unit_key,
                Text(job.status.value, _JOB.get(job.status, DIM)),
                str(job.attempt_no),
                when(job.enqueued_at_ms, millis=False),
                job.worker or "",
                Text(job.outcome_detail or "", DIM),
            )
        self.console.print(shown if jobs else "no jobs")

    def plan(self, plan: TablePlan, *, done: bool) -> None:
        """The changes that a folder makes."""
        if self.plain:
            self.json(
                {
                    "applied": done,
                    "declare": [source.topic for source in plan.declare],
                    "create": [table.name for table in plan.create],
                    "replace": [change.table.name for change in plan.replace],
                    "alter": [change.table.name for change in plan.alter],
                    "drop": list(plan.drop),
                    "unchanged": list(plan.unchanged),
                }
            )
            return
        for line in plan.lines():
            style = {"+": "green", "-": "red"}.get(line[0], "yellow")
            self.console.print(Text(line, style))
        count = len(plan.unchanged)
        end = "nothing to do" if plan.empty else ("applied" if done else "not applied")
        self.console.print(f"{end}; {count} unchanged")

    def health(self, warehouse: Warehouse) -> None:
        """Whether tables are kept fresh, and by which workers."""
        health, pool = warehouse.health(), warehouse.pool()
        facts: dict[str, Any] = {
            "state": health.state.value,
            "text": health.text,
            "workers": list(pool.workers),
            "unfit": pool.unfit,
            "permits": dict(pool.permits),
            "permits_max": pool.permits_max,
            "gates": list(warehouse.gates()),
        }
        if self.plain:
            self.json({**facts, "pool": asdict(pool.pool) if pool.pool else None})
            return
        self.console.print(health_text(health))
        busy = sum(worker["job_id"] is not None for worker in pool.workers)
        rows = {
            "workers": f"{len(pool.workers)}, {busy} busy",
            "permits": f"{sum(pool.permits.values())} of {pool.permits_max} held",
            "closed gates": ", ".join(warehouse.gates()) or "none",
        }
        if pool.unfit:
            rows["workers cannot start"] = pool.unfit
        self.facts(rows)

    def rows(self, table: pa.Table, total: int) -> None:
        """The first rows of a query, and its number of rows."""
        if self.plain:
            for row in table.to_pylist():
                self.json(row)
            return
        shown = grid(*table.column_names)
        for row in table.to_pylist():
            shown.add_row(*("NULL" if value is None else str(value) for value in row.values()))
        self.console.print(shown)
        more = f", {len(table):,} shown" if total > len(table) else ""
        self.console.print(f"{total:,} row{'' if total == 1 else 's'}{more}", style=DIM)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _position(at: Sequence[int]) -> str:
    return f"snapshot {at[0]}" if len(at) == 1 else f"epoch {at[0]}, seq {at[1]}"


def _plain(value: Any) -> Any:
    """A string for a value that JSON cannot represent."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
