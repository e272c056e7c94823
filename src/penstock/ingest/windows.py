"""The windows of all stages under one planner: measured every 100 ms, planned every second.

>>> windows = Windows([WindowedChannel(4_096, "store")])
>>> for now_ms in range(0, 1_001, 100):
...     windows.tick(now_ms)
>>> windows.status().stages[0].note
'store: hold 4096, the window limits nobody'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from penstock.flow.channel import WindowedChannel  # noqa: F401  (for the example above)
from penstock.flow.meter import Stage, StageStatus
from penstock.flow.planner import PLAN_MS, PlannerMemory, PlannerPolicy, WindowPlanner


class Downstream(Protocol):
    """The stages behind the durable topic, which may ask the edge to hold back."""

    @property
    def room(self) -> int:
        """How many more messages may be appended to the topic now."""
        ...


class PipelineStatus(NamedTuple):
    """Every stage, first to last, and the one that holds the others back, if any."""

    stages: tuple[StageStatus, ...]
    bottleneck: str | None


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
        self.notes: tuple[str, ...] = ("",) * len(names)
        self.ticks = 0
        """How often the stages were measured: its own clock, in steps of 100 ms."""
        self._warn = warn
        self._planned_ms: int | None = None
        for stage, window in zip(self.stages, self.memory.windows, strict=True):
            stage.resize(window)

    def tick(self, now_ms: int) -> None:
        """Called every 100 ms: measures every stage, and once a second sets the windows."""
        self.ticks += 1
        for stage in self.stages:
            stage.measure(now_ms)
        if self._planned_ms is None:
            self._planned_ms = now_ms
        elif now_ms - self._planned_ms >= PLAN_MS:
            self._planned_ms = now_ms
            self._plan(now_ms)

    def _plan(self, now_ms: int) -> None:
        plan = self.planner.plan(self.memory, [stage.report(now_ms) for stage in self.stages])
        self.memory, self.notes = plan.memory, plan.notes
        for number, window in plan.changes:
            self.stages[number].resize(window)
        if plan.warning is not None:
            self._warn(plan.warning)

    def status(self) -> PipelineStatus:
        """The pipeline for people and metrics."""
        rows = tuple(
            stage.status()._replace(note=note)
            for stage, note in zip(self.stages, self.notes, strict=True)
        )
        return PipelineStatus(rows, bottleneck(rows))


def bottleneck(stages: Sequence[StageStatus]) -> str | None:
    """The stage that holds the others back: the last whose senders were refused or that is stuck.

    None if all keep up. Stages are in the order of the pipeline.
    """
    held = [stage.name for stage in stages if stage.refused or stage.stuck_ms >= 1_000]
    return held[-1] if held else None
