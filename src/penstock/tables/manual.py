"""A manual refresh without a coordinator, under the same locks and rules.

Its job id is negative: coordinators count up from one, so the two cannot collide.
"""

from __future__ import annotations

from random import SystemRandom
from typing import Final
from uuid import uuid4

from penstock.kernel.errors import Rejected, Unavailable
from penstock.kernel.system import SystemClock, meanwhile
from penstock.tables import rows
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.jobs import job_for
from penstock.tables.core.model import Status
from penstock.tables.core.units import ExecutionUnitGraph, Unit
from penstock.tables.engine import Refresher
from penstock.tables.positions import Positions
from penstock.tables.processes import process_name
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import FOREIGN_MS, MANUAL, Definitions, TableStore
from penstock.tables.worker.claim import claim_for_person
from penstock.tables.worker.outcomes import Cancelled, Failed, Succeeded
from penstock.tables.worker.unit import Tell, UnitWorker

_SPREAD: Final = 1 << 20


def refresh_here(
    store: TableStore,
    settings: WarehouseSettings,
    engine: Refresher,
    table: str,
    force: bool,
    tell: Tell | None = None,
) -> tuple[bool, str]:
    """Refresh a table's unit in this process; returns whether it succeeded, and a message.

    Raises `LockHeld` if another process is refreshing a member, `Rejected` if a gate is closed. A
    failure is recorded. It stops a table if a retry cannot fix it, or if it is the first one:
    nothing would retry automatically, and the table's status would only say that it was never
    filled.
    """
    clock = SystemClock()
    definitions = store.definitions()
    unit = ExecutionUnitGraph(definitions.graph).unit_of(table)
    _check_gates(store, unit)
    is_volatile = any(definitions.graph.tables[name].volatile for name in unit.members)
    if not force and not is_volatile and not _has_changed(store, unit):
        return True, "nothing it reads has changed"
    me = process_name()
    now_ms = clock.now_ms()
    job = job_for(
        unit,
        -(now_ms * _SPREAD + SystemRandom().randrange(_SPREAD)),
        graph_version=definitions.version,
        coordinator=f"{MANUAL}{me}",
        attempt_no=1,
        now_ms=now_ms,
    )
    topics = settings.topic_positions()
    worker = UnitWorker(
        store, engine, topics=topics, api_key=settings.topics_api_key, now_ms=clock.now_ms
    )
    name = f"{me}#{uuid4().hex[:8]}"
    store.show_life(me, now_ms)  # before the lock, which could otherwise look like a dead process's
    try:
        claimed = claim_for_person(store, job, name, now_ms=now_ms, reserve_ms=settings.reserve_ms)

        def show() -> None:
            store.show_life(me, clock.now_ms())
            store.lake.extend(claimed.token, settings.reserve_ms)

        with meanwhile(show, min(FOREIGN_MS / 3, settings.reserve_ms / 4) / 1_000):
            ended = worker.run(claimed, forced=force, tell=tell)
    finally:
        worker.close()
    if isinstance(ended, Succeeded):
        store.run(rows.NOTE_COMMIT, *rows.commit_note(job.job_id, ended.commit_ms))
    if isinstance(ended, Failed):
        _stop(store, definitions, unit, ended)
        return False, ended.detail
    if isinstance(ended, Cancelled):
        raise Unavailable(f"the refresh of {table} was cancelled: {ended.detail}")
    for name in unit.members:
        store.run(rows.START_TABLE, Status.ACTIVE.value, name)
    return True, "refreshed"


def _stop(store: TableStore, definitions: Definitions, unit: Unit, failed: Failed) -> None:
    """Set the tables at fault to ERROR, with the error."""
    if failed.kind.blameless:
        return
    with store.lake.look() as reader:
        made = store.frontiers(reader)
    for name in unit.members if failed.member is None else (failed.member,):
        if failed.kind is FailureKind.PERMANENT or name not in made:
            query = definitions.graph.tables[name].query
            store.run(rows.STOP_TABLE, Status.ERROR.value, failed.detail, name, query)


def _check_gates(store: TableStore, unit: Unit) -> None:
    closed = {name for (name,) in store.lake.query(rows.SELECT_GATES)}
    found = sorted(closed & {*unit.members, *unit.inputs})
    if found:
        raise Rejected(f"{unit.key} cannot be refreshed: gates of {', '.join(found)} are closed")


def _has_changed(store: TableStore, unit: Unit) -> bool:
    """Whether a member was never filled, or an input has moved; topics always count as moved."""
    positions = Positions()
    with store.lake.look() as reader:
        known = store.frontiers(reader)
        positions.advance(reader)
        now = positions.of_all(reader, [*unit.inputs, *unit.members])
    positions.checkpoint(store.lake)  # so that the refresh finds the same positions
    for name in unit.members:
        frontier = known[name].frontier if name in known else None
        if frontier is None or any(now.get(source) != at for source, at in frontier.items()):
            return True
    return False
