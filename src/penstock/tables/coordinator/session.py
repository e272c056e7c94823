"""The coordinator's shell: one life of it, from taking the lease to losing or giving it up.

A loop looks at the catalog, hears its workers, tells the core, and carries out what the core wants.
All rows that one turn of the loop changes are one transaction, which also checks that the lease is
still ours; messages to workers go out after it. If anything in a turn fails, core and rows could
differ, so the life ends and the next one starts from the rows.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Unavailable
from penstock.kernel.shell import meanwhile
from penstock.lake.errors import CatalogAway
from penstock.tables import processes, rows
from penstock.tables.coordinator.catalog_wait import CatalogWait
from penstock.tables.coordinator.host import Host
from penstock.tables.coordinator.lease import LeaseLost, Told
from penstock.tables.coordinator.permits import Permits
from penstock.tables.coordinator.report import news, picture
from penstock.tables.coordinator.topic_watch import TopicWatch
from penstock.tables.coordinator.upkeep import forget
from penstock.tables.coordinator.watcher import Watcher, memory_of
from penstock.tables.coordinator.worker_forker import NurseryLost
from penstock.tables.coordinator.worker_pool import Crew, Hand
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.events import (
    Answer,
    AskToken,
    Cancel,
    CloseJob,
    DrainChanged,
    Effect,
    Enqueue,
    Event,
    JobCancelled,
    JobStarted,
    JobSucceeded,
    PoolContended,
    RecordSkip,
    Refreshed,
    ReleaseToken,
    SetStatus,
    Start,
    Tick,
    TokenLost,
    TokenWon,
    WorkerDied,
    WouldDispatch,
)
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.jobs import Job, JobStatus
from penstock.tables.core.recovery import recover
from penstock.tables.notify import Bell, bell_name
from penstock.tables.settings import WarehouseSettings
from penstock.tables.store import MANUAL, TableStore
from penstock.tables.worker.claim import LockHeld, NotClaimed, claim
from penstock.tables.worker.messages import Line, outcome_event, read_outcome
from penstock.tables.worker.outcomes import Cancelled, Ended, Failed, Succeeded
from penstock.tables.worker.unit import UnitWorker

RESTART_MS: Final = (500, 30_000)
"""How long to wait before a worker that could not start is started again: first and at most."""

LATE_MS: Final = 5_000
"""A loop that has not come round for so long is stuck, and people are told."""
_PAINT_MS: Final = 500
_LIVES: Final = count(1)
_LOG: Final = logging.getLogger("penstock.tables")


def new_identity(warehouse: str) -> str:
    """A name for one life of a coordinator: process, number of the life, warehouse."""
    return f"{processes.process_name()}#{next(_LIVES)}@{warehouse}"


class Life:
    """A coordinator from the moment the lease is its own."""

    def __init__(
        self,
        store: TableStore,
        settings: WarehouseSettings,
        identity: str,
        clock: Clock,
        random: Random,
        host: Host,
        catalog: CatalogWait,
    ) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._catalog = catalog
        self.identity = identity
        self._host = host
        self._generation: int | None = None
        self._cursor: Any = None
        self._after: list[Callable[[], Iterable[Event]]] = []
        self._waiting: deque[Start] = deque()
        self._notes: list[tuple[str, int]] = []
        self._restarts = 0
        self._fill_at_ms = 0
        self._unfit: str | None = None
        self._ending = False
        self._board: dict[str, Any] | None = None
        self._news: Any = None
        self._board_at_ms = 0
        self._ticked_ms: int | None = clock.now_ms()
        self._looked_ms = 0
        self._heard = self._rung = self._written = False
        self._unit_worker: UnitWorker | None = None
        self._engine: Any = None
        self._selector = selectors.DefaultSelector()
        self._inline_name = f"{processes.process_name()}#inline-{identity.partition('#')[2]}"
        self._alarm, self._rope = (Line(end) for end in socket.socketpair())
        self._alarm.connection.setblocking(False)
        self._selector.register(self._alarm, selectors.EVENT_READ, None)
        self._bell = Bell(bell_name(store))
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        parallel = settings.dispatch.parallel
        self._crew = Crew(settings, settings.max_concurrent_refreshes if parallel else 0)
        self._permits = Permits(store, settings, identity, self._transact)
        self._recover()
        with store.lake.look() as reader:
            memory = memory_of(store.frontiers(reader), store.failures(reader))
        self.core = Coordinator(
            identity, settings.dispatch, random, memory=memory, next_job_id=store.next_job_id()
        )
        topics = settings.topic_positions()
        self._topics = TopicWatch(topics, settings.topics_poll_ms, self.wake)
        self._watcher = Watcher(store, self.core, self._topics)

    # the loop ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Wait for a worker, a tick or the core's next wish; then do what follows."""
        events = self._hear(self._patience_s())
        self._ticked_ms = self._clock.now_ms()
        events += self._look_after_crew()
        is_due = self._is_due()
        looks = self._rung or not self._heard or is_due or self._is_time_to_look()
        if looks and not is_due:
            self.tell(events)  # who waits for the end of a job does not wait for the look as well
            events = []
        if looks:
            events += self._see()
        self.tell([*events, Tick()])
        self._run_inline()

    def begin(self) -> None:
        """The first look, before anything is waited for."""
        self.tell([*self._see(), Tick()])
        self.tell(self._look_after_crew())
        self._watcher.positions.checkpoint(self._store.lake, now=True)

    def told(self) -> Told | None:
        """What people are told; safe to ask from any thread."""
        if self._board is None:
            return None
        ticked_ms = self._ticked_ms
        late = ticked_ms is not None and self._clock.now_ms() - ticked_ms > LATE_MS
        return Told(self._board, late)

    def wake(self) -> None:
        """End the wait of a turn; from any thread."""
        self._rope.send({})

    def drain(self) -> bool:
        """Start nothing new; True when nothing runs any more."""
        if not self._ending:
            self._ending = True
            self.tell([DrainChanged(True)])
        if self.core.live_jobs:
            self.tell(self._hear(self._patience_s()))
            self._run_inline()
        return not self.core.live_jobs

    def close(self) -> None:
        """End the workers, close what they had in hand, give permits back."""
        self._topics.close()
        self._crew.close()
        self._selector.close()
        self._bell.close()
        self._alarm.close()
        self._rope.close()
        jobs = self.core.live_jobs
        try:
            with suppress(LeaseLost), self._batch():
                for job in jobs:
                    self._close_row(job.cancelled(self._clock.now_ms(), "the coordinator stopped"))
            self._permits.close()
        except CatalogAway:
            return  # the next life finds the rows as they are
        finally:
            self._close_engine()

    def _patience_s(self) -> float:
        if self._waiting and not self._crew.size and self._generation is not None:
            return 0.0
        now_ms = self._clock.now_ms()
        wake_ms = self.core.wake_ms()
        until_ms = now_ms + self._settings.tick_ms
        if wake_ms is not None:
            until_ms = min(until_ms, max(wake_ms, now_ms))
        return (until_ms - now_ms) / 1_000

    def _is_due(self) -> bool:
        """Whether something is due by now; what is due is judged by a fresh look."""
        wake_ms = self.core.wake_ms()
        return wake_ms is not None and wake_ms <= self._clock.now_ms()

    def _is_time_to_look(self) -> bool:
        """Whether to look at the catalog though a worker said something: once in a tick."""
        return self._clock.now_ms() >= self._looked_ms + self._settings.tick_ms

    def _see(self) -> list[Event]:
        """Look at the catalog."""
        self._looked_ms = self._clock.now_ms()
        mine = frozenset([*self._crew.hands, self._inline_name])
        events = self._catalog.unlocked(lambda: self._watcher.look(mine))
        if self._ending:  # the catalog knows of people who drain, not of an end
            events = [event for event in events if not isinstance(event, DrainChanged)]
        for asked in self._watcher.unknown:
            text = f"there is no table {asked.table}"
            self._store_run(rows.ANSWER_REQUEST, self._clock.now_ms(), 0, text, asked.request_id)
        self._watcher.unknown.clear()
        if self._permits.is_shared:
            events.append(PoolContended(self._permits.is_contended(self._clock.now_ms())))
        self._watcher.positions.checkpoint(self._store.lake)
        self._paint()
        return events

    def _drop_dead_locks(self) -> None:
        """Take locks away from processes that are gone."""
        now_ms = self._clock.now_ms()
        for (holder,) in self._store.lake.query(rows.SELECT_LOCK_HOLDERS):
            if holder not in self._crew.hands and not self._store.is_alive(holder, now_ms):
                self._store_run(rows.RELEASE_LOCKS, holder)

    def _store_run(self, sql: str, *parameters: Any) -> int:
        """One statement in a transaction of its own, however long others hold the catalog."""
        return self._catalog.unlocked(lambda: self._store.run(sql, *parameters))

    def _paint(self) -> None:
        """Keep what people see up to date, but spend little time on it."""
        now_ms = self._clock.now_ms()
        if now_ms < self._board_at_ms:
            return
        shown = {
            **picture(self.core, now_ms),
            "workers": [
                {"worker": hand.name, "ready": hand.ready, "job_id": hand.job_id}
                for hand in self._crew
            ],
            "running": self._running(),
            "permits_max": self._settings.max_workers,
            "topics_trouble": self._topics.trouble,
            "unfit": self._unfit,
        }
        found = news(shown)
        if found != self._news:
            self._news, self._board = found, shown
        self._bell.open()
        if self.core.board.locks:
            self._drop_dead_locks()
        took_ms = self._clock.now_ms() - now_ms
        self._board_at_ms = now_ms + max(_PAINT_MS, 20 * took_ms)

    def _running(self) -> list[dict[str, Any]]:
        """The jobs under way, and how far each has come."""
        progress = {hand.job_id: hand.progress for hand in self._crew}
        return [
            {
                "job_id": job.job_id,
                "unit_key": job.unit_key,
                "worker": job.worker,
                "started_ms": job.started_at_ms,
                "progress": progress.get(job.job_id),
            }
            for job in self.core.live_jobs
            if job.worker is not None
        ]

    # telling the core ----------------------------------------------------------------------------

    def tell(self, events: Iterable[Event]) -> None:
        """Tell the core, and carry out what it wants, until nothing follows any more."""
        queue = deque(events)
        while queue:
            with self._batch():
                notes, self._notes = self._notes, []
                for note in notes:
                    self._run(rows.NOTE_COMMIT, *note)
                while queue:
                    event = queue.popleft()
                    for effect in self.core.step(event, self._clock.now_ms()):
                        queue.extend(self._carry_out(effect))
            if self._written:  # and committed
                self._written = False
                self._bell.ring()
            after, self._after = self._after, []
            for action in after:
                queue.extend(action())

    def _carry_out(self, effect: Effect) -> Iterable[Event]:  # noqa: C901 - one case each
        run, now_ms = self._run, self._clock.now_ms()
        match effect:
            case Enqueue(job):
                run(rows.INSERT_JOB, *rows.job_row(job))
            case Start():
                self._after.append(lambda: self._start(effect))
            case CloseJob(job):
                self._close_row(job)
            case Cancel(job, detail):
                return self._cancel(job, detail)
            case RecordSkip(key, members, reason, text):
                skipped = (now_ms, key, json.dumps(members), reason.value, text)
                run(rows.INSERT_SKIP, *skipped)
            case SetStatus(table, status, detail):
                query = self.core.board.graph.tables[table].query
                run(rows.SET_STATUS_OF_QUERY, status.value, detail, table, query)
            case AskToken():
                self._open()
                return [TokenWon() if self._permits.ask(now_ms) else TokenLost()]
            case ReleaseToken():
                self._open()
                self._permits.give_back()
            case Answer(request_id, ok, detail):
                run(rows.ANSWER_REQUEST, now_ms, int(ok), detail, request_id)
            case WouldDispatch(job, alongside):
                values = (job.job_id, job.unit_key, json.dumps(alongside), now_ms)
                run(rows.INSERT_WOULD_DISPATCH, *values)
        return []

    def _close_row(self, job: Job) -> None:
        self._run(
            rows.CLOSE_JOB, job.status.value, job.finished_at_ms, job.outcome_detail,
            None if job.retryable is None else int(job.retryable), job.job_id,
        )  # fmt: skip
        self._run(rows.DROP_RESERVATION, self._store.token(job.job_id))

    def _cancel(self, job: Job, detail: str) -> Iterable[Event]:
        """Close the row first, so that nothing can land; then make the worker give it up."""
        now_ms = self._clock.now_ms()
        self._run(rows.CLOSE_JOB, JobStatus.CANCELLED.value, now_ms, detail, 1, job.job_id)
        for start in self._waiting:
            if start.job.job_id == job.job_id:
                self._waiting.remove(start)
                return [JobCancelled(job.job_id, detail)]
        for hand in self._crew:
            if hand.job_id == job.job_id:
                hand.line.send({"cancel": job.job_id})
                hand.kill_at_ms = now_ms + self._settings.cancel_ms
        return []

    # the catalog ---------------------------------------------------------------------------------

    @contextmanager
    def _batch(self) -> Iterator[None]:
        """One transaction, begun by the first row that changes."""
        with ExitStack() as self._stack:
            try:
                yield
            finally:
                self._cursor = None

    def _open(self) -> Any:
        if self._cursor is None:
            # Nothing here is missed after a loss of power: the next life starts from the rows.
            begin = partial(self._store.lake.transact, synced=False)
            cursor = self._catalog.unlocked(lambda: self._stack.enter_context(begin()))
            self._written = True
            found = self._store.fetch(cursor, rows.COORDINATOR_IS)
            if not found or found[0][0] != self.identity:
                holder = found[0][0] if found else "nobody"
                raise LeaseLost(f"expected to hold the lease, found that {holder} does")
            self._cursor = cursor
        return self._cursor

    def _run(self, sql: str, *parameters: Any) -> int:
        return self._store.execute(self._open(), sql, *parameters)

    @contextmanager
    def _transact(self) -> Iterator[Any]:
        """For the permits: the transaction under way, or one of their own."""
        if self._cursor is not None:
            yield self._cursor
        else:
            with self._store.lake.transact() as cursor:
                yield cursor

    def _recover(self) -> None:
        """Close what a predecessor left: jobs, locks, reservations, permits."""
        now_ms = self._clock.now_ms()
        found = self._store.jobs(live_only=True)
        live = {
            job.worker for job in found if job.worker and self._store.is_alive(job.worker, now_ms)
        }
        ours = [job for job in found if not (_is_manual(job) and job.worker in live)]
        recovery = recover(
            ours,
            coordinator=self.identity,
            live_workers=frozenset(name for name in live if name),
            now_ms=now_ms,
        )
        with self._batch():
            for job in recovery.closed:
                self._close_row(job)
                if job.worker is not None:
                    self._run(rows.RELEASE_LOCKS, job.worker)
        for job in recovery.interrupt:
            _kill(job.worker)
        forget(self._store)
        self._drop_dead_locks()
        self._permits.recover(now_ms)

    # workers -------------------------------------------------------------------------------------

    def _start(self, start: Start) -> Iterable[Event]:
        """Hand a job to a worker, or run it here; called when its row is committed."""
        self._waiting.append(start)
        return self._assign()

    def _assign(self) -> list[Event]:
        events: list[Event] = []
        while self._waiting and (hand := self._crew.idle()) is not None:
            start = self._waiting.popleft()
            hand.job_id = start.job.job_id
            hand.line.send(
                {
                    "run": start.job.job_id,
                    "stale": start.stale,
                    "forced": self._is_forced(start),
                    "waited_ms": start.waited_ms,
                }
            )
            events.append(JobStarted(start.job.job_id, hand.name))
        return events

    def _is_forced(self, start: Start) -> bool:
        return not self._watcher.forced.isdisjoint(start.requests)

    def _run_inline(self) -> None:
        """Run one job here. Only one in a turn, so that the catalog is looked at in between."""
        if self._crew.size or not self._waiting or self._generation is None:
            return
        start = self._waiting.popleft()
        self.tell([JobStarted(start.job.job_id, self._inline_name)])
        self._ticked_ms = None  # a refresh may take its time
        ended = self._inline(start)
        self._ticked_ms = self._clock.now_ms()
        self._note_end(start.job.job_id, ended)
        event = outcome_event(start.job.job_id, ended)
        if self._is_bereft(ended):
            event = WorkerDied(self._inline_name)
        self.tell([*self._see(), event])

    def _note_end(self, job_id: int, ended: Ended) -> None:
        """Whether engines can work, for people, by what became of a job; how long a commit took."""
        if isinstance(ended, Succeeded):
            self._unfit = None
            self._notes.append(rows.commit_note(job_id, ended.commit_ms))
        elif isinstance(ended, Failed) and ended.kind is FailureKind.AWAY:
            self._unfit = ended.detail

    def _is_bereft(self, ended: Ended) -> bool:
        """Whether a refresh failed because what all engines share was gone, not by itself."""
        return isinstance(ended, Failed) and self._host.generation() != self._generation

    def _inline(self, start: Start) -> Ended:
        if self._unit_worker is None:
            try:
                self._engine = self._host.factory().refresher(self._store.lake)
            except Unavailable as error:
                return Failed(FailureKind.AWAY, error.message)
            topics = self._settings.topic_positions()
            self._unit_worker = UnitWorker(
                self._store,
                self._engine,
                topics=topics,
                api_key=self._settings.topics_api_key,
                now_ms=self._clock.now_ms,
            )
        try:
            claimed = claim(
                self._store,
                start.job.job_id,
                self._inline_name,
                now_ms=self._clock.now_ms(),
                reserve_ms=self._settings.reserve_ms,
            )
        except NotClaimed as error:
            return Cancelled(error.message)
        except LockHeld as error:
            return Failed(FailureKind.COLLISION, error.message)
        reserve_ms = self._settings.reserve_ms
        extend = partial(self._store.lake.extend, claimed.token, reserve_ms)
        with meanwhile(extend, reserve_ms / 4 / 1_000):  # or a sweep would remove its files
            return self._unit_worker.run(
                claimed, stale=start.stale, forced=self._is_forced(start), waited_ms=start.waited_ms
            )

    def _hear(self, patience_s: float) -> list[Event]:
        """What workers said, waiting for the first word."""
        events: list[Event] = []
        ready = self._selector.select(patience_s)
        self._heard, self._rung = bool(ready), False
        for key, _ in ready:
            if key.fileobj is self._bell:
                self._rung |= self._bell.hear()
            elif key.data is None:
                self._rung |= bool(self._alarm.receive())
            else:
                events += self._listen(key.data)
        now_ms = self._clock.now_ms()
        for hand in self._crew:
            if hand.kill_at_ms is not None and now_ms >= hand.kill_at_ms:
                events += self._died(hand)
        return events

    def _listen(self, hand: Hand) -> list[Event]:
        events: list[Event] = []
        for message in hand.line.receive():
            if "ready" in message:
                hand.ready, self._restarts, self._unfit = True, 0, None
            elif "unfit" in message:
                if self._unfit != message["unfit"]:
                    _LOG.warning("workers cannot start: %s", message["unfit"])
                self._unfit = message["unfit"]
            elif "progress" in message:
                if message["progress"] == hand.job_id:
                    hand.progress = message["at"]
            else:
                ended = read_outcome(message)
                if self._is_bereft(ended):
                    return [*events, *self._died(hand, engine_lost=True)]
                hand.job_id = hand.kill_at_ms = hand.progress = None
                self._note_end(int(message["job"]), ended)
                events.append(outcome_event(int(message["job"]), ended))
        events += self._assign()
        return events if hand.line.is_open else [*events, *self._died(hand)]

    def _died(self, hand: Hand, *, engine_lost: bool = False) -> list[Event]:
        """A worker is gone. What it had in hand may have landed just before, or been cancelled.

        With `engine_lost` it was cancelled because the engine was gone, and may be the cause.
        """
        self._selector.unregister(hand.line)
        self._crew.bury(hand)
        if not hand.ready:
            self._fill_later()
        self._store_run(rows.RELEASE_LOCKS, hand.name)
        if hand.job_id is None:
            return []
        job = self._store.job(hand.job_id)
        if job is not None and job.status is JobStatus.SUCCEEDED:
            return [JobSucceeded(job.job_id, self._landed(job))]
        if job is not None and job.status is JobStatus.CANCELLED and not engine_lost:
            return [JobCancelled(job.job_id, job.outcome_detail or "cancelled")]
        return [WorkerDied(hand.name)]

    def _landed(self, job: Job) -> dict[str, Refreshed]:
        with self._store.lake.look() as reader:
            known = self._store.frontiers(reader)
        return {
            name: Refreshed(known[name].frontier, known[name].position)
            for name in job.members
            if name in known
        }

    def _look_after_crew(self) -> list[Event]:
        """Start workers that are missing, unless they could not start just now.

        What they share is started with the first table there is; where it died, they have to go.
        """
        if not self.core.board.graph.tables and self._generation is None:
            return []
        events: list[Event] = []
        self._crew.prepare()
        generation = self._host.generation()
        if generation != self._generation:
            for hand in self._crew:
                events += self._died(hand)
            self._close_engine()
            self._fill_at_ms, self._generation = 0, generation
        if generation is None:
            self._unfit = self._host.trouble()
        elif self._clock.now_ms() >= self._fill_at_ms:
            self._fill()
        return events

    def _fill(self) -> None:
        try:
            for hand in self._crew.fill(self._host):
                self._selector.register(hand.line, selectors.EVENT_READ, hand)
        except NurseryLost as error:  # those who work go on
            self._unfit = error.message
            self._fill_later()

    def _fill_later(self) -> None:
        """Wait a little before the next worker is started: the last one could not start."""
        self._restarts += 1
        first_ms, most_ms = RESTART_MS
        wait_ms = min(first_ms * 2 ** min(self._restarts, 10), most_ms)
        self._fill_at_ms = self._clock.now_ms() + wait_ms

    def _close_engine(self) -> None:
        if self._unit_worker is not None:
            self._unit_worker.close()
            self._unit_worker = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _is_manual(job: Job) -> bool:
    return job.coordinator.startswith(MANUAL)


def _kill(worker: str | None) -> None:
    """End a worker whose coordinator is gone; never a process that does other work as well."""
    if (
        worker is not None
        and "#" not in worker
        and processes.is_here(worker)
        and processes.is_alive(worker)
    ):
        with suppress(ProcessLookupError):
            os.kill(processes.pid_of(worker), signal.SIGKILL)
