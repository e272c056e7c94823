"""How large each window of a pipeline should be: AIMD or CUBIC per stage, one budget for all.

`plan` is a pure function of memory and measurements, due every second. Stages are numbered from the
first; changes come out from the last to the first, so that a downstream window is set before the
upstream one.

>>> planner = WindowPlanner(PlannerPolicy(stages=("parse", "store")))
>>> memory = planner.begin(bytes_per_slot=(1_000, 1_000))
>>> memory.windows
(4096, 4096)
>>> plan = planner.plan(memory, (Measurement(4_096), Measurement(4_096, occupancy=0.9)))
>>> plan.changes, plan.notes[1]
(((1, 2867),), 'store: decrease to 2867, occupancy 0.90 is above 0.85')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final, Literal, NamedTuple

from penstock.flow.meter import Measurement
from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB, format_bytes, format_ms

PLAN_MS: Final = 1_000
CUBIC_C: Final = 0.4
RELAXED_SHARE: Final = 0.75

Growth = Literal["aimd", "cubic"]


@dataclass(frozen=True, slots=True)
class PlannerPolicy:
    """The parameters of the rules; the defaults are the published ones.

    At `window_initial`, even unbroken growth stays within 15 % over half a minute.
    `p99_samples_min` keeps a slow stage's few samples from looking like congestion.
    """

    stages: tuple[str, ...]
    growth: Growth = "aimd"
    window_min: int = 1_024
    window_max: int = 131_072
    window_initial: int = 4_096
    step: int = 64
    decrease: float = 0.7
    occupancy_max: float = 0.85
    p99_factor: float = 2.0
    p99_samples_min: int = 1_000
    baseline_ewma: float = 0.1
    stall_ms: int = 3_000
    budget_bytes: int = 512 * MIB

    def __post_init__(self) -> None:
        if not self.stages:
            raise Rejected("expected at least one stage, found none")
        if not 1 <= self.window_min <= self.window_initial <= self.window_max:
            raise Rejected(
                "expected 1 <= window_min <= window_initial <= window_max, found "
                f"{self.window_min}, {self.window_initial}, {self.window_max}"
            )


class StageMemory(NamedTuple):
    """What the planner remembers about a stage from one second to the next."""

    window: int
    baseline_p99_ns: float | None = None
    window_before: int = 0  # where the last decrease began and ended, for CUBIC
    window_after: int = 0
    seconds_since: int = 0
    bytes_per_slot: float = 0.0

    def decreased(self, window: int) -> StageMemory:
        """The stage after a decrease; a decrease that changes nothing leaves the curve alone."""
        if window >= self.window:
            return self._replace(window=window)
        return self._replace(
            window=window, window_before=self.window, window_after=window, seconds_since=0
        )


class PlannerMemory(NamedTuple):
    """What the planner remembers about the pipeline."""

    stages: tuple[StageMemory, ...]
    over_budget: bool = False

    @property
    def windows(self) -> tuple[int, ...]:
        """The current windows, first stage first."""
        return tuple(stage.window for stage in self.stages)


class Plan(NamedTuple):
    """The windows to set, in this order, and the reason for every stage.

    `warning` is set once, when the budget starts to bind.
    """

    memory: PlannerMemory
    changes: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]
    warning: str | None


class WindowPlanner:
    """One planner per pipeline; its only state is the policy."""

    def __init__(self, policy: PlannerPolicy) -> None:
        self.policy = policy

    def begin(self, bytes_per_slot: Sequence[float]) -> PlannerMemory:
        """The initial windows. `Rejected` if the smallest windows alone exceed the budget."""
        policy = self.policy
        least = sum(policy.window_min * size for size in bytes_per_slot)
        if least > policy.budget_bytes:
            raise Rejected(
                f"expected the smallest windows ({len(policy.stages)} stages of "
                f"{policy.window_min} slots) within {format_bytes(policy.budget_bytes)}, "
                f"found {format_bytes(least)}",
                budget_bytes=policy.budget_bytes,
                least_bytes=int(least),
            )
        windows = [policy.window_initial] * len(policy.stages)
        fitted = fit_budget(windows, bytes_per_slot, policy.window_min, policy.budget_bytes)
        return PlannerMemory(
            tuple(
                StageMemory(window, bytes_per_slot=size)
                for window, size in zip(fitted, bytes_per_slot, strict=True)
            )
        )

    def plan(self, memory: PlannerMemory, measured: Sequence[Measurement]) -> Plan:
        """Decide every window again, the last stage first."""
        if len(measured) != len(self.policy.stages):
            raise Rejected(
                f"expected {len(self.policy.stages)} measurements, found {len(measured)}"
            )
        rows = zip(
            self.policy.stages, memory.stages, measured, worth_growing(measured), strict=True
        )
        decided = [self._decide(*row) for row in rows]
        stages = [stage for stage, _ in decided]
        notes = [note for _, note in decided]
        self._stall(stages, notes, measured)
        over = self._fit(stages)
        changes = tuple(
            (number, stages[number].window)
            for number in reversed(range(len(stages)))
            if stages[number].window != measured[number].window
        )
        warning = over if over and not memory.over_budget else None
        binds = over is not None or (memory.over_budget and not self._relaxed(stages))
        return Plan(PlannerMemory(tuple(stages), binds), changes, tuple(notes), warning)

    def _decide(
        self, name: str, stage: StageMemory, seen: Measurement, worth_growing: bool
    ) -> tuple[StageMemory, str]:
        if seen.bytes_per_slot:  # until something was sent, the initial size applies
            stage = stage._replace(bytes_per_slot=seen.bytes_per_slot)
        reason = self._congestion(stage, seen)
        if reason is not None:
            window = max(floor(self.policy.decrease * stage.window), self.policy.window_min)
            return stage.decreased(window), f"{name}: decrease to {window}, {reason}"
        stage = self._learn(stage, seen)
        if not seen.limited:
            why = "the stage always has work" if seen.refused else "the window limits nobody"
            return stage, f"{name}: hold {stage.window}, {why}"
        if not worth_growing:
            return stage, f"{name}: hold {stage.window}, the stage below takes no more"
        stage = self._grow(stage)
        return stage, f"{name}: increase to {stage.window}, senders waited for a starved stage"

    def _congestion(self, stage: StageMemory, seen: Measurement) -> str | None:
        """Why the stage is congested, or None.

        A p99 counts as high only beyond what sampling noise explains: in simulation, the windows of
        a healthy stage with one slow item in a hundred were otherwise cut again and again.
        """
        policy = self.policy
        if seen.occupancy > policy.occupancy_max:
            return f"occupancy {seen.occupancy:.2f} is above {policy.occupancy_max}"
        baseline = stage.baseline_p99_ns
        if baseline is None or seen.latency_samples < policy.p99_samples_min:
            return None
        p99_ns = seen.p99_ns if seen.p99_least_ns is None else seen.p99_least_ns
        if p99_ns > policy.p99_factor * baseline:
            return (
                f"p99 {_span(seen.p99_ns)} is above {policy.p99_factor:g} × baseline "
                f"{_span(baseline)}"
            )
        return None

    def _learn(self, stage: StageMemory, seen: Measurement) -> StageMemory:
        """Learn only from seconds without congestion, so a slow stage never becomes its norm."""
        if seen.latency_samples < self.policy.p99_samples_min:
            return stage
        known = stage.baseline_p99_ns
        if known is None:
            return stage._replace(baseline_p99_ns=float(seen.p99_ns))
        learnt = known + self.policy.baseline_ewma * (seen.p99_ns - known)
        return stage._replace(baseline_p99_ns=learnt)

    def _grow(self, stage: StageMemory) -> StageMemory:
        """Add a step; under CUBIC, first return to where the decrease began.

        The return follows the curve, or plain steps from the decrease where those are ahead of it
        (after a small decrease). Steps on top of the curve would overshoot its flat end.
        """
        policy = self.policy
        window, seconds = stage.window + policy.step, stage.seconds_since + 1
        before, after = stage.window_before, stage.window_after
        if policy.growth == "cubic" and stage.window < before:
            curve = max(cubic(before, after, seconds), after + policy.step * seconds)
            window = max(stage.window, min(before, curve))
        return stage._replace(window=min(window, policy.window_max), seconds_since=seconds)

    def _stall(
        self, stages: list[StageMemory], notes: list[str], measured: Sequence[Measurement]
    ) -> None:
        """The timeout: a blocked stage and all upstream ones go to the smallest window at once."""
        stuck = [n for n, seen in enumerate(measured) if seen.stuck_ms >= self.policy.stall_ms]
        if not stuck:
            return
        blocked = self.policy.stages[stuck[-1]]
        for number in range(stuck[-1] + 1):
            name = self.policy.stages[number]
            stages[number] = stages[number].decreased(self.policy.window_min)
            span = measured[stuck[-1]].stuck_ms
            notes[number] = f"{name}: smallest window, {blocked} has finished nothing for {span} ms"

    def _fit(self, stages: list[StageMemory]) -> str | None:
        """Shrink all windows in proportion if together they exceed the budget."""
        policy = self.policy
        wanted = [stage.window for stage in stages]
        bytes_per_slot = [stage.bytes_per_slot for stage in stages]
        total = planned_bytes(stages)
        if total <= policy.budget_bytes:
            return None
        fitted = fit_budget(wanted, bytes_per_slot, policy.window_min, policy.budget_bytes)
        stages[:] = [stage._replace(window=w) for stage, w in zip(stages, fitted, strict=True)]
        return (
            f"windows for {format_bytes(total)} cut to the budget of "
            f"{format_bytes(policy.budget_bytes)}: {dict(zip(policy.stages, fitted, strict=True))}"
        )

    def _relaxed(self, stages: Sequence[StageMemory]) -> bool:
        """Whether the budget no longer binds, with a margin.

        Without the margin, a window that grows by a step every other second would trigger a warning
        each time.
        """
        return planned_bytes(stages) <= RELAXED_SHARE * self.policy.budget_bytes


def planned_bytes(stages: Sequence[StageMemory]) -> float:
    """The memory that full windows would take."""
    return sum(stage.window * stage.bytes_per_slot for stage in stages)


def worth_growing(measured: Sequence[Measurement]) -> list[bool]:
    """Which windows limited their stage, from the last stage to the first.

    Upstream of a stage that refuses items and does not grow itself, a larger window would only
    queue more; in simulation such windows grew for minutes without a gain.
    """
    worth = [seen.limited for seen in measured]
    for above in reversed(range(len(measured) - 1)):
        if measured[above + 1].refused and not worth[above + 1]:
            worth[above] = False
    return worth


def fit_budget(
    windows: Sequence[int], bytes_per_slot: Sequence[float], window_min: int, budget_bytes: int
) -> list[int]:
    """Scale windows down by one factor until they fit; no window goes below the smallest."""
    pairs = list(zip(windows, bytes_per_slot, strict=True))
    fitted = list(windows)
    pinned: set[int] = set()
    while sum(w * size for w, (_, size) in zip(fitted, pairs, strict=True)) > budget_bytes:
        loose = [n for n in range(len(pairs)) if n not in pinned]
        if not loose:
            break
        fixed = sum(window_min * pairs[n][1] for n in pinned)
        free = sum(pairs[n][0] * pairs[n][1] for n in loose)
        factor = max(0.0, (budget_bytes - fixed) / free)
        for n in loose:
            fitted[n] = max(window_min, floor(pairs[n][0] * factor))
        newly = {n for n in loose if fitted[n] == window_min}
        if not newly:
            break
        pinned |= newly
    return fitted


def cubic(window_before: int, window_after: int, seconds: int) -> int:
    """TCP CUBIC's curve: steep after the decrease, flat near the window where it happened."""
    k: float = ((window_before - window_after) / CUBIC_C) ** (1 / 3)
    return floor(CUBIC_C * (seconds - k) ** 3 + window_before)


def _span(span_ns: float) -> str:
    return format_ms(span_ns / 1_000_000)
