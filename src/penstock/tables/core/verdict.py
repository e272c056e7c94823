"""Whether a unit may run now, and if not, why: one function for every path that starts units.

Serial, dry-run, parallel and manual paths call `may_run`; "why is this waiting" shows its answer.

>>> may_run(UnitFacts(key="table:a", due_ms=5_000, changed=("raw",)), now_ms=2_000)
Verdict(reason=<Reason.NOT_DUE: 'not_due'>, text='due in 3 s', until_ms=5000, stale=())
>>> may_run(UnitFacts(key="table:a", due_ms=5_000, changed=("raw",)), now_ms=5_000).may_run
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from penstock.kernel.units import format_ms
from penstock.tables.core.model import Status


class Reason(StrEnum):
    """Why a unit runs or does not. The first that applies, in this order, is the answer."""

    IN_FLIGHT = "in_flight"
    DRAINING = "draining"
    GATED = "gated"
    LOCK_HELD = "lock_held"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    ERROR = "error"
    SOURCE_MISSING = "source_missing"
    ENGINE_AWAY = "engine_away"
    BACKING_OFF = "backing_off"
    ON_DEMAND = "on_demand"
    NO_COORDINATOR = "no_coordinator"
    NOT_DUE = "not_due"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_RUNNING = "upstream_running"
    UPSTREAM_DUE = "upstream_due"
    UPSTREAM_EMPTY = "upstream_empty"
    NO_CHANGE = "no_change"
    NO_BUDGET = "no_budget"
    READY = "ready"


_STOPPED: Final = {
    Status.PAUSED: Reason.PAUSED,
    Status.SUSPENDED: Reason.SUSPENDED,
    Status.ERROR: Reason.ERROR,
}
WILL_RUN: Final = frozenset(
    {
        Reason.LOCK_HELD,
        Reason.UPSTREAM_RUNNING,
        Reason.UPSTREAM_DUE,
        Reason.NO_BUDGET,
        Reason.READY,
    }
)
"""Reasons of a due unit that will run without intervention: its readers wait for it."""


class Verdict(NamedTuple):
    """The answer: a reason for programs, a text for people.

    `until_ms` is when to ask again, if time alone can change the answer. `stale` names stopped
    upstream units whose last good data would be read.
    """

    reason: Reason
    text: str
    until_ms: int | None = None
    stale: tuple[str, ...] = ()

    @property
    def may_run(self) -> bool:
        """Whether the unit may run now."""
        return self.reason is Reason.READY


@dataclass(frozen=True, slots=True)
class UpstreamFacts:
    """What a reader must know about a direct upstream unit.

    `finished_ms` is when it last ended or was found unchanged. `failing` holds from a retryable
    failure until it succeeds or is stopped; `error` is the failure, `retry_at_ms` the next attempt.
    """

    key: str
    finished_ms: int | None = None
    running: bool = False
    will_run: bool = False
    failing: bool = False
    stopped: Status | None = None
    error: str | None = None
    retry_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """Everything the answer depends on.

    `changed` names inputs that moved since the contents were made, known since `moved_ms`.
    `rebuild` means that contents must be made regardless of the inputs. `requested` is set when a
    person asked for it. `missing` are inputs that are not in the lake, `unfilled` those that were
    never filled. `error` is the failure before the attempt at `retry_at_ms`, `attempt` its number.
    `away` is why the engine is unreachable, if the unit waits for that; `lost_workers` means that
    it lost workers since it last succeeded. Without a coordinator (`coordinated`) nothing is
    refreshed automatically.
    """

    key: str
    due_ms: int | None
    moved_ms: int | None = None
    changed: tuple[str, ...] = ()
    rebuild: bool = False
    requested: bool = False
    in_flight_job: int | None = None
    draining: bool = False
    gated: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    stopped: tuple[tuple[str, Status], ...] = ()
    missing: tuple[str, ...] = ()
    retry_at_ms: int | None = None
    error: str | None = None
    attempt: int = 1
    away: str | None = None
    lost_workers: bool = False
    coordinated: bool = True
    upstreams: tuple[UpstreamFacts, ...] = ()
    unfilled: tuple[str, ...] = ()
    free_slots: int = 1


def may_run(facts: UnitFacts, now_ms: int) -> Verdict:
    """Whether a unit may run now.

    A person's request overrides schedule, back-off, a stopped status and upstream work; like
    everything else it waits for a running job, a gate, a lock and a free slot. It also waits for
    back-off after lost workers: it is retried automatically, and could kill one worker after
    another.
    """
    if facts.requested:
        backing_off = _backing_off(facts, now_ms) if facts.lost_workers else None
        return _occupied(facts) or backing_off or _last(facts)
    held = _occupied(facts) or _held_back(facts, now_ms)
    return held or _upstream(facts, now_ms) or _unfilled(facts) or _last(facts)


def _occupied(facts: UnitFacts) -> Verdict | None:
    if facts.in_flight_job is not None:
        return Verdict(Reason.IN_FLIGHT, f"job {facts.in_flight_job} is refreshing it")
    if facts.draining:
        return Verdict(Reason.DRAINING, "the coordinator is draining and starts nothing new")
    if facts.gated:
        return Verdict(Reason.GATED, f"gate closed: {_list(facts.gated)}")
    if facts.locked:
        return Verdict(Reason.LOCK_HELD, f"another process is refreshing {_list(facts.locked)}")
    return None


def _held_back(facts: UnitFacts, now_ms: int) -> Verdict | None:
    for table, status in facts.stopped:
        return Verdict(_STOPPED[status], f"{table} is {status.value}")
    if facts.missing:
        text = f"its source {_list(facts.missing)} is not in the lake"
        return Verdict(Reason.SOURCE_MISSING, text)
    backing_off = _backing_off(facts, now_ms)
    if backing_off is not None:
        return backing_off
    if facts.due_ms is None:
        return Verdict(Reason.ON_DEMAND, "refreshed on demand only")
    if not facts.coordinated:
        text = "no coordinator is running: start one with `penstock table run`"
        return Verdict(Reason.NO_COORDINATOR, text)
    if now_ms < facts.due_ms:
        return Verdict(Reason.NOT_DUE, f"due in {format_ms(facts.due_ms - now_ms)}", facts.due_ms)
    return None


def _backing_off(facts: UnitFacts, now_ms: int) -> Verdict | None:
    if facts.retry_at_ms is None or now_ms >= facts.retry_at_ms:
        return None
    left = format_ms(facts.retry_at_ms - now_ms)
    if facts.away is not None:
        text = f"the engine is away, trying again in {left}: {facts.away}"
        return Verdict(Reason.ENGINE_AWAY, text, facts.retry_at_ms)
    said = f" (attempt {facts.attempt}): {facts.error}" if facts.error else ""
    return Verdict(Reason.BACKING_OFF, f"failed, trying again in {left}{said}", facts.retry_at_ms)


def _upstream(facts: UnitFacts, now_ms: int) -> Verdict | None:
    """Wait once for each upstream unit: for its run that was running or due when this became due.

    A run that ended since then counts as done, even if the unit is due or running again; otherwise
    a unit below two busy ones would never find both idle.
    """
    waiting = [up for up in facts.upstreams if up.failing and not up.running]
    if waiting:
        return Verdict(Reason.UPSTREAM_FAILED, _failed_above(waiting, now_ms))
    open_rounds = [up for up in facts.upstreams if not _is_done(up, facts)]
    running = [up for up in open_rounds if up.running]
    if running:
        return Verdict(Reason.UPSTREAM_RUNNING, f"waiting for {_keys(running)} to end")
    due = [up for up in open_rounds if up.will_run]
    if due:
        return Verdict(Reason.UPSTREAM_DUE, f"waiting for {_keys(due)}, which is due as well")
    return None


def _failed_above(waiting: Sequence[UpstreamFacts], now_ms: int) -> str:
    first = waiting[0]
    text = f"{_keys(waiting)} failed and will be tried again"
    if first.retry_at_ms is not None and first.retry_at_ms > now_ms:
        text += f" in {format_ms(first.retry_at_ms - now_ms)}"
    return f"{text}: {first.error}" if first.error else text


def _unfilled(facts: UnitFacts) -> Verdict | None:
    """Wait for inputs that were never filled: there is nothing to read."""
    if not facts.unfilled:
        return None
    text = f"waiting for {_list(facts.unfilled)}, which was never filled"
    said = [f"{up.key} is {up.stopped.value}" for up in facts.upstreams if up.stopped is not None]
    return Verdict(Reason.UPSTREAM_EMPTY, f"{text}: {', '.join(said)}" if said else text)


def _is_done(upstream: UpstreamFacts, facts: UnitFacts) -> bool:
    """Whether an upstream unit ended since this one became due: by time, or later by a change.

    A change and the run that follows it may fall into one millisecond: only later ends count.
    """
    if upstream.failing or upstream.finished_ms is None:
        return False
    due_ms, moved_ms = facts.due_ms or 0, facts.moved_ms or 0
    return upstream.finished_ms >= due_ms and (
        moved_ms <= due_ms or upstream.finished_ms > moved_ms
    )


def _last(facts: UnitFacts) -> Verdict:
    if not facts.changed and not facts.rebuild:
        return Verdict(Reason.NO_CHANGE, "nothing it reads has changed")
    if facts.free_slots < 1:
        return Verdict(Reason.NO_BUDGET, "all refresh slots are in use")
    stale = tuple(up.key for up in facts.upstreams if up.stopped is not None)
    said = [f"{up.key} is {up.stopped.value}" for up in facts.upstreams if up.stopped is not None]
    note = f", on the last good data: {', '.join(said)}" if said else ""
    return Verdict(Reason.READY, f"may run now{note}", None, stale)


def _keys(upstreams: Sequence[UpstreamFacts]) -> str:
    return _list([upstream.key for upstream in upstreams])


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
