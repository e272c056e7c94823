"""The coordinator's core: events in, effects out. Decides what runs next, and handles outcomes.

It never waits and never reads a clock. A shell passes in events with the time, which must not go
back (while it does, nothing becomes due), and carries out the effects in order. The three modes
make the same decisions: `off` and `dry_run` run one job at a time inside the coordinator, `on` runs
many in workers, each under a permit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from random import Random

from penstock.tables.core.capacity import Capacity, DispatchSettings, ParallelMode, ReadyQueue
from penstock.tables.core.events import (
    AnswerRequest,
    AskToken,
    Cancel,
    CloseJob,
    Contents,
    DrainChanged,
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
    MadeByHand,
    PoolContended,
    RecordSkip,
    RefreshRequested,
    ReleaseToken,
    SetStatus,
    SourcesMissing,
    SourcesMoved,
    Start,
    StatusChanged,
    Tick,
    TokenLost,
    TokenWon,
    WorkerDied,
    WouldDispatch,
)
from penstock.tables.core.facts import Facts, RefreshRequest, TableMemory, UnitState
from penstock.tables.core.failures import AWAY_MS_MAX, FailureKind, RetryState
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.jobs import JobStatus, RefreshJob, job_for
from penstock.tables.core.model import Status
from penstock.tables.core.verdict import Reason, UnitFacts, Verdict, may_run

_SKIPS = frozenset(
    {
        Reason.GATED,
        Reason.LOCK_HELD,
        Reason.UPSTREAM_FAILED,
        Reason.NO_CHANGE,
        Reason.PAUSED,
        Reason.SUSPENDED,
        Reason.ERROR,
    }
)
"""Reasons to skip a due unit; waiting for a turn is not a skip."""


class Coordinator:
    """The only authority on what is due, what runs, what is retried and what is stopped."""

    def __init__(
        self,
        identity: str,
        settings: DispatchSettings,
        random: Random,
        *,
        memory: Mapping[str, TableMemory] | None = None,
        next_job_id: int = 1,
        coordinated: bool = True,
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.facts = Facts(memory or {}, coordinated=coordinated)
        self.ready = ReadyQueue()
        self.graph_version = 0
        self.now_ms = 0
        self._random = random
        self._next_job_id = next_job_id
        self._capacity = Capacity(settings)
        self._serving: dict[int, dict[str, RefreshRequest]] = {}
        self._outdated: set[int] = set()
        self._wakes: list[tuple[int, str]] = []
        self._effects: list[Effect] = []
        self._is_away = False

    # what a shell calls --------------------------------------------------------------------------

    def step(self, event: Event, now_ms: int) -> tuple[Effect, ...]:
        """Take one event; return what the shell must do, in this order."""
        self.now_ms = max(self.now_ms, now_ms)
        self._wake_up()
        self._take(event)
        self._dispatch()
        effects, self._effects = tuple(self._effects), []
        return effects

    def wake_ms(self) -> int | None:
        """When time alone will next change something, so that a tick is needed.

        While permits are short, the core also needs regular ticks to ask for them again.
        """
        while self._wakes:
            at_ms, key = self._wakes[0]
            state = self.facts.states.get(key)
            if state is not None and state.wake_ms == at_ms:
                return at_ms
            heappop(self._wakes)
        return None

    def why(self, table: str, now_ms: int) -> Verdict:
        """Why a table's unit waits, or that it may run."""
        unit = self.facts.units.unit_of(table)
        return may_run(self._facts(unit.key, self.free_slots), max(self.now_ms, now_ms))

    @property
    def free_slots(self) -> int:
        """How many more jobs may start now."""
        return self._capacity.free(len(self.facts.jobs), self.now_ms)

    @property
    def starved(self) -> bool:
        """Whether the cluster's pool was empty when last asked."""
        return self._capacity.starved

    @property
    def live_jobs(self) -> tuple[RefreshJob, ...]:
        """Jobs that are queued or running."""
        return tuple(self.facts.jobs.values())

    # events --------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        match event:
            case Tick():
                self._capacity.starved = False
            case JobStarted() | JobSucceeded() | JobFailed() | JobCancelled() | WorkerDied():
                self._take_outcome(event)
            case TokenWon() | TokenLost() | PoolContended():
                self._take_token(event)
            case GraphChanged(graph, version):
                self._change_graph(graph, version)
            case _:
                self._take_facts(event)

    def _take_facts(
        self,
        event: SourcesMoved
        | SourcesMissing
        | RefreshRequested
        | MadeByHand
        | StatusChanged
        | GateChanged
        | LocksChanged
        | DrainChanged,
    ) -> None:
        board = self.facts
        match event:
            case SourcesMoved(positions):
                moved = [name for name, at in positions.items() if board.positions.get(name) != at]
                board.positions.update(positions)
                self._consider_all(board.readers(moved))
            case SourcesMissing(names):
                moved = list(board.missing ^ names)
                board.missing = names
                self._consider_all(board.readers(moved))
            case RefreshRequested(request_id, table, force):
                state = board.states[board.units.unit_of(table).key]
                state.requests[request_id] = RefreshRequest(table, self.now_ms, force)
                self._consider(state.unit.key)
            case MadeByHand(tables):
                self._made_by_hand(tables)
            case StatusChanged(table, status):
                self._change_status(table, status)
            case GateChanged(relation, closed):
                (board.gates.add if closed else board.gates.discard)(relation)
                self._consider_all(board.readers([relation]))
            case LocksChanged(tables):
                moved = [name for name in board.locks ^ tables if name in board.graph.tables]
                board.locks = tables
                self._consider_all({board.units.unit_of(name).key for name in moved})
            case DrainChanged(draining):
                board.draining = draining
                self._consider_all(board.states)

    def _take_outcome(
        self, event: JobStarted | JobSucceeded | JobFailed | JobCancelled | WorkerDied
    ) -> None:
        """Handle the outcome of a job. Jobs that have ended or are not ours are ignored."""
        jobs = self.facts.jobs
        if isinstance(event, WorkerDied):
            for job in [job for job in jobs.values() if job.worker == event.worker]:
                self._lost(job)
            return
        job_or_none = jobs.get(event.job_id)
        if job_or_none is None:
            return
        job = job_or_none
        if isinstance(event, JobStarted):
            if job.status is JobStatus.QUEUED:
                jobs[job.job_id] = job.claimed(event.worker, self.now_ms)
            return
        match event:
            case JobSucceeded():
                self._succeeded(job, event)
            case JobFailed():
                self._failed(job, event)
            case JobCancelled(_, detail):
                self._cancelled(job, detail)

    def _take_token(self, event: TokenWon | TokenLost | PoolContended) -> None:
        match event:
            case TokenWon():
                self._capacity.won()
                if not self._start_next():
                    self._effects.append(ReleaseToken())
            case TokenLost():
                self._capacity.lost()
            case PoolContended(contended):
                self._capacity.contend(contended)

    # how jobs end --------------------------------------------------------------------------------

    def _succeeded(self, job: RefreshJob, event: JobSucceeded) -> None:
        board = self.facts
        fresh_ms = job.started_at_ms if job.started_at_ms is not None else job.enqueued_at_ms
        outdated = job.job_id in self._outdated
        for name, made in event.refreshed.items():
            known = board.tables.get(name)
            if known is None:
                continue  # dropped meanwhile
            if made.position is not None:
                known.position = board.positions[name] = made.position
            if outdated:
                continue  # made by a replaced query: must be made again
            known.made(made.frontier, fresh_ms)
            board.saw(made.frontier)
            if board.statuses[name] in (Status.SUSPENDED, Status.ERROR):
                # Only a person's request runs a stopped table, and it has just succeeded.
                self._set_status(name, Status.ACTIVE, f"job {job.job_id} succeeded")
        state = self._home(job)
        if state is not None:
            state.retry = RetryState()
            state.skipped.clear()
        if outdated:
            self._ask_again(job)
        else:
            self._answer(job, ok=True, detail="refreshed")
        self._free(job, finished=not outdated)
        self._consider_all(board.readers(event.refreshed))
        self._note_return()

    def _wait_with(self, asking: UnitState) -> None:
        """Make ready units wait for the engine too, and retry before the unit that found it away.

        Otherwise a query that crashes the engine each time could be the one that probes it.
        """
        ready, until_ms = set(self.ready.in_order()), asking.retry.retry_at_ms
        for key, state in self.facts.states.items():
            if state is not asking and (key in ready or state.retry.away is not None):
                state.retry = replace(state.retry, retry_at_ms=until_ms, away=asking.retry.away)
                asking.retry = replace(asking.retry, retry_at_ms=(until_ms or 0) + AWAY_MS_MAX)
                self._consider(key)

    def _note_return(self) -> None:
        """The engine works again: release the units that wait for it."""
        if not self._is_away:
            return
        self._is_away = False
        waiting = [key for key, state in self.facts.states.items() if state.retry.away is not None]
        for key in waiting:
            state = self.facts.states[key]
            state.retry = replace(state.retry, retry_at_ms=None, aways=0, away=None)
        self._consider_all(waiting)

    def _cancelled(self, job: RefreshJob, detail: str) -> None:
        self._close(job.cancelled(self.now_ms, detail))
        self._ask_again(job)
        self._free(job)

    def _failed(self, job: RefreshJob, event: JobFailed) -> None:
        if job.job_id in self._outdated:  # an old query's failure says nothing about the new one
            self._cancelled(job, event.detail)
            return
        retryable = event.kind is not FailureKind.PERMANENT
        if job.status is JobStatus.QUEUED:  # it failed before it reported its start
            job = job.claimed("unknown", self.now_ms)
        if event.kind in (FailureKind.AWAY, FailureKind.LOST):
            self._is_away = True
            self._close(job.cancelled(self.now_ms, event.detail))
        else:
            self._close(job.failed(self.now_ms, event.detail, retryable=retryable))
        requested = bool(self._serving.get(job.job_id))
        self._answer(job, ok=False, detail=event.detail)
        state = self._home(job)
        if state is not None:
            at_fault = [event.member] if event.member in job.members else list(job.members)
            if not event.kind.blameless:
                self._note_failure(at_fault, event.detail)
            self._take_failure(state, event, at_fault, requested=requested)
        self._free(job, finished=True)

    def _take_failure(
        self, state: UnitState, event: JobFailed, at_fault: list[str], *, requested: bool
    ) -> None:
        """Retry after a failure, or stop."""
        policy, now_ms, random = self.settings.retry, self.now_ms, self._random
        match event.kind:
            case FailureKind.COLLISION:
                state.retry = state.retry.collided(policy, now_ms, random, event.detail)
            case FailureKind.AWAY:
                state.retry = state.retry.waited(policy, now_ms, random, event.detail)
                self._wait_with(state)
            case FailureKind.LOST:
                retry = state.retry.lost(policy, now_ms, random, event.detail)
                given_up = self._try_again(state, retry, at_fault, event.detail)
                if given_up is None:
                    self._wait_with(state)
                else:
                    self._note_failure(at_fault, given_up)
            case FailureKind.PERMANENT:
                state.retry = RetryState()
                self._stop(at_fault, Status.ERROR, event.detail)
            case FailureKind.RETRYABLE if not requested:  # else the person was told: no count
                retry = state.retry.failed(policy, now_ms, random, event.detail)
                self._try_again(state, retry, at_fault, event.detail)

    def _note_failure(self, tables: Iterable[str], error: str) -> None:
        for name in tables:
            if name in self.facts.tables:
                self.facts.tables[name].failed(error)

    def _lost(self, job: RefreshJob) -> None:
        """The worker died: run the unit again, unless it kills every worker.

        In that case its requesters get the error, and their requests are not retried.
        """
        detail = f"worker {job.worker} died"
        if job.job_id in self._outdated:
            self._cancelled(job, detail)
            return
        self._close(job.failed(self.now_ms, detail, retryable=True))
        state, given_up = self._home(job), None
        if state is not None:
            self._note_failure(job.members, detail)
            retry = state.retry.died(self.settings.retry, self.now_ms, self._random, detail)
            given_up = self._try_again(state, retry, list(job.members), detail)
        if given_up is None:
            self._ask_again(job)
        else:
            self._answer(job, ok=False, detail=given_up)
        self._free(job, finished=True)

    def _try_again(
        self, state: UnitState, retry: RetryState, at_fault: list[str], detail: str
    ) -> str | None:
        """Schedule a retry; after too many failures suspend the tables and return the reason."""
        if not retry.exhausted(self.settings.retry):
            state.retry = retry
            return None
        state.retry = RetryState()
        times = f"{retry.attempt_no - 1} failures in a row, the last: {detail}"
        self._stop(at_fault, Status.SUSPENDED, times)
        return times

    def _stop(self, tables: Iterable[str], status: Status, detail: str) -> None:
        for name in tables:
            if self.facts.statuses.get(name) is Status.ACTIVE:
                self._set_status(name, status, detail)

    def _set_status(self, table: str, status: Status, detail: str) -> None:
        self.facts.statuses[table] = status
        self._effects.append(SetStatus(table, status, detail))

    def _close(self, job: RefreshJob) -> None:
        self._effects.append(CloseJob(job))

    def _answer(self, job: RefreshJob, *, ok: bool, detail: str) -> None:
        for request_id in self._serving.get(job.job_id, ()):
            self._effects.append(AnswerRequest(request_id, ok, detail))

    def _ask_again(self, job: RefreshJob) -> None:
        """Leave unanswered requests to the next run."""
        for request_id, request in self._serving.pop(job.job_id, {}).items():
            if request.table in self.facts.tables:
                unit = self.facts.units.unit_of(request.table)
                self.facts.states[unit.key].requests[request_id] = request
            else:
                self._effects.append(
                    AnswerRequest(request_id, False, f"{request.table} was dropped")
                )

    def _free(self, job: RefreshJob, *, finished: bool = False) -> None:
        """Forget a job: unlock its members, return its permit, reconsider its unit."""
        board = self.facts
        del board.jobs[job.job_id]
        self._serving.pop(job.job_id, None)
        self._outdated.discard(job.job_id)
        for name in job.members:
            del board.busy[name]
        if self.settings.parallel:
            self._effects.append(ReleaseToken())
            self._capacity.given_back(self.now_ms)
        state = self._home(job)
        if state is not None and finished:
            state.finished_ms = self.now_ms
        keys = {board.units.unit_of(name).key for name in job.members if name in board.tables}
        self._consider_all(keys)

    def _home(self, job: RefreshJob) -> UnitState | None:
        """The state of a job's unit; None if it is no longer in the graph."""
        return self.facts.states.get(job.unit_key)

    # changes by people ---------------------------------------------------------------------------

    def _change_status(self, table: str, status: Status) -> None:
        board = self.facts
        unit = board.units.unit_of(table)
        before, board.statuses[table] = board.statuses[table], status
        if status is Status.ACTIVE and before is not Status.ACTIVE:
            state = board.states[unit.key]
            state.retry = RetryState()
            state.skipped.clear()
            board.tables[table].fresh_ms = None  # due at once, to catch up
        self._consider_all({unit.key, *unit.downstreams})

    def _made_by_hand(self, tables: Mapping[str, Contents]) -> None:
        """Take over refreshes run by people; a stopped table that succeeded becomes active."""
        board = self.facts
        known = [name for name in tables if name in board.tables]
        for name in known:
            made = tables[name]
            fresh_ms = min(made.fresh_ms, self.now_ms)
            board.tables[name] = TableMemory(made.frontier, made.position, fresh_ms)
            if made.position is not None:
                board.positions[name] = made.position
            board.saw(made.frontier)
            if board.statuses[name] in (Status.SUSPENDED, Status.ERROR):
                self._set_status(name, Status.ACTIVE, "refreshed by hand")
            state = board.states[board.units.unit_of(name).key]
            state.retry, state.finished_ms = RetryState(), self.now_ms
            state.skipped.clear()
        self._consider_all(board.readers(known))

    def _change_graph(self, graph: StreamGraph, version: int) -> None:
        old, board = self.facts.graph, self.facts
        asked = {key: request for s in board.states.values() for key, request in s.requests.items()}
        board.change_graph(graph)
        for known in board.tables.values():
            if known.fresh_ms is not None:  # stored by a clock that was ahead
                known.fresh_ms = min(known.fresh_ms, self.now_ms)
        self.graph_version = version
        for request_id, request in asked.items():
            if request.table not in graph.tables:
                self._effects.append(
                    AnswerRequest(request_id, False, f"{request.table} was dropped")
                )
        for job in board.jobs.values():
            if job.unit_key not in board.units or _altered(job, old, graph):
                self._outdated.add(job.job_id)
                self._effects.append(Cancel(job, f"the graph changed to version {version}"))
        self.ready = ReadyQueue()
        self._wakes = []
        self._consider_all(board.states)

    # decisions -----------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        due = set()
        while self._wakes and self._wakes[0][0] <= self.now_ms:
            at_ms, key = heappop(self._wakes)
            state = self.facts.states.get(key)
            if state is not None and state.wake_ms == at_ms:
                state.wake_ms = None
                due.add(key)
        self._consider_all(due)

    def _consider(self, key: str) -> None:
        self._consider_all((key,))

    def _consider_all(self, keys: Iterable[str]) -> None:
        """Decide again whether units may run, and their readers if the answer affects them.

        In topological order, so that each is decided once.
        """
        board = self.facts
        waiting = [(board.units[key].position, key) for key in keys]
        heapify(waiting)
        last = ""
        while waiting:
            _, key = heappop(waiting)
            if key == last:
                continue
            last = key
            state = board.states[key]
            state.verdict = self._judge(state)
            shown = board.as_upstream(key)
            if shown != state.shown:
                state.shown = shown
                for below in state.unit.downstreams:
                    heappush(waiting, (board.units[below].position, below))

    def _facts(self, key: str, free_slots: int) -> UnitFacts:
        facts = self.facts.facts(key, free_slots)
        if facts.requested and self.facts.states[key].retry.deaths:
            return replace(facts, lost_workers=True)
        return facts

    def _judge(self, state: UnitState) -> Verdict:
        key = state.unit.key
        self._give_up_retry(state)
        if not self.facts.changed(state.unit):
            state.moved_ms = None
        elif state.moved_ms is None:
            state.moved_ms = self.now_ms
        verdict = may_run(self._facts(key, free_slots=1), self.now_ms)
        self._note_skip(state, verdict)
        if verdict.reason is Reason.NO_CHANGE:
            self._settle(state)
            verdict = may_run(self._facts(key, free_slots=1), self.now_ms)
        if verdict.may_run:
            state.ready_ms = self.now_ms if state.ready_ms is None else state.ready_ms
            self.ready.put(key, self.facts.urgency(state))
        else:
            state.ready_ms = None
            self.ready.discard(key)
        if verdict.until_ms is not None and verdict.until_ms != state.wake_ms:
            state.wake_ms = verdict.until_ms
            heappush(self._wakes, (verdict.until_ms, key))
        return verdict

    def _give_up_retry(self, state: UnitState) -> None:
        """Drop a retry that is neither requested nor due, so that readers do not wait for it."""
        if not state.retry.failing or state.requests or self.facts.job_on(state.unit) is not None:
            return
        due_ms = self.facts.due_ms(state)
        if due_ms is None or due_ms > self.now_ms:
            state.retry = replace(state.retry, retry_at_ms=None, away=None)

    def _settle(self, state: UnitState) -> None:
        """Nothing has changed, so the contents are correct as of now.

        Where a change makes the unit due at once, it stays due, and no time has to be waited for.
        """
        if not state.schedule.follows_changes:
            for name in state.unit.members:
                self.facts.tables[name].fresh_ms = self.now_ms
        state.finished_ms = self.now_ms
        state.retry = RetryState()
        for request_id in state.requests:
            self._effects.append(AnswerRequest(request_id, True, "nothing it reads has changed"))
        state.requests.clear()

    def _note_skip(self, state: UnitState, verdict: Verdict) -> None:
        if verdict.reason not in _SKIPS or verdict.reason in state.skipped:
            return
        due_ms = self.facts.due_ms(state)
        if due_ms is not None and due_ms <= self.now_ms:
            state.skipped.add(verdict.reason)
            self._effects.append(
                RecordSkip(state.unit.key, state.unit.members, verdict.reason, verdict.text)
            )

    # dispatch ------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self.settings.parallel:
            wanted = self._capacity.to_ask(self._startable(), len(self.facts.jobs), self.now_ms)
            self._effects.extend(AskToken() for _ in range(wanted))
        else:
            while self.free_slots > 0 and self._startable() and self._start_next():
                pass

    def _startable(self) -> int:
        """How many of the ready units may start beside those that run, slots aside.

        While the engine is away, one unit probes it for all. A unit under which it was lost runs
        alone: if it is lost again, that unit is to blame and no other.
        """
        ready, jobs = len(self.ready), self.facts.jobs.values()
        if self._is_away or self._is_suspect(self.ready.first()):
            return min(1, ready) if not jobs else 0
        return 0 if any(self._is_suspect(job.unit_key) for job in jobs) else ready

    def _is_suspect(self, key: str | None) -> bool:
        state = None if key is None else self.facts.states.get(key)
        return state is not None and state.retry.losses > 0

    def _start_next(self) -> bool:
        """Start the most urgent unit, if there is one that may and a slot is free."""
        while self._startable() and (key := self.ready.pop()) is not None:
            state = self.facts.states[key]
            verdict = may_run(self._facts(key, self.free_slots), self.now_ms)
            if verdict.may_run:
                self._start(state, verdict)
                return True
            state.verdict = self._judge(state)
            if verdict.reason is Reason.NO_BUDGET:
                return False
        return False

    def _start(self, state: UnitState, verdict: Verdict) -> None:
        board = self.facts
        job = job_for(
            state.unit,
            self._next_job_id,
            graph_version=self.graph_version,
            coordinator=self.identity,
            attempt_no=state.retry.attempt_no,
            now_ms=self.now_ms,
        )
        self._next_job_id += 1
        board.jobs[job.job_id] = job
        board.busy.update(dict.fromkeys(job.members, job.job_id))
        self._serving[job.job_id], state.requests = state.requests, {}
        self._effects.append(Enqueue(job))
        if self.settings.parallel_refresh_mode is ParallelMode.DRY_RUN:
            others = self.ready.in_order()[: self.settings.max_concurrent_refreshes - 1]
            self._effects.append(WouldDispatch(job, tuple(others)))
        self._effects.append(
            Start(
                job,
                not self.settings.parallel,
                verdict.stale,
                tuple(self._serving[job.job_id]),
                waited_ms=self.now_ms - (state.ready_ms or self.now_ms),
            )
        )
        self._consider(state.unit.key)


def _altered(job: RefreshJob, old: StreamGraph, new: StreamGraph) -> bool:
    """Whether a member's query has changed."""
    return any(
        name not in new.tables or old.tables[name].query != new.tables[name].query
        for name in job.members
        if name in old.tables
    )
