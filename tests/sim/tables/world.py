"""Warehouses in virtual time: coordinators and token pool are real, workers and lake are not.

Contents are numbers: a source's is its version, a table's a digest of what it was made from. So two
runs that end with equal numbers have refreshed everything from the same inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from random import Random

from penstock.tables.core.capacity import DispatchSettings
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.events import (
    AnswerRequest,
    AskToken,
    Cancel,
    CloseJob,
    Effect,
    Enqueue,
    Event,
    GateChanged,
    GraphChanged,
    JobCancelled,
    JobFailed,
    JobStarted,
    JobSucceeded,
    LocksChanged,
    PoolContended,
    RecordSkip,
    Refreshed,
    RefreshRequested,
    ReleaseToken,
    SetStatus,
    SourcesMoved,
    Start,
    StatusChanged,
    Tick,
    TokenLost,
    TokenWon,
    WorkerDied,
    WouldDispatch,
)
from penstock.tables.core.facts import TableMemory
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, LakePosition, Position
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.jobs import JobStatus, RefreshJob, recover
from penstock.tables.core.model import Consistency, Mode, Status, TableDefinition
from penstock.tables.core.schedule import CALCULATED, Schedule
from penstock.tables.core.units import ExecutionUnitGraph
from tests.tokens import TokenPool

TICK_MS = 200
SOURCES = ("raw_a", "raw_b", "raw_c")


@dataclass(frozen=True)
class Run:
    """One try, as the world saw it."""

    unit_key: str
    members: tuple[str, ...]
    start_ms: int
    end_ms: int
    outcome: str
    frontiers: tuple[tuple[str, Frontier], ...] = ()


@dataclass
class Faults:
    """What goes wrong: for a unit and the number of its try, 'fail', 'permanent', 'die' or ''."""

    of: Callable[[str, int], str] = lambda _unit, _number: ""


class Cluster:
    """Virtual time, shared by warehouses and the pool of permits."""

    def __init__(self, permits: int) -> None:
        self.now_ms = 0
        self.pool = TokenPool(permits)
        self.permits = permits
        self.warehouses: list[Warehouse] = []
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.waiting: set[str] = set()

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        heappush(self._heap, (max(at_ms, self.now_ms), next(self._numbers), action))

    def run_until(self, end_ms: int) -> None:
        while self._heap and self._heap[0][0] <= end_ms:
            at_ms, _, action = heappop(self._heap)
            assert at_ms >= self.now_ms
            self.now_ms = at_ms
            action()
            self.check()
        self.now_ms = end_ms

    def check(self) -> None:
        running = [job for warehouse in self.warehouses for job in warehouse.running]
        if any(warehouse.parallel for warehouse in self.warehouses):
            assert len(running) <= self.permits, "more running than the cluster may"
            assert self.pool.free >= 0
        for warehouse in self.warehouses:
            warehouse.check()


@dataclass
class _Running:
    job: RefreshJob
    worker: str
    start_ms: int
    read: dict[str, int]
    at: dict[str, LakePosition]
    queries: list[str | None]


@dataclass
class _Table:
    content: int | None = None
    position: LakePosition | None = None
    frontier: Frontier | None = None
    fresh_ms: int | None = None


class Warehouse:
    """A lake with its catalog, its workers and its coordinator."""

    def __init__(
        self,
        cluster: Cluster,
        tables: Iterable[TableDefinition],
        settings: DispatchSettings,
        *,
        seed: int,
        name: str = "w",
        faults: Faults | None = None,
    ) -> None:
        self.cluster, self.settings, self.name, self.seed = cluster, settings, name, seed
        self.graph = StreamGraph(tables)
        self.version = 1
        self.faults = faults or Faults()
        self.lives = count(1)
        self.snapshots = count(1)
        self.workers = count(1)
        self.sources = {source: (1, LakePosition(0)) for source in SOURCES}
        self.content_at: dict[tuple[str, Position], int] = {
            (source, LakePosition(0)): 1 for source in SOURCES
        }
        self.tables: dict[str, _Table] = {table: _Table() for table in self.graph.tables}
        self.jobs: dict[int, RefreshJob] = {}
        self.running: dict[int, _Running] = {}
        self.tries: Counter[str] = Counter()
        self.runs: list[Run] = []
        self.skips: list[RecordSkip] = []
        self.answers: dict[str, AnswerRequest] = {}
        self.asked: dict[str, str] = {}
        self.locks: set[str] = set()
        self.gates: set[str] = set()
        self.would: list[WouldDispatch] = []
        self.alive = True
        self.wakes: set[int] = set()
        self.parallel = settings.parallel_refresh_mode.value == "on"
        cluster.warehouses.append(self)
        self.coordinator = self._born()
        cluster.at(cluster.now_ms, self.begin)

    # life ----------------------------------------------------------------------------------------

    def _born(self) -> Coordinator:
        memory = {
            name: TableMemory(table.frontier, table.position, table.fresh_ms)
            for name, table in self.tables.items()
        }
        return Coordinator(
            f"{self.name}/{next(self.lives)}",
            self.settings,
            Random(self.seed),
            memory=memory,
            next_job_id=max(self.jobs, default=0) + 1,
        )

    def begin(self) -> None:
        me = self.coordinator
        self.tell(SourcesMoved({name: at for name, (_, at) in self.sources.items()}))
        self.tell(LocksChanged(frozenset(self.locks)))
        for gate in self.gates:
            self.tell(GateChanged(gate, True))
        self.tell(GraphChanged(self.graph, self.version))
        self._tick(me)

    def _tick(self, of: Coordinator) -> None:
        if of is self.coordinator and self.alive:
            self.tell(Tick())
            self.cluster.at(self.cluster.now_ms + TICK_MS, lambda: self._tick(of))

    def _wake(self, of: Coordinator) -> None:
        if of is self.coordinator and self.alive:
            self.tell(Tick())

    def crash_coordinator(self, away_ms: int) -> None:
        """The coordinator is gone; workers go on, until another one looks at what is there."""
        self.alive = False
        self.cluster.at(self.cluster.now_ms + away_ms, self._take_over)

    def _take_over(self) -> None:
        live = {running.worker for running in self.running.values()}
        self.coordinator = self._born()
        self.wakes.clear()
        found = recover(
            self.jobs.values(),
            coordinator=self.coordinator.identity,
            live_workers=live,
            now_ms=self.cluster.now_ms,
        )
        for job in found.closed:
            self.jobs[job.job_id] = job
        for job in found.interrupt:
            del self.running[job.job_id]
        ours = {who: n for who, n in self.cluster.pool.held().items() if self._is_ours(who)}
        for holder, held in ours.items():  # every job of theirs is closed
            self.cluster.pool.release(holder, held)
        assert not any(self._is_ours(holder) for holder in self.cluster.pool.held())
        self.alive = True
        self.begin()

    def _is_ours(self, holder: str) -> bool:
        return holder.startswith(f"{self.name}/")

    # what people and the world do ----------------------------------------------------------------

    def write(self, source: str) -> None:
        version, _ = self.sources[source]
        self.sources[source] = (version + 1, LakePosition(next(self.snapshots)))
        self.content_at[source, self.sources[source][1]] = version + 1
        self.tell(SourcesMoved({source: self.sources[source][1]}))

    def request(self, table: str) -> None:
        if self.alive and table in self.graph.tables:
            request_id = f"r{len(self.asked)}"
            self.asked[request_id] = self.coordinator.identity
            self.tell(RefreshRequested(request_id, table))

    def set_status(self, table: str, status: Status) -> None:
        if table in self.graph.tables:
            self._store_status(table, status)
            self.tell(StatusChanged(table, status))

    def set_gate(self, relation: str, *, closed: bool) -> None:
        (self.gates.add if closed else self.gates.discard)(relation)
        self.tell(GateChanged(relation, closed))

    def set_locks(self, tables: Iterable[str]) -> None:
        self.locks = set(tables)
        self.tell(LocksChanged(frozenset(self.locks)))

    def change_graph(self, graph: StreamGraph) -> None:
        old, self.graph, self.version = self.graph, graph, self.version + 1
        for name, table in graph.tables.items():
            known = self.tables.setdefault(name, _Table())
            if name in old.tables and old.tables[name].query != table.query:
                known.frontier = known.fresh_ms = None
        self.tables = {name: self.tables[name] for name in graph.tables}
        self.tell(GraphChanged(graph, self.version))

    # the shell -----------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        if not self.alive:
            return
        for effect in self.coordinator.step(event, self.cluster.now_ms):
            self._carry_out(effect)
        wake_ms = self.coordinator.wake_ms()
        if wake_ms is not None and wake_ms > self.cluster.now_ms and wake_ms not in self.wakes:
            of = self.coordinator
            self.wakes.add(wake_ms)
            self.cluster.at(wake_ms, lambda: self._wake(of))

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901 - one case for each effect
        match effect:
            case Enqueue(job):
                assert job.job_id not in self.jobs
                self.jobs[job.job_id] = job
            case Start(job):
                self._start(job)
            case CloseJob(job):
                if self.jobs[job.job_id].status.live:
                    self.jobs[job.job_id] = job
            case Cancel(job, detail):
                self._later(lambda: self._cancel(job.job_id, detail))
            case RecordSkip():
                self.skips.append(effect)
            case SetStatus(table, status):
                self._store_status(table, status)
            case AskToken():
                self._ask()
            case ReleaseToken():
                self.cluster.pool.release(self.coordinator.identity)
            case AnswerRequest(request_id):
                assert request_id not in self.answers, "answered twice"
                self.answers[request_id] = effect
            case WouldDispatch():
                self.would.append(effect)

    def _later(self, action: Callable[[], None]) -> None:
        self.cluster.at(self.cluster.now_ms, action)

    def _ask(self) -> None:
        of, cluster = self.coordinator, self.cluster
        if cluster.pool.acquire(of.identity):
            cluster.waiting.discard(self.name)
            self._later(lambda: self._tell_if(of, TokenWon()))
        else:
            cluster.waiting.add(self.name)
            self._later(lambda: self._tell_if(of, TokenLost()))
        for other in cluster.warehouses:
            if len(cluster.warehouses) > 1:
                contended = bool(cluster.waiting - {other.name})
                self._later(lambda o=other, c=contended: o.tell(PoolContended(c)))

    def _tell_if(self, of: Coordinator, event: Event) -> None:
        if of is self.coordinator:
            self.tell(event)

    def _start(self, job: RefreshJob) -> None:
        assert not self.locks & set(job.members), "started what others hold"
        assert not self.gates & {*job.members, *self._inputs(job)}, "started behind a gate"
        busy = {name for running in self.running.values() for name in running.job.members}
        assert not busy & set(job.members), "one table refreshed twice at a time"
        worker = f"worker-{next(self.workers)}"
        self.tries[job.unit_key] += 1
        number = self.tries[job.unit_key]
        self.jobs[job.job_id] = job.claimed(worker, self.cluster.now_ms)
        running = _Running(job, worker, self.cluster.now_ms, *self._read(job), self._queries(job))
        self.running[job.job_id] = running
        of = self.coordinator
        self._later(lambda: self._tell_if(of, JobStarted(job.job_id, worker)))
        took_ms = self.takes_ms(job.unit_key, number)
        fault = self.faults.of(job.unit_key, number)
        if fault == "die":
            took_ms = took_ms // 2
        self.cluster.at(self.cluster.now_ms + took_ms, lambda: self._end(running, fault))

    def takes_ms(self, unit_key: str, number: int) -> int:
        """How long a try takes; its own random source, so that nothing else can change it."""
        return Random(f"{self.seed}/{unit_key}/{number}").randint(10, 800)

    def _inputs(self, job: RefreshJob) -> set[str]:
        return {
            source
            for name in job.members
            if name in self.graph.tables
            for source in self.graph.inputs[name]
        }

    def _read(self, job: RefreshJob) -> tuple[dict[str, int], dict[str, LakePosition]]:
        """The snapshot a job reads: contents and positions of what its members read, as of now."""
        content, at = {}, {}
        for source in self._inputs(job):
            if source in self.sources:
                content[source], at[source] = self.sources[source]
            else:
                table = self.tables[source]
                content[source] = table.content if table.content is not None else 0
                if table.position is not None:
                    at[source] = table.position
        return content, at

    def _end(self, running: _Running, fault: str) -> None:
        job = running.job
        if self.running.get(job.job_id) is not running:
            return
        del self.running[job.job_id]
        if fault == "die":
            self._note(running, "died")
            self.tell(WorkerDied(running.worker))
        elif fault:
            self._note(running, fault)
            kind = FailureKind.PERMANENT if fault == "permanent" else FailureKind.RETRYABLE
            self.tell(JobFailed(job.job_id, kind, fault, job.root))
        elif self._queries(job) != running.queries:
            # The commit expects the definitions it was made by; they changed while nobody was
            # there to cancel the job.
            self.jobs[job.job_id] = self.jobs[job.job_id].cancelled(self.cluster.now_ms, "outdated")
            self._note(running, "cancelled")
            self.tell(JobCancelled(job.job_id))
        else:
            self._commit(running)

    def _queries(self, job: RefreshJob) -> list[str | None]:
        tables = self.graph.tables
        return [tables[name].query if name in tables else None for name in job.members]

    def _cancel(self, job_id: int, detail: str) -> None:
        running = self.running.pop(job_id, None)
        if running is not None:
            self._note(running, "cancelled")
            self.tell(JobCancelled(job_id, detail))

    def _commit(self, running: _Running) -> None:
        job = running.job
        assert self.jobs[job.job_id].status is JobStatus.RUNNING, "a closed job cannot land"
        snapshot = LakePosition(next(self.snapshots))
        made: dict[str, Refreshed] = {}
        for name in job.members:
            table = self.tables[name]
            inputs = self.graph.inputs[name]
            content = digest(name, [running.read[source] for source in inputs])
            frontier = Frontier({s: running.at[s] for s in inputs if s in running.at})
            if content != table.content:
                table.content, table.position = content, snapshot
                self.content_at[name, snapshot] = content
            table.frontier, table.fresh_ms = frontier, running.start_ms
            running.read[name] = content
            if table.position is not None:
                running.at[name] = table.position
            made[name] = Refreshed(frontier, table.position)
        self.jobs[job.job_id] = self.jobs[job.job_id].succeeded(self.cluster.now_ms)
        self._note(running, "", tuple((name, made[name].frontier) for name in job.members))
        self.tell(JobSucceeded(job.job_id, made))

    def _note(
        self, running: _Running, outcome: str, made: tuple[tuple[str, Frontier], ...] = ()
    ) -> None:
        job = running.job
        now_ms = self.cluster.now_ms
        self.runs.append(Run(job.unit_key, job.members, running.start_ms, now_ms, outcome, made))

    def _store_status(self, table: str, status: Status) -> None:
        if table in self.graph.tables:
            self.graph = StreamGraph(
                replace(t, status=status) if t.name == table else t
                for t in self.graph.tables.values()
            )

    # what must be true ---------------------------------------------------------------------------

    def check(self) -> None:
        if not self.alive:
            return
        assert len(self.running) <= self.settings.running_max, "more running than the warehouse may"
        assert set(self.running) <= set(self.coordinator.facts.jobs)
        if self.parallel:
            held = self.cluster.pool.held().get(self.coordinator.identity, 0)
            assert held >= len(self.coordinator.facts.jobs), "a job without a permit"

    def expected(self) -> dict[str, int]:
        """The contents that all tables must have in the end."""
        content = {source: version for source, (version, _) in self.sources.items()}
        for name in self.graph.order:
            content[name] = digest(name, [content[s] for s in self.graph.inputs[name]])
        return {name: content[name] for name in self.graph.tables}

    def history(self) -> dict[str, list[dict[str, dict[str, int]]]]:
        """For each unit its refreshes, each as the contents that every member was made from."""
        found: dict[str, list[dict[str, dict[str, int]]]] = {}
        for run in self.runs:
            made = {
                name: {source: self.content_at[source, at] for source, at in frontier.items()}
                for name, frontier in run.frontiers
            }
            found.setdefault(run.unit_key, []).append(made)
        return found

    def contents(self) -> dict[str, int | None]:
        return {name: table.content for name, table in self.tables.items()}


def digest(name: str, inputs: list[int]) -> int:
    raw = f"{name}/{inputs}".encode()
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")


def random_tables(
    random: Random, tables: int, *, schedules: tuple[Schedule, ...] = (CALCULATED,)
) -> list[TableDefinition]:
    """Tables that each read one to three earlier ones or sources."""
    found: list[TableDefinition] = []
    for number in range(tables):
        readable = [*SOURCES, *(table.name for table in found[-6:])]
        inputs = sorted(random.sample(readable, random.randint(1, min(3, len(readable)))))
        reads_table = any(name not in SOURCES for name in inputs)
        immediate = reads_table and random.random() < 0.15
        found.append(
            TableDefinition(
                name=f"t{number:02}",
                query=f"SELECT * FROM {', '.join(inputs)}",
                sources=tuple(inputs),
                mode=Mode.IMMEDIATE if immediate else Mode.AUTO,
                schedule=CALCULATED if immediate else random.choice(schedules),
                consistency=random.choice((Consistency.ATOMIC, Consistency.NONE, Consistency.NONE)),
            )
        )
    return found


def units_of(tables: Iterable[TableDefinition]) -> ExecutionUnitGraph:
    return ExecutionUnitGraph(StreamGraph(tables))
