"""How large each window of a pipeline should be: AIMD or CUBIC per stage, one budget for all.

`plan` is a pure function of memory and measurements, due every second. Stages are numbered from the
first; windows are decided and changes come out from the last to the first, so that a downstream
window is set before the upstream one. Every decision says why.

>>> planner = WindowPlanner(PlannerPolicy(stages=("parse", "store")))
>>> memory = planner.begin(bytes_per_slot=(1_000, 1_000))
>>> memory.windows
(4096, 4096)
>>> plan = planner.plan(memory, (Measurement(4_096), Measurement(4_096, occupancy=0.9)))
>>> plan.changes, str(plan.decisions[1])
(((1, 2867),), 'store: decrease to 2867, occupancy 0.90 is above 0.85')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from penstock.flow.gradient import Probe
from penstock.flow.meter import Measurement
from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB, format_bytes, format_ms

PLAN_MS: Final = 1_000
OCCUPANCY_MAX: Final = 0.85
CUBIC_C: Final = 0.4
RELAXED_SHARE: Final = 0.75

Growth = Literal["aimd", "cubic"]
Action = Literal["hold", "increase", "decrease", "probe ended", "stalled", "return"]


@dataclass(frozen=True, slots=True)
class PlannerPolicy:
    """The parameters of the rules; the defaults are the published ones.

    At `window_initial`, even unbroken growth stays within 15 % over half a minute.
    `p99_samples_min` keeps a slow stage's few samples from looking like congestion, `p99_noise_ms`
    the microseconds of a quick one; a p99 has to be high for `late_s`. `return_s` is how long
    windows take to return after a stall, `warm_ms` how long a stage may be starting.
    """

    stages: tuple[str, ...]
    growth: Growth = "aimd"
    window_min: int = 1_024
    window_max: int = 131_072
    window_initial: int = 4_096
    step: int = 64
    decrease: float = 0.7
    occupancy_max: float = OCCUPANCY_MAX
    p99_factor: float = 2.0
    p99_samples_min: int = 1_000
    p99_noise_ms: float = 1.0
    late_s: int = 2
    baseline_ewma: float = 0.1
    stall_ms: int = 3_000
    return_s: int = 5
    warm_ms: int = 60_000
    budget_bytes: int = 512 * MIB

    def __post_init__(self) -> None:
        if not self.stages:
            raise Rejected("a planner needs at least one stage")
        if not 1 <= self.window_min <= self.window_initial <= self.window_max:
            raise Rejected(
                "expected 1 <= window_min <= window_initial <= window_max, found "
                f"{self.window_min}, {self.window_initial}, {self.window_max}"
            )


class StageMemory(NamedTuple):
    """What the planner remembers about a stage from one second to the next."""

    window: int
    baselines: Mapping[int, float] = MappingProxyType({})
    """The usual p99 in ns, by the size of batches (powers of two; 1 where items come singly)."""
    bytes_per_slot: float = 0.0
    probe: Probe = Probe()
    draining: int = 0  # what was in a window when it was cut, while that is too much for it
    window_before: int = 0  # where the last decrease began and ended, for CUBIC
    window_after: int = 0
    seconds_since: int = 0
    return_to: int = 0  # the window before a stall, until it is reached again
    recent: tuple[int, ...] = ()  # the windows of the last seconds
    late_s: int = 0  # for how many seconds its p99 has been high

    def cut(self, window: int, occupied: int) -> StageMemory:
        """The stage at a smaller window, which what is in it has to drain to."""
        return self._replace(window=window, draining=occupied, probe=Probe())

    def decreased(self, window: int, occupied: int = 0) -> StageMemory:
        """The stage after a decrease; a decrease that changes nothing leaves the curve alone."""
        if window >= self.window:
            return self._replace(window=window)
        return self.cut(window, occupied)._replace(
            window_before=self.window, window_after=window, seconds_since=0
        )

    def usual_p99_ns(self, batch_items: float) -> float | None:
        """The baseline for batches of a size; None if no latency was ever learnt.

        A batch may take as long as a larger one, or twice as long as one of half its size: it is no
        sign of congestion that large batches take longer than small ones.
        """
        size, known = size_class(batch_items), self.baselines
        if not known or size in known:
            return known.get(size)
        smaller = max((each for each in known if each < size), default=None)
        if smaller is not None:
            return float(known[smaller] * 2 ** (size - smaller))
        return known[min(known)]


class PlannerMemory(NamedTuple):
    """What the planner remembers about the pipeline."""

    stages: tuple[StageMemory, ...]
    over_budget: bool = False

    @property
    def windows(self) -> tuple[int, ...]:
        """The current windows, first stage first."""
        return tuple(stage.window for stage in self.stages)


class Decision(NamedTuple):
    """What was decided about one window, and why."""

    stage: str
    action: Action
    window: int
    reason: str

    def __str__(self) -> str:
        verb = self.action if self.action == "hold" else f"{self.action} to"
        return f"{self.stage}: {_VERBS.get(self.action, verb)} {self.window}, {self.reason}"


_VERBS: Final[Mapping[Action, str]] = {
    "probe ended": "back to",
    "stalled": "smallest window",
}


class Plan(NamedTuple):
    """The windows to set, in this order, and the decision about every stage, first to last.

    `warning` is set once, when the budget starts to bind.
    """

    memory: PlannerMemory
    changes: tuple[tuple[int, int], ...]
    decisions: tuple[Decision, ...]
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
                f"the smallest windows ({len(policy.stages)} stages of {policy.window_min} slots) "
                f"take {format_bytes(least)}, more than the budget of "
                f"{format_bytes(policy.budget_bytes)}: raise the budget",
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
        names = self.policy.stages
        if len(measured) != len(names):
            raise Rejected(f"{len(names)} stages need as many measurements, not {len(measured)}")
        stages, decisions = list(memory.stages), [Decision("", "hold", 0, "")] * len(names)
        stalled = self._last_stalled(measured)
        for number in reversed(range(len(names))):
            seen = measured[number]
            stage = _sized(stages[number], seen)
            if stalled is not None and number <= stalled:
                span = format_ms(measured[stalled].stuck_ms)
                found = self._stall(stage, f"{names[stalled]} has finished nothing for {span}")
            elif stage.return_to:
                found = self._return(stage)
            else:
                found = self._decide(stage, seen, self._limit_below(number, measured, decisions))
            stages[number] = self._remember(found[0])
            decisions[number] = Decision(names[number], found[1], found[0].window, found[2])
        self._couple(stages, decisions, measured)
        over = self._fit(stages, decisions, measured)
        changes = tuple(
            (number, stages[number].window)
            for number in reversed(range(len(stages)))
            if stages[number].window != measured[number].window
        )
        warning = over if over and not memory.over_budget else None
        binds = over is not None or (memory.over_budget and not self._relaxed(stages))
        return Plan(PlannerMemory(tuple(stages), binds), changes, tuple(decisions), warning)

    # One stage

    def _decide(self, stage: StageMemory, seen: Measurement, below: str | None) -> _Decided:
        if seen.warming:
            return stage, "hold", "the stage is starting"
        late = self._late(stage, seen)
        stage = stage._replace(late_s=stage.late_s + 1 if late else 0)
        reason = self._full(stage, seen) or (late if stage.late_s >= self.policy.late_s else None)
        if reason is not None:
            window = max(floor(self.policy.decrease * stage.window), self.policy.window_min)
            return stage.decreased(window, seen.occupied), "decrease", reason
        if late is not None:
            return stage, "hold", f"{late}, which may pass"
        if stage.draining:
            stage, is_drained = self._drain(stage, seen)
            if not is_drained:
                return stage, "hold", f"{seen.occupied} items drain to the smaller window"
        stage = self._learn(stage, seen)
        if not seen.refused:
            return stage._replace(probe=stage.probe.unlimited()), "hold", "nothing waited for it"
        if below is not None:
            return stage, "hold", f"{below}, below, is the limit"
        return self._grow(stage, seen)

    def _grow(self, stage: StageMemory, seen: Measurement) -> _Decided:
        """Add a step if that lets more through; under CUBIC, first return to the old window.

        The return follows the curve, or plain steps from the decrease where those are ahead of it
        (after a small decrease). Steps on top of the curve would overshoot its flat end.
        """
        policy, window = self.policy, stage.window
        if policy.growth == "cubic" and window < stage.window_before:
            before, after = stage.window_before, stage.window_after
            seconds = stage.seconds_since + 1
            curve = max(cubic(before, after, seconds), after + policy.step * seconds)
            window = max(window, min(before, curve))
            grown = stage._replace(window=window, seconds_since=seconds)
            return grown, "increase", f"senders waited, along the curve to {before}"
        probe, verdict = stage.probe.limited(window, seen.pace_per_s)
        stage = stage._replace(probe=probe, window=verdict.window)
        if verdict.kind == "rest":
            return stage, "hold", f"more did not go through with more: {verdict.reason}"
        if verdict.kind == "back":
            return stage, "probe ended", f"no more went through: {verdict.reason}"
        window = min(window + policy.step, policy.window_max)
        reason = f"senders waited, more went through: {verdict.reason}"
        return (
            stage._replace(window=window),
            "increase" if window > stage.window else "hold",
            reason if verdict.reason else "senders waited",
        )

    def _full(self, stage: StageMemory, seen: Measurement) -> str | None:
        """Why the stage is congested by what is in it, or None.

        What a cut window has not drained yet shows the first decrease taking effect, and is not a
        reason for another.
        """
        most = self.policy.occupancy_max
        if seen.occupancy > most and not 0 < seen.occupied <= stage.draining:
            return f"occupancy {seen.occupancy:.2f} is above {most}"
        return None

    def _late(self, stage: StageMemory, seen: Measurement) -> str | None:
        """How much later than usual the stage finishes items, or None; congestion if it lasts.

        A p99 counts as high only beyond what chance explains: in simulation, the windows of a
        healthy stage with one slow item in a hundred were otherwise cut again and again.
        """
        policy = self.policy
        usual_ns = stage.usual_p99_ns(seen.batch_items)
        if usual_ns is None or seen.latency_samples < policy.p99_samples_min:
            return None
        p99_ns = seen.p99_ns if seen.p99_least_ns is None else seen.p99_least_ns
        if p99_ns > max(policy.p99_factor * usual_ns, policy.p99_noise_ms * 1e6):
            return (
                f"p99 {_span(seen.p99_ns)} is above {policy.p99_factor:g} × baseline "
                f"{_span(usual_ns)}"
            )
        return None

    def _drain(self, stage: StageMemory, seen: Measurement) -> tuple[StageMemory, bool]:
        """Whether a cut window holds no more than it should. The second it took does not count."""
        is_drained = seen.occupied <= self.policy.occupancy_max * stage.window
        return stage._replace(draining=0 if is_drained else seen.occupied), is_drained

    def _learn(self, stage: StageMemory, seen: Measurement) -> StageMemory:
        """Learn only from seconds without congestion, so a slow stage never becomes its norm."""
        if seen.latency_samples < self.policy.p99_samples_min:
            return stage
        size, usual_ns = size_class(seen.batch_items), stage.usual_p99_ns(seen.batch_items)
        learnt = float(seen.p99_ns)
        if size in stage.baselines:
            known = stage.baselines[size]
            learnt = known + self.policy.baseline_ewma * (seen.p99_ns - known)
        elif usual_ns is not None:
            learnt = min(learnt, usual_ns)
        return stage._replace(baselines={**stage.baselines, size: learnt})

    # Several stages

    def _limit_below(
        self, number: int, measured: Sequence[Measurement], decisions: Sequence[Decision]
    ) -> str | None:
        """The stage below, if it refuses items and takes no more of them from now on.

        A larger window above it would only hold a longer queue.
        """
        if number + 1 == len(measured) or not measured[number + 1].refused:
            return None
        is_growing = decisions[number + 1].action in ("increase", "return")
        return None if is_growing else self.policy.stages[number + 1]

    def _couple(
        self,
        stages: list[StageMemory],
        decisions: list[Decision],
        measured: Sequence[Measurement],
    ) -> None:
        """Give the stages of a job one window: the smallest that one of them was given.

        An item takes slots of all of them, so a larger window of one would hold nothing more.
        """
        chains: dict[str, list[int]] = {}
        for number, seen in enumerate(measured):
            if seen.chain:
                chains.setdefault(seen.chain, []).append(number)
        for numbers in chains.values():
            lead = min(numbers, key=lambda n: (stages[n].window, not stages[n].return_to, -n))
            told = decisions[lead]
            for number in numbers:
                stage, name = stages[number], self.policy.stages[number]
                if stage.window != stages[lead].window:
                    reason = f"with {told.stage}: {told.reason}"
                    decisions[number] = Decision(name, told.action, told.window, reason)
                stages[number] = stages[lead]._replace(
                    baselines=stage.baselines, bytes_per_slot=stage.bytes_per_slot
                )

    def _last_stalled(self, measured: Sequence[Measurement]) -> int | None:
        """The last stage that has work and finishes nothing; not while it, or one below, starts."""
        for number in reversed(range(len(measured))):
            seen = measured[number]
            if seen.warming and seen.stuck_ms < self.policy.warm_ms:
                return None
            if seen.stuck_ms >= self.policy.stall_ms:
                return number
        return None

    def _stall(self, stage: StageMemory, reason: str) -> _Decided:
        """The timeout: a blocked stage and all upstream ones go to the smallest window at once.

        A window that was decreased since the stage is blocked returns to where it was before that.
        """
        return_to = max(stage.return_to, stage.window, *stage.recent)
        stage = stage.cut(self.policy.window_min, 0)
        return stage._replace(return_to=return_to, seconds_since=0), "stalled", reason

    def _remember(self, stage: StageMemory) -> StageMemory:
        """Keep the windows of as many seconds as it takes to notice a stall."""
        if stage.return_to:
            return stage._replace(recent=())
        kept = self.policy.stall_ms // PLAN_MS + 1
        return stage._replace(recent=(*stage.recent[1 - kept :], stage.window))

    def _return(self, stage: StageMemory) -> _Decided:
        """After a stall: back to where the window was, along CUBIC's curve.

        What is measured meanwhile is the stall itself: items that waited through it are late and
        fill the small windows. So nothing is learnt and no signal counts until the window is back.
        """
        policy, seconds = self.policy, stage.seconds_since + 1
        window = cubic(stage.return_to, policy.window_min, seconds, back_s=policy.return_s)
        reason = f"the stall is over, along the curve to {stage.return_to}"
        is_back = seconds >= policy.return_s
        stage = stage._replace(
            window=window, seconds_since=seconds, return_to=0 if is_back else stage.return_to
        )
        return stage, "return", reason

    def _fit(
        self,
        stages: list[StageMemory],
        decisions: list[Decision],
        measured: Sequence[Measurement],
    ) -> str | None:
        """Shrink all windows in proportion if together they exceed the budget."""
        policy = self.policy
        wanted = [stage.window for stage in stages]
        bytes_per_slot = [stage.bytes_per_slot for stage in stages]
        total = planned_bytes(stages)
        if total <= policy.budget_bytes:
            return None
        fitted = fit_budget(wanted, bytes_per_slot, policy.window_min, policy.budget_bytes)
        told = (
            f"windows for {format_bytes(total)} cut to the budget of "
            f"{format_bytes(policy.budget_bytes)}"
        )
        for number, window in enumerate(fitted):
            seen = measured[number]
            if window < wanted[number]:
                is_cut = window < seen.window
                draining = seen.occupied if is_cut else stages[number].draining
                stages[number] = stages[number]._replace(window=window, draining=draining)
                action: Action = "decrease" if is_cut else "hold"
                decisions[number] = Decision(policy.stages[number], action, window, told)
        return f"{told}: {dict(zip(policy.stages, fitted, strict=True))}"

    def _relaxed(self, stages: Sequence[StageMemory]) -> bool:
        """Whether the budget no longer binds, with a margin.

        Without the margin, a window that grows by a step every other second would trigger a warning
        each time.
        """
        return planned_bytes(stages) <= RELAXED_SHARE * self.policy.budget_bytes


_Decided = tuple[StageMemory, Action, str]


def size_class(batch_items: float) -> int:
    """Batches of about the same size: those between two powers of two."""
    return max(1, round(batch_items)).bit_length()


def planned_bytes(stages: Sequence[StageMemory]) -> float:
    """The memory that full windows would take."""
    return sum(stage.window * stage.bytes_per_slot for stage in stages)


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


def cubic(
    window_before: int, window_after: int, seconds: int, *, back_s: float | None = None
) -> int:
    """TCP CUBIC's curve: steep after the decrease, flat near the window where it happened.

    It is back there after the third root of the decrease over `CUBIC_C`, or after `back_s`.
    """
    lost = window_before - window_after
    k: float = (lost / CUBIC_C) ** (1 / 3) if back_s is None else back_s
    return floor(window_before - lost * ((k - seconds) / k) ** 3)


def _sized(stage: StageMemory, seen: Measurement) -> StageMemory:
    """Until something was sent, the initial size applies."""
    return stage._replace(bytes_per_slot=seen.bytes_per_slot) if seen.bytes_per_slot else stage


def _span(span_ns: float) -> str:
    return format_ms(span_ns / 1_000_000)
