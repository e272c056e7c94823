"""A coordinator with a shell that does next to nothing: permits are always won, jobs wait."""

from __future__ import annotations

from random import Random

from penstock.tables.core.capacity import DispatchSettings, ParallelMode
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.events import (
    AnswerRequest,
    AskToken,
    Effect,
    Event,
    GraphChanged,
    JobFailed,
    JobStarted,
    JobSucceeded,
    Refreshed,
    SetStatus,
    SourcesMoved,
    Start,
    Tick,
    TokenWon,
)
from penstock.tables.core.failures import FailureKind, FailurePolicy
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.core.model import TableDefinition, define


def reads(name: str, *sources: str, **options: str) -> TableDefinition:
    return define(name, f"SELECT * FROM {', '.join(sources)}", **options)


class Stage:
    """Tells a coordinator what happens and keeps what it wanted."""

    def __init__(
        self,
        *tables: TableDefinition,
        mode: ParallelMode = ParallelMode.ON,
        running_max: int = 4,
        permits: int = 100,
    ) -> None:
        settings = DispatchSettings(
            parallel_refresh_mode=mode,
            max_concurrent_refreshes=running_max,
            retry=FailurePolicy(jitter=0.0),
        )
        self.coordinator = Coordinator("c1", settings, Random(1))
        self.now_ms = 1_000_000
        self.permits = permits
        self.effects: list[Effect] = []
        self.jobs: dict[str, RefreshJob] = {}
        self.snapshot = 0
        self.graph = StreamGraph(tables)
        for source in self.graph.sources:
            self.coordinator.step(SourcesMoved({source: self.next_position()}), self.now_ms)
        self.tell(GraphChanged(self.graph, 1))

    def next_position(self) -> LakePosition:
        self.snapshot += 1
        return LakePosition(self.snapshot)

    def tell(self, event: Event) -> list[Effect]:
        """One event, and those that the effects bring about; what was wanted."""
        first = len(self.effects)
        waiting = [event]
        while waiting:
            for effect in self.coordinator.step(waiting.pop(0), self.now_ms):
                self.effects.append(effect)
                if isinstance(effect, AskToken) and self.permits > 0:
                    self.permits -= 1
                    waiting.append(TokenWon())
                elif isinstance(effect, Start):
                    self.jobs[effect.job.unit_key] = effect.job
                    waiting.append(JobStarted(effect.job.job_id, f"w{effect.job.job_id}"))
        return self.effects[first:]

    def wait(self, ms: int) -> list[Effect]:
        self.now_ms += ms
        return self.tell(Tick())

    def write(self, source: str) -> list[Effect]:
        return self.tell(SourcesMoved({source: self.next_position()}))

    def succeed(self, *tables: str, changed: bool = True) -> list[Effect]:
        found: list[Effect] = []
        for table in tables:
            job = self.running(table)
            board = self.coordinator.facts
            at = self.next_position()
            made = {}
            for name in job.members:
                inputs = board.graph.inputs[name]
                seen = {s: made[s].position if s in made else board.positions[s] for s in inputs}
                position = at if changed else board.tables[name].position
                made[name] = Refreshed(Frontier(seen), position)
            found += self.tell(JobSucceeded(job.job_id, made))
        return found

    def fail(
        self, table: str, kind: FailureKind = FailureKind.RETRYABLE, member: str | None = None
    ) -> list[Effect]:
        return self.tell(JobFailed(self.running(table).job_id, kind, "broken", member))

    def running(self, table: str) -> RefreshJob:
        board = self.coordinator.facts
        return board.jobs[board.busy[table]]

    def started(self) -> list[str]:
        """Units of the jobs that are under way, in the order in which they were started."""
        return [job.unit_key for job in self.coordinator.live_jobs]

    def why(self, table: str) -> str:
        return self.coordinator.why(table, self.now_ms).reason.value


def starts(effects: list[Effect]) -> list[str]:
    return [effect.job.unit_key for effect in effects if isinstance(effect, Start)]


def statuses(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(e.table, e.status.value) for e in effects if isinstance(e, SetStatus)]


def answers(effects: list[Effect]) -> list[tuple[str, bool]]:
    return [(e.request_id, e.ok) for e in effects if isinstance(e, AnswerRequest)]
