"""The output of `penstock table` and `penstock query`: for people, or lines of JSON.

`picture` is the screen of `penstock table status`: refreshes, workers and freshness.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.output import DIM, Output, grid, when
from penstock.cli.table_bars import described
from penstock.kernel.units import format_ms
from penstock.tables.core.health import CoordinatorHealth, HealthState, TableHealth
from penstock.tables.core.history import RefreshOutcome, RefreshRecord
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.core.model import Status, TableDefinition
from penstock.tables.core.topics import TopicSource
from penstock.tables.core.verdict import Reason
from penstock.tables.delta.explain import pretty_sql
from penstock.tables.plan import TablePlan
from penstock.tables.status import (
    PoolStatus,
    Running,
    definition_facts,
    job_facts,
    record_facts,
    source_facts,
    status_facts,
)
from penstock.tables.verify import Verified
from penstock.tables.warehouse import Warehouse

STATUS_STYLES: Final = {
    Status.ACTIVE: "green",
    Status.PAUSED: "yellow",
    Status.SUSPENDED: "red",
    Status.ERROR: "red",
}
_HEALTH: Final = {
    HealthState.OK: "green",
    HealthState.STARTING: "yellow",
    HealthState.DEGRADED: "yellow",
    HealthState.DRAINING: "yellow",
}
_REASON: Final = {
    Reason.IN_FLIGHT: "cyan",
    Reason.READY: "cyan",
    Reason.ERROR: "red",
    Reason.SUSPENDED: "red",
    Reason.ENGINE_AWAY: "yellow",
    Reason.BACKING_OFF: "yellow",
    Reason.UPSTREAM_FAILED: "yellow",
    Reason.NO_BUDGET: "yellow",
}
_BAR_WIDTH: Final = 24
_QUIET: Final = frozenset({Reason.NOT_DUE, Reason.NO_CHANGE, Reason.ON_DEMAND})
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
            "publish": f"{table.publish} on {table.publish_url}" if table.publish else "no topic",
            "unit": f"{facts['unit']['key']} ({facts['unit']['kind']})",
            "now": why,
        }
        for source, at in facts["inputs"].items():
            rows[f"reads {source}"] = "never read" if at is None else f"at {_position(at)}"
        last = facts["last_refresh"]
        if last is not None:
            rows["last refresh"] = _last_refresh(last)
            if last["reason_text"]:
                rows["because"] = last["reason_text"]
        self.facts(rows)
        self.console.print(Text(f"\n{table.query}"))

    def explained(self, facts: Mapping[str, Any]) -> None:
        """How a table or a query is brought up to date."""
        if self.plain:
            self.json(facts)
            return
        plan, said = facts["plan"], facts["differential"]
        rows = {"differential": "possible" if plan else f"not possible: {said['text']}"}
        rows |= _refreshes(facts)
        if plan is not None and (plan["state"] or plan["stages"]):
            rows["can keep"] = _kept(plan)
        for name, count in facts.get("state_tables", {}).items():
            rows[f"keeps {name}"] = f"{count:,} groups"
        if plan is not None and plan["breaks_ties"]:
            rows["ties"] = "broken by all other columns"
        self.facts(rows)
        if plan is not None:
            self.console.print(Text(f"\n{plan['text']}\n\n{pretty_sql(plan['delta_sql'])}"))

    def verified(self, found: Verified) -> None:
        """Whether a table is its query, and rows that differ."""
        if self.plain:
            self.json(found.facts())
            return
        if found.is_same:
            self.say(f"{found.table} is what its query gives")
            return
        least = "at least " if found.more else ""
        self.say(
            f"{found.table} is not what its query gives: {least}{found.missing:,} rows are "
            f"missing, {found.surplus:,} should not be there"
        )
        for word, rows in (("missing", found.missing_rows), ("surplus", found.surplus_rows)):
            for row in rows:
                self.say(f"  {word}: {dict(zip(found.columns, row, strict=True))}")

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

    def jobs(self, jobs: Sequence[RefreshJob]) -> None:
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


class StatusScreen(NamedTuple):
    """Everything shown on one screen, as of one moment."""

    now_ms: int
    health: CoordinatorHealth
    pool: PoolStatus
    gates: tuple[str, ...]
    rows: Sequence[TableHealth]


def look(warehouse: Warehouse, now_ms: int) -> StatusScreen:
    """Query a warehouse."""
    return StatusScreen(
        now_ms, warehouse.health(), warehouse.pool(), warehouse.gates(), warehouse.status()
    )


def picture(seen: StatusScreen) -> RenderableType:
    """One screen: a line on health, a line on workers, running jobs, then every table."""
    parts: list[RenderableType] = [health_text(seen.health), _workers(seen)]
    coordinated = seen.health.state not in (HealthState.NOT_RUNNING, HealthState.STALLED)
    if seen.pool.running and coordinated:
        parts += [Text(), _running(seen)]
    parts += [Text(), _tables(seen)]
    return Group(*parts)


def health_text(health: CoordinatorHealth) -> Text:
    """A word in its colour and a sentence."""
    style = _HEALTH.get(health.state, "red")
    return Text.assemble((health.state.value.replace("_", " "), style), f": {health.text}")


def _workers(seen: StatusScreen) -> Text:
    pool = seen.pool
    busy = sum(worker["job_id"] is not None for worker in pool.workers)
    warming = sum(not worker["ready"] for worker in pool.workers)
    said = [f"{len(pool.workers)} workers, {busy} busy"]
    said += [f"{warming} starting"] if warming else []
    said.append(f"{sum(pool.permits.values())} of {pool.permits_max} permits held")
    if pool.pool is not None:
        said.append(f"{pool.pool.ready} units ready")
    waiting = sum(row.reason not in _QUIET and row.reason is not Reason.IN_FLIGHT
                  for row in seen.rows)  # fmt: skip
    said.append(f"{waiting} tables waiting")
    if seen.gates:
        said.append(f"closed: {', '.join(seen.gates)}")
    return Text(" · ".join(said), DIM)


def _running(seen: StatusScreen) -> Table:
    shown = grid("running", "", "for", "", "worker")
    for job in seen.pool.running:
        taken_ms = 0 if job.started_ms is None else max(0, seen.now_ms - job.started_ms)
        shown.add_row(
            job.unit_key,
            _bar(job),
            format_ms(taken_ms // 100 * 100),
            described(job.progress) if job.progress else "",
            Text(job.worker.rpartition("/")[2], DIM),
        )
    return shown


def _bar(job: Running) -> RenderableType:
    progress = job.progress
    if progress is None or not progress.tasks:
        return Text("…", DIM)
    return ProgressBar(
        total=progress.tasks, completed=min(progress.tasks_done, progress.tasks), width=_BAR_WIDTH
    )


def _tables(seen: StatusScreen) -> RenderableType:
    if not seen.rows:
        return Text("no stream tables", DIM)
    shown = grid("table", "status", "fresh", "schedule", "mode", "now")
    for row in seen.rows:
        shown.add_row(
            row.table,
            Text(row.status.value, STATUS_STYLES[row.status]),
            _fresh(row, seen.now_ms),
            row.schedule,
            row.mode.value,
            Text(_now(row), _REASON.get(row.reason, DIM)),
        )
    return shown


def _now(row: TableHealth) -> str:
    return row.waiting_for if row.publishing is None else f"{row.waiting_for}; {row.publishing}"


def _fresh(row: TableHealth, now_ms: int) -> Text:
    """How old contents are; in yellow if they are older than their schedule allows."""
    if row.fresh_ms is None:
        return Text("never", "yellow")
    late = row.due_ms is not None and row.due_ms < now_ms
    return Text(f"{format_ms(max(0, now_ms - row.fresh_ms))} ago", "yellow" if late else "")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _refreshes(facts: Mapping[str, Any]) -> dict[str, str]:
    """The last refresh of a table and the next one: the mode, why, and what is read."""
    rows, last = {}, facts.get("last_refresh")
    if last is not None:
        rows["last refresh"] = _last_refresh(last)
        if last["reason_text"]:
            rows["because"] = last["reason_text"]
        if last["choice"] is not None:
            rows["chosen"] = _chosen(last["choice"])
    coming = facts.get("next_refresh")
    if coming is not None:
        rows["next refresh"] = _next_refresh(coming)
        rows |= {f"reads {name}": _read(read) for name, read in coming["inputs"].items()}
    return rows


def _kept(plan: Mapping[str, Any]) -> str:
    """The aggregates of a query that are kept where their types allow it."""
    kept = [*plan["stages"], *([plan["state"]] if plan["state"] else [])]
    return "; ".join(
        f"{', '.join(each['kept'])} by {', '.join(each['keys']) or 'nothing'}" for each in kept
    )


def _last_refresh(last: Mapping[str, Any]) -> str:
    mode = last["executed"] or "not run"
    return (
        f"{last['outcome']}, {mode} ({last['reason']}), {format_ms(last['took_ms'])}, "
        f"{last['rows_written']:,} rows written"
    )


def _next_refresh(coming: Mapping[str, Any]) -> str:
    """What would be chosen now, and why."""
    if coming["mode"] is None:
        return str(coming["text"])
    return f"{coming['mode']} ({coming['reason']}): {coming['text']}"


def _read(found: Mapping[str, Any]) -> str:
    """What would be read of an input from the changes."""
    if found["rows_held"] is None:
        return "records after its position, which its server knows"
    return (
        f"{found['changed_rows']:,} changed rows and {found['rows_read']:,} old ones of "
        f"{found['rows_held']:,}"
        if found["changed_rows"] is not None
        else f"{found['rows_held']:,} rows"
    )


def _chosen(choice: Mapping[str, Any]) -> str:
    """What a mode was chosen from, and how wrong the estimates were."""
    said = (
        f"{choice['mode']}: full estimated at {format_ms(round(choice['full_ms']))}, "
        f"differential at {format_ms(round(choice['differential_ms']))}"
    )
    if choice["measured_ms"] is None:
        return said
    took, regret = (format_ms(round(choice[key])) for key in ("measured_ms", "regret_ms"))
    return f"{said}; took {took}, regret {regret}"


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
