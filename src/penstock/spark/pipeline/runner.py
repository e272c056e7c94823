"""Runs a pipeline: while one batch is stored the next is evaluated and the one after it parsed.

Four threads, each a stage's: fetch takes records from the topic as Arrow, parse and evaluate each
run one job and keep its rows inside Spark (a local checkpoint), store writes and commits. All jobs
land in Spark's FAIR pool, and a stage runs one at a time, so stages share the machine evenly as in
pools of their own (clients of Spark Connect cannot choose one).

Whatever breaks in the first three ends the round: batches in flight are given up, and the next
round begins at the cursor, which only a commit moves. A store that cannot write tries again and
holds the others up until it can; so does an evaluate whose documents cannot be had: prices that
were right some time ago may not be right any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from random import Random
from time import monotonic_ns
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Busy, Conflict, Corrupt, Gone, Rejected, Unavailable
from penstock.kernel.system import SystemClock
from penstock.kernel.text import shortened
from penstock.kernel.units import MIB
from penstock.lake.catalog import Catalog
from penstock.lake.s3 import is_s3
from penstock.spark.checkpoint import checkpoint, release
from penstock.spark.errors import SparkMissing, SparkNotStarted, is_lost
from penstock.spark.lake.object_store import check_session
from penstock.spark.link import SparkLink, reason
from penstock.spark.pipeline.cursors import Cursor, TakenOver, cursor_of, take_over
from penstock.spark.pipeline.definition import (
    Known,
    Pinned,
    Pipeline,
    evaluated_frame,
    parsed_frame,
    raw_frame,
)
from penstock.spark.pipeline.fetch import Batch, Fetcher
from penstock.spark.pipeline.space import Basis
from penstock.spark.pipeline.stages import BatchStage, batch_messages
from penstock.spark.pipeline.store import HERE_BYTES_MAX, Store
from penstock.spark.probes import explained, pipeline_checks
from penstock.spark.topics.http import TopicAddress, TopicConnection, TopicMissing, TopicRecreated

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_LOG: Final = logging.getLogger(__name__)
_TICK_S: Final = 0.2
_WAITS: Final = "waits"
_AGAIN: Final = "begins again"
_AWAY_S: Final = 1.0
"""How long to wait at most before what is away is looked for again, so that work goes on soon."""
_RANDOM: Final = Random()


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Limits of a run. `linger_ms` is how long a batch waits for more once its first message came.

    A batch ends with the page of the topic that brings it to `batch_bytes_max`. One whose rows take
    more than `here_bytes_max` is written by Spark's tasks.

    A round that fails without having stored anything counts; after `failures_max` in a row the
    run ends with what went wrong.
    """

    wait_ms: int = 1_000
    linger_ms: int = 50
    batch_bytes_max: int = 64 * MIB
    here_bytes_max: int = HERE_BYTES_MAX
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
        self.stages = [BatchStage(name) for name in ("parse", "evaluate", "store")]
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
    def room(self) -> int:
        """How many more messages the raw topic may take before this falls behind its window."""
        return max(0, self.stages[0].window - (self.head_seq - self.stored_seq))

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

    def run(self, upto_seq: int | None = None) -> Cursor:
        """Run until `stop`, or until every record up to a seq is in the lake."""
        self._upto = upto_seq
        try:
            self.check()
            return self._rounds(uuid4().hex)
        finally:
            # Frames inside Spark that outlive their session hang the interpreter's exit.
            self.link.drop()
            self.pipeline.close()

    def _rounds(self, holder: str) -> Cursor:
        failures = 0
        while True:
            round_: _Round | None = None
            error: Exception | None = None
            try:
                round_ = _Round(self, self._begin(holder), is_cold=failures > 0)
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
        told = f"{type(error).__name__}: {shortened(text)}"
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
            raise error or AssertionError("expected a cursor after a run, found none")
        return found

    def _begin(self, holder: str) -> Cursor:
        if is_s3(self._lake.data_path):
            check_session(self.link.session(), self._lake.data_path)
        with TopicConnection(self._address) as connection:
            state = connection.state()
        name, topic = self.pipeline.name, self.pipeline.raw_topic
        cursor = take_over(self._lake, name, topic, state.epoch, holder)
        if cursor.epoch != state.epoch:
            raise TopicRecreated(
                f"expected topic {topic!r} of epoch {cursor.epoch}, found it deleted and made "
                f"again with epoch {state.epoch}: give the pipeline another name to begin anew"
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

    if isinstance(error, TopicMissing) or is_lost(error):
        return False
    wrong = (AnalysisException, PySparkTypeError, PySparkValueError)
    slips = (TypeError, AttributeError, LookupError, NameError, ValueError)
    return isinstance(error, (TakenOver, Rejected, Corrupt, Gone, *wrong, *slips))


class _Round:
    """From the cursor on until something breaks."""

    def __init__(self, runner: PipelineRunner, cursor: Cursor, *, is_cold: bool) -> None:
        self._runner = runner
        self._is_cold = is_cold
        self._cursor = cursor
        self._pipeline = runner.pipeline
        self._queues: list[SimpleQueue[Batch | None]] = [SimpleQueue() for _ in runner.stages]
        here_bytes_max = runner.options.here_bytes_max
        self._store = Store(runner._lake, runner.pipeline, here_bytes_max=here_bytes_max)
        self._known: Known = {}
        self._over = threading.Event()
        self._error: Exception | None = None
        self._stored = threading.Event()
        self._session: SparkSession | None = None

    @property
    def has_stored(self) -> bool:
        """Whether a batch came through."""
        return self._stored.is_set()

    def run(self) -> Exception | None:
        """Run the threads to their end; what broke, or None."""
        for stage in self._runner.stages:
            stage.clear()
        works: list[Callable[[], None]] = [
            self._fetch,
            lambda: self._pass(0, self._parse),
            lambda: self._pass(1, self._evaluate),
            lambda: self._pass(2, self._keep),
        ]
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
        for stage in self._runner.stages:
            stage.clear()
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
        runner = self._runner
        address = runner._address
        with TopicConnection(address) as connection:
            options, horizon = runner.options, self._pipeline.horizon
            fetcher = Fetcher(connection, self._cursor, horizon, options, self._over.wait)
            while not self._over.is_set() and (runner._upto is None or fetcher.at < runner._upto):
                if not runner.stages[0].has_place(_TICK_S):
                    continue  # what comes meanwhile goes into the same batch
                most = batch_messages(runner.stages)
                if runner._upto is not None:
                    most = min(most, runner._upto - fetcher.at)
                batch = fetcher.take(most)
                runner.head_seq = fetcher.head_seq
                if batch is None:
                    runner.stages[0].starved()
                    continue
                if runner.head_seq > batch.upto:
                    runner.stages[0].refused()
                self._hand(0, batch)
                self._go_first()
        self._queues[0].put(None)

    def _go_first(self) -> None:
        """Let the first batch go alone after something broke.

        On a Spark that has just started, a second one beside it would only make it later.
        """
        while self._is_cold and not (self._over.is_set() or self._runner.is_held):
            if self._stored.wait(_TICK_S):
                return

    # the stages

    def _parse(self, batch: Batch) -> None:
        spark = self._spark()
        if batch.messages.num_rows:
            raw = raw_frame(spark, self._pipeline, batch.messages)
            batch.frame = checkpoint(parsed_frame(self._pipeline, raw, self._known))

    def _spark(self) -> SparkSession:
        """The one session of a round: rows that another one held are gone."""
        link = self._runner.link
        if self._session is None:
            self._session = link.session()
        elif not link.is_live(self._session):
            raise SparkNotStarted("expected the Spark that the round began on, found it ended")
        return self._session

    def _evaluate(self, batch: Batch) -> None:
        parsed = batch.frame
        if parsed is None:
            return
        pinned = self._pinned()
        if pinned is not None:
            batch.basis = pinned.basis
            batch.frame = checkpoint(evaluated_frame(pinned, parsed, self._known))
            release(parsed)

    def _pinned(self) -> Pinned | None:
        """What evaluates a batch; tries again until it can be had, or this is over."""
        failures = 0
        while not self._over.is_set():
            try:
                return self._pipeline.pinned()
            except (Busy, Unavailable, TopicMissing) as error:
                failures += 1
                self._runner.tell_trouble("evaluate", error)
                self._over.wait(self._runner._delay_s(failures))
        return None

    def _keep(self, batch: Batch) -> None:
        """Store a batch; retry while the lake or its disk refuses it."""
        failures = 0
        while not self._over.is_set():
            if not self._runner._storing.wait(_TICK_S):
                self._runner.trouble = "store: held by hand"
                continue
            try:
                self._store.store(
                    batch.frame, batch.messages, self._cursor,
                    (batch.after, batch.upto, batch.count, batch.duplicates), batch.basis,
                )  # fmt: skip
            except TakenOver:
                raise
            except (OSError, Busy, Unavailable, Conflict) as error:
                if is_lost(error) or isinstance(error, SparkNotStarted):
                    raise
                failures += 1
                self._runner.tell_trouble("store", error)
                self._over.wait(self._runner._delay_s(failures))
                continue
            self._runner.stored_seq = batch.upto
            self._runner.basis = batch.basis or self._runner.basis
            self._runner.tell_progress()
            self._stored.set()
            if batch.frame is not None:
                release(batch.frame)
            return

    def _pass(self, number: int, work: Callable[[Batch], None]) -> None:
        """Take batches, do a stage's work on them, hand them on."""
        stage = self._runner.stages[number]
        while True:
            batch = self._next(number)
            if batch is None:
                break
            begun_ns = monotonic_ns()
            work(batch)
            took_ns = monotonic_ns() - begun_ns
            if number + 1 < len(self._queues):
                self._hand(number + 1, batch)  # it fills this stage until the next one has room
            stage.leave(batch.count, took_ns)
        if number + 1 < len(self._queues):
            self._queues[number + 1].put(None)

    def _next(self, number: int) -> Batch | None:
        queue = self._queues[number]
        try:
            return queue.get_nowait()
        except Empty:
            self._runner.stages[number].starved()
        while not self._over.is_set():
            try:
                return queue.get(timeout=_TICK_S)
            except Empty:
                continue
        return None

    def _hand(self, number: int, batch: Batch) -> None:
        stage = self._runner.stages[number]
        while not self._over.is_set():
            if stage.enter(batch.count, batch.size_bytes, _TICK_S):
                self._queues[number].put(batch)
                return
