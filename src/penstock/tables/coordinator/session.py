"""One session of a coordinator: from taking the lease to losing it or giving it up.

A loop reads the catalog and its workers' messages, passes events to the core, and carries out the
core's effects. All rows that one turn changes are one transaction, which also checks the lease;
messages to workers go out after it. If a turn fails, core and rows may differ, so the session ends,
and the next one starts from the rows.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Final

from penstock.kernel.clock import Clock
from penstock.lake.bell import LakeBell, bell_address
from penstock.lake.database import CatalogAway
from penstock.tables import processes, rows
from penstock.tables.coordinator.engines import EngineHost, EngineState
from penstock.tables.coordinator.lease import CatalogWait, CoordinatorLeaseLost, LeasedBatch
from penstock.tables.coordinator.permits import PermitPool
from penstock.tables.coordinator.publisher import Publisher
from penstock.tables.coordinator.report import CoordinatorReport, Reporter
from penstock.tables.coordinator.runners import InlineRunner, WorkerRunner
from penstock.tables.coordinator.upkeep import drop_dead_locks, recover_catalog
from penstock.tables.coordinator.watcher import TopicWatch, Watcher, memory_of
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.events import (
    AnswerRequest,
    AskToken,
    Cancel,
    CloseJob,
    DrainChanged,
    Effect,
    Enqueue,
    Event,
    GraphChanged,
    JobCancelled,
    JobStarted,
    JobSucceeded,
    MadeByHand,
    PoolContended,
    RecordSkip,
    ReleaseToken,
    SetStatus,
    SourcesMoved,
    Start,
    Tick,
    TokenLost,
    TokenWon,
    WouldDispatch,
)
from penstock.tables.core.jobs import JobStatus, RefreshJob
from penstock.tables.notify import Notifier, notify_address
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import TableStore
from penstock.tables.worker.outcomes import MessageLine


class EffectWriter:
    """Writes effects in the current batch. `query_of` returns the query of a table."""

    def __init__(
        self, batch: LeasedBatch, permits: PermitPool, query_of: Callable[[str], str]
    ) -> None:
        self._batch, self._permits, self._query_of = batch, permits, query_of

    def write(self, effect: Effect, now_ms: int) -> list[Event]:
        """Carry out one effect; returns the resulting events for the core."""
        run = self._batch.run
        match effect:
            case Enqueue(job):
                run(rows.INSERT_JOB, *rows.job_row(job))
            case CloseJob(job):
                self._batch.close_job(job)
            case RecordSkip(key, members, reason, text):
                run(rows.INSERT_SKIP, now_ms, key, json.dumps(members), reason.value, text)
            case SetStatus(table, status, detail):
                query = self._query_of(table)
                run(rows.SET_STATUS_OF_QUERY, status.value, detail, table, query)
            case AskToken():
                self._batch.open()  # a permit and its job belong in one transaction
                return [TokenWon() if self._permits.ask(now_ms) else TokenLost()]
            case ReleaseToken():
                self._batch.open()
                self._permits.give_back()
            case AnswerRequest(request_id, ok, detail):
                run(rows.ANSWER_REQUEST, now_ms, int(ok), detail, request_id)
            case WouldDispatch(job, alongside):
                values = (job.job_id, job.unit_key, json.dumps(alongside), now_ms)
                run(rows.INSERT_WOULD_DISPATCH, *values)
        return []


_SESSIONS: Final = count(1)


def new_identity(warehouse: str) -> str:
    """A name for one session of a coordinator: process, session number, warehouse."""
    return f"{processes.process_name()}#{next(_SESSIONS)}@{warehouse}"


class CoordinatorSession:
    """A coordinator that holds the lease. For one thread, except `report` and `wake`."""

    def __init__(
        self,
        store: TableStore,
        settings: WarehouseSettings,
        identity: str,
        clock: Clock,
        random: Random,
        host: EngineHost,
        catalog: CatalogWait,
    ) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._catalog = catalog
        self.identity = identity
        self._ending = False
        self._read_ms = 0
        self._heard = self._woken = False
        self._after_commit: list[Callable[[], Iterable[Event]]] = []
        self._selector = selectors.DefaultSelector()
        self._alarm, self._waker = (MessageLine(end) for end in socket.socketpair())
        self._alarm.connection.setblocking(False)
        self._selector.register(self._alarm, selectors.EVENT_READ, None)
        self._notifier = Notifier(notify_address(store))
        self._selector.register(self._notifier, selectors.EVENT_READ, None)
        self._bell = LakeBell(bell_address(store.lake.database, store.lake.data_path))
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._batch = LeasedBatch(store, identity, catalog)
        self._permits = PermitPool(store, settings, identity, self._batch.transact)
        self._engines = EngineState(host)
        self._inline: InlineRunner | None = None
        self._runner = self._make_runner()
        recover_catalog(self._batch, self._permits, identity, clock.now_ms())
        with store.lake.look() as reader:
            memory = memory_of(store.frontiers(reader), store.failures(reader))
        self.core = Coordinator(
            identity, settings.dispatch, random, memory=memory, next_job_id=store.next_job_id()
        )
        self._topics = TopicWatch(settings.topic_positions(), settings.topics_poll_ms, self.wake)
        self._watcher = Watcher(store, self.core, self._topics)
        self._publisher = Publisher(store, settings.topic_writer, identity, clock)
        self._effects = EffectWriter(self._batch, self._permits, self._query_of)
        self._reporter = Reporter(self.core, clock)

    def _make_runner(self) -> InlineRunner | WorkerRunner:
        """Where jobs run: in workers, or here."""
        settings, clock = self._settings, self._clock
        if settings.dispatch.parallel:
            return WorkerRunner(settings, self._engines, self._batch, self._selector, clock)
        name = f"{processes.process_name()}#inline-{self.identity.partition('#')[2]}"
        self._inline = InlineRunner(name, self._store, settings, self._engines, clock)
        return self._inline

    # the loop ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the catalog before the first wait."""
        self.tell([*self._read_catalog(), Tick()])
        self.tell(self._look_after_runner())
        self._watcher.positions.checkpoint(self._store.lake, now=True)

    def turn(self) -> None:
        """Wait for a worker, a tick or the core's next deadline; then act on it."""
        events = self._hear(self._patience_s())
        self._reporter.ticked_ms = self._clock.now_ms()
        events += self._look_after_runner()
        is_due = self._is_due()
        reads = self._woken or not self._heard or is_due or self._is_time_to_read()
        if reads and not is_due:
            self.tell(events)  # callers waiting for a job's end need not wait for the read too
            events = []
        if reads:
            events += self._read_catalog()
        self.tell([*events, Tick()])
        self._run_inline()

    def drain(self) -> bool:
        """Start nothing new; True once nothing is running."""
        if not self._ending:
            self._ending = True
            self.tell([DrainChanged(True)])
        if self.core.live_jobs:
            self.tell(self._hear(self._patience_s()))
            self._run_inline()
        return not self.core.live_jobs

    def close(self) -> None:
        """Stop the workers, close their jobs, return permits."""
        self._topics.close()
        self._publisher.close()
        self._runner.close()
        self._selector.close()
        self._notifier.close()
        self._bell.close()
        self._alarm.close()
        self._waker.close()
        with suppress(CatalogAway):  # the next session recovers from the rows
            with suppress(CoordinatorLeaseLost), self._batch():
                for job in self.core.live_jobs:
                    stopped = job.cancelled(self._clock.now_ms(), "the coordinator stopped")
                    self._batch.close_job(stopped)
            self._permits.close()

    def report(self) -> CoordinatorReport | None:
        """The current report; from any thread."""
        return self._reporter.current()

    def wake(self) -> None:
        """End the wait of a turn; from any thread."""
        self._waker.send({})

    def _patience_s(self) -> float:
        if self._inline is not None and self._inline.is_waiting:
            return 0.0
        now_ms = self._clock.now_ms()
        wake_ms = self.core.wake_ms()
        until_ms = now_ms + self._settings.tick_ms
        if wake_ms is not None:
            until_ms = min(until_ms, max(wake_ms, now_ms))
        return (until_ms - now_ms) / 1_000

    def _is_due(self) -> bool:
        """Whether a unit is due by now, which requires a fresh read of the catalog."""
        wake_ms = self.core.wake_ms()
        return wake_ms is not None and wake_ms <= self._clock.now_ms()

    def _is_time_to_read(self) -> bool:
        """Whether to read the catalog although only a worker sent a message: once per tick."""
        return self._clock.now_ms() >= self._read_ms + self._settings.tick_ms

    def _hear(self, patience_s: float) -> list[Event]:
        """Messages from workers, waiting for the first one."""
        events: list[Event] = []
        ready = self._selector.select(patience_s)
        self._heard, self._woken = bool(ready), False
        for key, _ in ready:
            if key.fileobj is self._notifier:
                self._woken |= self._notifier.receive()
            elif key.fileobj is self._bell:
                self._woken |= self._bell.receive()
            elif key.data is None:
                self._woken |= bool(self._alarm.receive())
            else:
                events += key.data()
        return events + self._runner.kill_overdue()

    def _read_catalog(self) -> list[Event]:
        """Changes in the catalog since the last read."""
        self._read_ms = self._clock.now_ms()
        events = self._catalog.unlocked(lambda: self._watcher.look(self._runner.names))
        if self._ending:  # the catalog records a drain by people, not this shutdown
            events = [event for event in events if not isinstance(event, DrainChanged)]
        for asked in self._watcher.unknown:
            text = f"there is no table {asked.table}"
            values = (self._clock.now_ms(), 0, text, asked.request_id)
            self._batch.run_alone(rows.ANSWER_REQUEST, *values)
        self._watcher.unknown.clear()
        if self._permits.is_shared:
            events.append(PoolContended(self._permits.is_contended(self._clock.now_ms())))
        self._watcher.positions.checkpoint(self._store.lake)
        if self._reporter.is_due():
            self._update_report()
        return events

    def _update_report(self) -> None:
        with self._reporter.paced():
            self._reporter.update(
                workers=self._runner.report(),
                progress=self._runner.progress(),
                permits_max=self._settings.max_workers,
                topics_trouble=self._topics.trouble,
                unfit=self._engines.unfit,
            )
            self._notifier.open()
            self._bell.open()
            if self.core.facts.locks:
                drop_dead_locks(self._batch, self._runner.names, self._clock.now_ms())

    def _look_after_runner(self) -> list[Event]:
        """Keep workers running. Their shared host is started once there is a table."""
        if not self.core.facts.graph.tables and self._engines.generation is None:
            return []
        return self._runner.look_after()

    def _run_inline(self) -> None:
        """Run one job here. Only one per turn, so that the catalog is read in between."""
        if self._inline is None or not self._inline.is_waiting:
            return
        start, forced = self._inline.next()
        self.tell([JobStarted(start.job.job_id, self._inline.name)])
        self._reporter.ticked_ms = None  # a refresh may take long
        ended = self._inline.run(start, forced=forced)
        self._reporter.ticked_ms = self._clock.now_ms()
        self.tell([*self._read_catalog(), ended])

    # telling the core ----------------------------------------------------------------------------

    def tell(self, events: Iterable[Event]) -> None:
        """Pass events to the core and carry out its effects, until nothing follows."""
        queue = deque(events)
        for event in queue:
            if isinstance(event, GraphChanged):
                tables = event.graph.tables.values()
                self._publisher.follow(any(table.publish for table in tables))
            elif isinstance(event, JobSucceeded | MadeByHand | SourcesMoved):
                self._publisher.wake()
        while queue:
            with self._batch():
                for note in self._engines.take_commits():
                    self._batch.run(rows.NOTE_COMMIT, *note)
                while queue:
                    event = queue.popleft()
                    for effect in self.core.step(event, self._clock.now_ms()):
                        queue.extend(self._carry_out(effect))
            if self._batch.take_written():
                self._notifier.notify()
            actions, self._after_commit = self._after_commit, []
            for action in actions:
                queue.extend(action())

    def _carry_out(self, effect: Effect) -> Iterable[Event]:
        match effect:
            case Start():
                forced = not self._watcher.forced.isdisjoint(effect.requests)
                self._after_commit.append(lambda: self._runner.start(effect, forced=forced))
                return []
            case Cancel(job, detail):
                return self._cancel(job, detail)
        return self._effects.write(effect, self._clock.now_ms())

    def _cancel(self, job: RefreshJob, detail: str) -> list[Event]:
        """Close the row first, so that the job cannot commit; then cancel it in the worker."""
        now_ms = self._clock.now_ms()
        values = (JobStatus.CANCELLED.value, now_ms, detail, 1, job.job_id)
        self._batch.run(rows.CLOSE_JOB, *values)
        if self._runner.cancel(job.job_id, now_ms):
            return [JobCancelled(job.job_id, detail)]
        return []

    def _query_of(self, table: str) -> str:
        return self.core.facts.graph.tables[table].query
