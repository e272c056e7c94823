"""Runs a pipeline: one Spark job a batch, with the next batch gathering and the last committing.

Three threads: fetch takes records from the topic as Arrow and gathers them; work takes what has
gathered and runs it as one job, whose tasks parse, evaluate and write files; commit checks the
files and adds them to the lake. One batch gathers, one is at work, one is committed, and at most
one waits for its commit, so a record waits for at most one batch in front of its own.

Whatever breaks ends the round: batches in flight are given up, and the next round begins at the
cursor, which only a commit moves. Three waits are no such end, they hold the others up: tasks that
cannot write their files, a catalog that cannot be written, and an evaluate whose documents cannot
be had: prices that were right some time ago may not be right any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from random import Random
from time import monotonic_ns
from typing import Final
from uuid import uuid4

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Busy, Conflict, Corrupt, Gone, Rejected, Unavailable
from penstock.kernel.system import SystemClock
from penstock.kernel.text import shortened
from penstock.kernel.units import MIB
from penstock.lake.catalog import Catalog
from penstock.spark.errors import SparkMissing, SparkNotStarted, is_lost
from penstock.spark.lake.object_store import check_session
from penstock.spark.link import SparkLink, reason
from penstock.spark.pipeline.chain import Chain, JobResult, StageFailed, StepFailed, in_stage
from penstock.spark.pipeline.cursors import Cursor, TakenOver, cursor_of, take_over
from penstock.spark.pipeline.definition import Pinned, Pipeline, Step
from penstock.spark.pipeline.fetch import FetchedBatch, Fetcher, Gathering, blank_messages
from penstock.spark.pipeline.side_files import SideStore
from penstock.spark.pipeline.space import Basis
from penstock.spark.pipeline.stages import JobStages
from penstock.spark.pipeline.store import RESERVE_MS, LakeTables, Store, TablesChanged
from penstock.spark.pipeline.task import EVALUATE, STAGES, STORE, TaskWork
from penstock.spark.probes import explained, pipeline_checks
from penstock.spark.topics.http import TopicAddress, TopicConnection, TopicMissing, TopicRecreated

_LOG: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.2
_WAITS: Final = "waits"
_AGAIN: Final = "begins again"
_AWAY_S: Final = 1.0
"""How long to wait at most before what is away is looked for again, so that work goes on soon."""
_PAGE_MIN: Final = 64 << 10
"""A page with fewer bytes is not worth its request."""
_RANDOM: Final = Random()
WARM_UP_S: Final = 4.0
IN_FLIGHT: Final = 3
"""Of largest batches may be in flight at once; smaller ones may be more, one of them waiting."""


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Limits of a run.

    `wait_ms` is how long one look at the topic waits for records. While a batch is at work, the
    next one gathers with a look every `linger_ms`, until it has `batch_bytes_max`. All batches that
    are not stored yet have at most `IN_FLIGHT` times that.

    A round that fails without having stored anything counts; after `failures_max` in a row the
    run ends with what went wrong.
    """

    wait_ms: int = 1_000
    linger_ms: int = 20
    batch_bytes_max: int = 64 * MIB
    failures_max: int = 20
    retry_base_ms: int = 200
    retry_cap_ms: int = 5_000

    @property
    def backoff(self) -> Backoff:
        """The pauses after failures."""
        return Backoff(self.retry_base_ms, self.retry_cap_ms, 0.5, float("inf"))


class PipelineRunner:
    """One run of a pipeline in this process. `run` blocks; the rest may be called from anywhere.

    `stages` are parse, evaluate and store, for a planner (`penstock.ingest.windows.Windows`) to
    measure and to resize.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        lake: Catalog,
        url: str,
        *,
        link: SparkLink | None = None,
        api_key: str | None = None,
        options: RunnerOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.options = options or RunnerOptions()
        self.job_stages = JobStages(clock)
        self.stages = self.job_stages.all
        self.link = link or SparkLink()
        self.stored_seq = 0
        """The seq up to which every record is in the lake."""
        self.head_seq = 0
        """The topic's head when it was last looked at."""
        self.trouble: str | None = None
        """Why the pipeline is waiting, or None."""
        self.basis: Basis | None = None
        """What the last stored batch was evaluated with beside its rows."""
        self._lake = lake
        self._address = TopicAddress(url, pipeline.raw_topic, api_key)
        self._clock: Clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._storing = threading.Event()
        self._storing.set()
        self._upto: int | None = None
        self._told: str | None = None

    @property
    def is_held(self) -> bool:
        """Whether store waits for a person."""
        return not self._storing.is_set()

    def hold(self) -> None:
        """Store nothing until `release`; the stages before it fill up and wait."""
        self._storing.clear()

    def release(self) -> None:
        """Store again."""
        self._storing.set()

    def stop(self) -> None:
        """End the run soon; batches in flight are discarded, as after a crash."""
        self._stopping.set()

    def check(self) -> None:
        """Refuse a Spark elsewhere that does not share the lake's files; one that is away may."""
        self.link.require(*pipeline_checks(self._lake.storage, is_ours=self.link.is_ours))
        if not self.link.is_ours:
            with suppress(SparkNotStarted):
                self.link.session()

    def warm_up(self, within_s: float = WARM_UP_S) -> int:
        """Run jobs that store nothing, until Spark is quick at them; how many there were.

        A JVM needs some dozens of jobs before it has compiled what they use. Nothing is waited for:
        where Spark or a side input cannot be reached, the first batches warm it up.
        """
        jobs, end_ns = 0, monotonic_ns() + int(within_s * 1e9)
        try:
            chain = Chain(self.link.session(), self.pipeline)
            evaluate, side = self.pipeline.pinned().evaluate, SideStore(self._lake)
            try:
                steps = side.steps(chain.steps(evaluate))
                work = TaskWork(self._lake.storage.root, None, (), steps=steps)
                while monotonic_ns() < end_ns and not self._stopping.is_set():
                    chain.run(chain.begin(blank_messages(self.pipeline.payload)), evaluate, work)
                    jobs += 1
            finally:
                side.close()
        except Exception as error:  # a step that cannot read a blank message, for example
            _LOG.debug("pipeline %s begins cold: %s", self.pipeline.name, error)
        return jobs

    def run(self, upto_seq: int | None = None) -> Cursor:
        """Run until `stop`, or until every record up to a seq is in the lake."""
        self._upto = upto_seq
        try:
            self.check()
            return self._rounds(uuid4().hex)
        finally:
            self.link.drop()
            self.pipeline.close()

    def _rounds(self, holder: str) -> Cursor:
        failures = 0
        while True:
            round_: _Round | None = None
            error: Exception | None = None
            try:
                round_ = _Round(self, self._begin(holder))
                error = round_.run()
            except Exception as found:  # a database that is away for a while, for example
                error = found
            if error is None or self._stopping.is_set():
                return self._reached(error)
            error = explained(error)
            failures = 1 if round_ is not None and round_.has_stored else failures + 1
            is_away = self._is_away(error)
            if is_final(error) or (failures >= self.options.failures_max and not is_away):
                raise error
            self.tell_trouble(_WAITS if is_away else _AGAIN, error)
            self.link.drop()
            delay_s = self._delay_s(failures)
            self._stopping.wait(min(delay_s, _AWAY_S) if is_away else delay_s)

    def _is_away(self, error: Exception) -> bool:
        """Whether what the pipeline works with cannot be reached: it is waited for."""
        if isinstance(error, SparkNotStarted | SparkMissing) or is_lost(error):
            return self.link.is_remote and not isinstance(error, SparkMissing)
        return isinstance(error, Unavailable)

    def tell_trouble(self, what: str, error: Exception) -> None:
        """Say what holds the pipeline up: one line when it begins, not one for each try."""
        text = reason(error) if is_lost(error) else str(error)
        is_told = isinstance(error, StageFailed)  # its text has the stage and the kind of error
        told = shortened(text) if is_told else f"{type(error).__name__}: {shortened(text)}"
        told = told.removeprefix(f"{what}: ")
        self.trouble = told if what in (_WAITS, _AGAIN) else f"{what}: {told}"
        kind = what if what == _WAITS else f"{what} {type(error).__name__}"
        if kind != self._told:
            self._told = kind
            _LOG.warning("pipeline %s %s: %s", self.pipeline.name, what, told)

    def tell_progress(self) -> None:
        """A batch is stored: nothing holds the pipeline up."""
        self.trouble = None
        if self._told is not None:
            self._told = None
            _LOG.info("pipeline %s goes on", self.pipeline.name)

    def _reached(self, error: Exception | None) -> Cursor:
        """The cursor at the end of the run."""
        found = cursor_of(self._lake, self.pipeline.name)
        if found is None:
            raise error or AssertionError("a run ended without a cursor")
        return found

    def _begin(self, holder: str) -> Cursor:
        if not self._lake.storage.is_local:
            check_session(self.link.session(), self._lake.data_path)
        with TopicConnection(self._address) as connection:
            state = connection.state()
        name, topic = self.pipeline.name, self.pipeline.raw_topic
        cursor = take_over(self._lake, name, topic, state.epoch, holder)
        if cursor.epoch != state.epoch:
            raise TopicRecreated(
                f"topic {topic!r} was deleted and made again (epoch {cursor.epoch}, now "
                f"{state.epoch}): give the pipeline another name to start over"
            )
        self.stored_seq, self.head_seq = cursor.seq, state.head_seq
        self.basis = cursor.basis
        return cursor

    def _delay_s(self, failures: int) -> float:
        delay_ms = self.options.backoff.next_ms(failures, elapsed_ms=0, random=_RANDOM)
        return (delay_ms or 0) / 1_000


def is_final(error: BaseException) -> bool:
    """Whether trying again would change nothing: a person is needed, or another has taken over."""
    from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError

    if isinstance(error, StepFailed) and error.__cause__ is not None:
        return is_final(error.__cause__)
    if isinstance(error, TopicMissing) or is_lost(error):
        return False
    wrong = (AnalysisException, PySparkTypeError, PySparkValueError)
    slips = (TypeError, AttributeError, LookupError, NameError, ValueError)
    return isinstance(error, (TakenOver, Rejected, Corrupt, Gone, *wrong, *slips))


@dataclass(slots=True)
class _Made:
    """A batch whose files are written; one of nothing but duplicates has none."""

    batch: FetchedBatch
    result: JobResult | None = None
    tables: LakeTables | None = None
    token: str | None = None
    basis: Basis | None = None

    @property
    def spent_ns(self) -> dict[str, int]:
        """What each stage spent on it in its job."""
        return dict.fromkeys(STAGES, 0) if self.result is None else self.result.spent_ns


class _Round:
    """From the cursor on until something breaks."""

    def __init__(self, runner: PipelineRunner, cursor: Cursor) -> None:
        self._runner = runner
        self._stages = runner.job_stages
        self._cursor = cursor
        self._pipeline = runner.pipeline
        self._gathering = Gathering()
        self._made: Queue[_Made | None] = Queue(1)
        self._store = Store(runner._lake, runner.pipeline)
        self._side = SideStore(runner._lake)
        self._chain: Chain | None = None
        self._tables: LakeTables | None = None
        self._spare: tuple[str, int] | None = None  # a reservation, and when it was made
        self._writes_fail = False
        self._fetched = threading.Event()
        """No more records are wanted."""
        self._over = threading.Event()
        self._error: Exception | None = None
        self._stored = threading.Event()

    @property
    def has_stored(self) -> bool:
        """Whether a batch came through."""
        return self._stored.is_set()

    def run(self) -> Exception | None:
        """Run the threads to their end; what broke, or None."""
        self._stages.clear()
        works: list[Callable[[], None]] = [self._fetch, self._work, self._commit]
        threads = [
            threading.Thread(target=self._guard, args=(work,), daemon=True) for work in works
        ]
        for thread in threads:
            thread.start()
        interrupted = False
        while any(thread.is_alive() for thread in threads):
            self._over.wait(_TICK_S)
            if self._runner._stopping.is_set():
                self._over.set()
            if self._over.is_set() and not interrupted:
                interrupted = True
                self._runner.link.interrupt()
            for thread in threads:
                thread.join(0.01)
        self._stages.clear()
        with suppress(Exception):  # what stays is swept
            self._side.close()
        return self._error

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if self._error is None and not self._over.is_set():
                self._error = error
            self._over.set()

    # fetch

    def _fetch(self) -> None:
        runner, options = self._runner, self._runner.options
        with TopicConnection(runner._address) as connection:
            fetcher = Fetcher(
                connection, self._cursor, self._pipeline.horizon, self._pipeline.payload
            )
            while not self._over.is_set() and (runner._upto is None or fetcher.at < runner._upto):
                moves = self._gathering.moves
                most, free_bytes = self._most(fetcher), self._free_bytes()
                waiting = fetcher.head_seq - fetcher.at
                if most <= 0 or free_bytes <= 0:
                    if waiting > 0:
                        self._stages.refused()
                    self._gathering.wait_moved(moves, _TICK_S)
                    continue
                self._stages.reading(max(0, min(most, waiting)))
                part = fetcher.take(most, options.wait_ms, max(_PAGE_MIN, free_bytes))
                runner.head_seq = fetcher.head_seq
                if part is None:
                    self._stages.reading(0)
                    continue
                self._stages.gathered(part.count, part.size_bytes)
                self._gathering.add(part)
                if fetcher.at >= fetcher.head_seq:
                    # Not before some more may be there, or what is here has been taken.
                    self._gathering.wait_taken(options.linger_ms / 1_000)
        self._fetched.set()

    def _most(self, fetcher: Fetcher) -> int:
        """How many more records may gather."""
        most, upto = self._stages.room(self._gathering.count), self._runner._upto
        return most if upto is None else min(most, upto - fetcher.at)

    def _free_bytes(self) -> int:
        """How many more bytes may gather: of this batch, and of all that are not stored."""
        gathering, most = self._gathering, self._runner.options.batch_bytes_max
        return min(most - gathering.size_bytes, IN_FLIGHT * most - gathering.unstored_bytes)

    # work

    def _work(self) -> None:
        upto = self._runner._upto
        if upto is None or self._cursor.seq < upto:
            self._chain_now()  # refuses steps that cannot be chained before there are records
        while (batch := self._next_batch()) is not None:
            made = self._make(batch)
            if made is None:
                return
            result = made.result
            spent_ns = (
                dict.fromkeys(("parse", "evaluate"), 0) if result is None else result.spent_ns
            )
            self._stages.made(batch.count, batch.size_bytes, spent_ns)
            self._put(made)
        self._put(None)

    def _next_batch(self) -> FetchedBatch | None:
        """What has gathered, as soon as there is anything."""
        while not self._over.is_set():
            if self._gathering.wait(_TICK_S):
                return self._gathering.take()
            if self._fetched.is_set() and not self._gathering.count:
                return None
        return None

    def _make(self, batch: FetchedBatch) -> _Made | None:
        """Run a batch's job; retry while its tasks cannot write. None if the round is over."""
        if not batch.messages.num_rows:
            return _Made(batch)
        failures = 0
        while not self._over.is_set():
            try:
                return self._try(batch)
            except (OSError, Busy, Unavailable, StageFailed) as error:
                if not _is_about_writing(error):
                    raise
                failures += 1
                self._writes_fail = True
                self._stages.held_up_by(self._stages.store)
                self._runner.tell_trouble(STORE, error)
                self._over.wait(self._runner._delay_s(failures))
        return None

    def _try(self, batch: FetchedBatch) -> _Made | None:
        """Run a batch's job once; None if the round is over before it could begin."""
        if not self._writes_fail:
            self._stages.begun()
        chain = self._chain_now()
        begun = chain.begin(batch.messages)
        pinned = self._pinned()
        if pinned is None:
            return None
        evaluate = pinned.evaluate
        tables, token = self._tables_for(chain, evaluate), self._reserved()
        steps = self._side.steps(chain.steps(evaluate))
        work = TaskWork(self._runner._lake.storage.root, token, tables.targets, steps=steps)
        result = chain.run(begun, evaluate, work)
        self._writes_fail = False
        return _Made(batch, result, tables, token, pinned.basis)

    def _reserved(self) -> str:
        """A reservation for the files of a batch: the one made meanwhile, unless it is old."""
        spare, self._spare = self._spare, None
        if spare is not None and monotonic_ns() - spare[1] < RESERVE_MS * 1_000_000 // 4:
            return spare[0]
        return self._store.reserve()

    def _chain_now(self) -> Chain:
        """The chain of the session there is; a new session is asked again what steps give."""
        spark = self._runner.link.session()
        if self._chain is None or self._chain.spark is not spark:
            chain = Chain(spark, self._pipeline)
            chain.check()
            self._chain, self._tables = chain, None
        return self._chain

    def _tables_for(self, chain: Chain, evaluate: Step) -> LakeTables:
        """The tables for what evaluate gives, looked up once in a round."""
        if self._tables is None:
            self._tables = self._store.tables(chain.schema(evaluate))
        return self._tables

    def _pinned(self) -> Pinned | None:
        """What evaluates a batch; tries again until it can be had, or this is over."""
        failures = 0
        while not self._over.is_set():
            try:
                with in_stage(EVALUATE):
                    return self._pipeline.pinned()
            except (Busy, Unavailable, TopicMissing) as error:
                failures += 1
                self._stages.held_up_by(self._stages.evaluate)
                self._runner.tell_trouble(EVALUATE, error)
                self._over.wait(self._runner._delay_s(failures))
        return None

    def _put(self, made: _Made | None) -> None:
        while not self._over.is_set():
            with suppress(Full):
                self._made.put(made, timeout=_TICK_S)
                return

    # commit

    def _commit(self) -> None:
        while (made := self._next_made()) is not None:
            began_ns = monotonic_ns()
            if not self._keep(made):
                return
            spent_ns = monotonic_ns() - began_ns
            self._stages.stored(made.batch.count, made.spent_ns[STORE] + spent_ns)
            self._gathering.stored(made.batch.size_bytes)
            if self._spare is None:  # here, so that no batch waits for the catalog's disk
                with suppress(OSError, Busy, Unavailable, Conflict):  # the batch tries again
                    self._spare = self._store.reserve(), monotonic_ns()

    def _next_made(self) -> _Made | None:
        while not self._over.is_set():
            with suppress(Empty):
                return self._made.get(timeout=_TICK_S)
        return None

    def _keep(self, made: _Made) -> bool:
        """Commit a batch; retry while the lake or its disk refuses it. False if this is over."""
        runner, failures = self._runner, 0
        kept_ns = monotonic_ns()
        while not self._over.is_set():
            if monotonic_ns() - kept_ns > RESERVE_MS * 1_000_000 // 4 and made.token is not None:
                kept_ns = monotonic_ns()
                self._store.keep(made.token)
            if not runner._storing.wait(_TICK_S):
                continue
            try:
                self._store.commit(
                    made.batch, made.result, made.tables, self._cursor, token=made.token,
                    basis=made.basis,
                )  # fmt: skip
            except (TakenOver, TablesChanged):
                raise
            except (OSError, Busy, Unavailable, Conflict) as error:
                if isinstance(error, Conflict) and not self._is_kept(made):
                    raise
                failures += 1
                runner.tell_trouble(STORE, error)
                self._over.wait(runner._delay_s(failures))
                continue
            runner.stored_seq = made.batch.upto
            runner.basis = made.basis or runner.basis
            runner.tell_progress()
            self._stored.set()
            return True
        return False

    def _is_kept(self, made: _Made) -> bool:
        """Whether the files are still reserved; if not, they may be gone and are made again."""
        return made.token is None or self._store.keep(made.token)


def _is_about_writing(error: Exception) -> bool:
    """Whether it may go away by itself while a batch waits: a disk, a catalog, and not Spark."""
    if isinstance(error, StageFailed):
        return error.stage == STORE and error.is_io
    return not is_lost(error) and not isinstance(error, SparkNotStarted)
