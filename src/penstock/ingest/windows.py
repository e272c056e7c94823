"""The windows of all stages under one planner: measured every 100 ms, planned every second.

>>> windows = Windows([WindowedChannel(4_096, "store")])
>>> for now_ms in range(0, 1_001, 100):
...     windows.tick(now_ms)
>>> windows.status().stages[0].note
'store: hold 4096, nothing waited for it'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.flow.channel import WindowedChannel  # noqa: F401  (for the example above)
from penstock.flow.meter import Stage, StageStatus
from penstock.flow.planner import (
    PLAN_MS,
    Decision,
    PlannerMemory,
    PlannerPolicy,
    WindowPlanner,
)

DECISIONS_KEPT: Final = 100
STUCK_MS: Final = 3_000
"""A stage that has finished nothing for so long holds the others back, whatever else is seen."""
READING_MAX: Final = 0.8
"""The share of a thread from which on reading from sockets is what holds devices back."""


class PastDecision(NamedTuple):
    """A decision, and how long ago it was made."""

    ago_ms: int
    stage: str
    action: str
    window: int
    reason: str


class PipelineStatus(NamedTuple):
    """Every stage, first to last, and the one that holds the others back, if any.

    `decisions` are the last ones that differ from the ones before them, the newest first.
    """

    stages: tuple[StageStatus, ...]
    bottleneck: str | None
    decisions: tuple[PastDecision, ...] = ()


class Windows:
    """One planner over the stages of a pipeline, in the order records go.

    `warn` is called when the memory budget starts to bind. `Rejected` if it is too small.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        policy: PlannerPolicy | None = None,
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.stages = tuple(stages)
        names = tuple(stage.name for stage in stages)
        policy = PlannerPolicy(stages=names) if policy is None else replace(policy, stages=names)
        self.planner = WindowPlanner(policy)
        self.memory: PlannerMemory = self.planner.begin([stage.slot_bytes for stage in stages])
        self.ticks = 0
        """How often the stages were measured: its own clock, in steps of 100 ms."""
        self._warn = warn
        self._now_ms = 0
        self._planned_ms: int | None = None
        self._last: tuple[Decision, ...] = ()
        self._decisions: deque[tuple[int, Decision]] = deque(maxlen=DECISIONS_KEPT)
        for stage, window in zip(self.stages, self.memory.windows, strict=True):
            stage.resize(window)

    def tick(self, now_ms: int) -> None:
        """Called every 100 ms: measures every stage, and once a second sets the windows."""
        self.ticks += 1
        self._now_ms = now_ms
        for stage in self.stages:
            stage.measure(now_ms)
        if self._planned_ms is None:
            self._planned_ms = now_ms
        elif now_ms - self._planned_ms >= PLAN_MS:
            self._planned_ms = now_ms
            self._plan(now_ms)

    def _plan(self, now_ms: int) -> None:
        plan = self.planner.plan(self.memory, [stage.report(now_ms) for stage in self.stages])
        self.memory = plan.memory
        for number, window in plan.changes:
            self.stages[number].resize(window)
        before = self._last or (None,) * len(plan.decisions)
        for was, now in zip(reversed(before), reversed(plan.decisions), strict=True):
            # Most seconds decide what the second before did, in other numbers.
            if was is None or (was.action, was.window) != (now.action, now.window):
                self._decisions.appendleft((now_ms, now))
        self._last = plan.decisions
        if plan.warning is not None:
            self._warn(plan.warning)

    def status(self) -> PipelineStatus:
        """The pipeline for people and metrics."""
        rows = tuple(stage.status() for stage in self.stages)
        if self._last:
            notes = zip(rows, self._last, strict=True)
            rows = tuple(row._replace(note=str(decision)) for row, decision in notes)
        past = tuple(PastDecision(self._now_ms - at_ms, *each) for at_ms, each in self._decisions)
        return PipelineStatus(rows, bottleneck(rows), past)


def bottleneck(stages: Sequence[StageStatus]) -> str | None:
    """The stage that holds the others back; None if all keep up.

    Stages are in the order of the pipeline. The last stage that is stuck is it. Otherwise the last
    one whose senders were refused and those behind it are looked at: the one that spends the most
    time on the items is it. Stages of one job are looked at together: the job refuses for them all.
    The first stage refuses nothing while it reads: if it reads all the time, devices wait for it.
    """
    stuck = [stage.name for stage in stages if stage.stuck_ms >= STUCK_MS]
    if stuck:
        return stuck[-1]
    refusing = [number for number, stage in enumerate(stages) if stage.refused]
    if not refusing:
        first = stages[0]
        return first.name if first.busy > READING_MAX and not first.chain else None
    last = stages[refusing[-1]]
    behind = stages[refusing[-1] :]
    if last.chain:
        behind = [stage for stage in stages if stage.chain == last.chain] + [
            stage for stage in behind if stage.chain != last.chain
        ]
    jobs = [[s for s in behind if s is one or (s.chain and s.chain == one.chain)] for one in behind]
    slowest = max(jobs, key=lambda job: sum(stage.busy for stage in job))
    return max(slowest, key=lambda stage: stage.busy).name
