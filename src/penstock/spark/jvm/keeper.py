"""Keeps one JVM with Spark in it: started on first use, and restarted after it died.

A start takes seconds, so it runs in its own thread. A caller either waits for it (`get`) or learns
that no JVM is ready yet (`poll`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.system import SystemClock
from penstock.spark.jvm.embedded import EmbeddedSpark, Tell, start_spark
from penstock.spark.options import SparkOptions

_LOG: Final = logging.getLogger(__name__)
_RESTARTS: Final = Backoff(base_ms=1_000, cap_ms=30_000, jitter=0.0, window_ms=math.inf)
"""How long `poll` waits before it starts a Spark again that could not start: first and at most."""


class JvmKeeper:
    """One JVM at a time, and at most one start under way. Threads may share it.

    `is_wanted` is asked when a JVM ends: if it says yes, the next one starts at once, while what
    ran on the old one is still finding out that it is gone.
    """

    def __init__(
        self,
        options: SparkOptions,
        *,
        tell: Tell = _LOG.info,
        is_wanted: Callable[[], bool] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options, self._tell, self._is_wanted = options, tell, is_wanted
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._coming: Future[EmbeddedSpark] | None = None
        self._failures = 0
        self._start_at_ms = 0
        self.jvm: EmbeddedSpark | None = None
        """The JVM that was started last; it may have ended."""
        self.generation = 0
        """How many JVMs have been started."""
        self.trouble: str | None = None
        """Why the last start failed, if it did."""

    @property
    def pid(self) -> int | None:
        """The JVM's process id, if it runs."""
        jvm = self.jvm
        return jvm.pid if jvm is not None and jvm.is_running else None

    def poll(self) -> EmbeddedSpark | None:
        """The JVM if it runs. Else start one, with a pause after a failure; never waits."""
        with self._lock:
            if self.jvm is not None and self.jvm.is_running:
                return self.jvm
            if self._clock.monotonic_ms() >= self._start_at_ms:
                self._begin(is_polled=True)
            return None

    def get(self) -> EmbeddedSpark:
        """The JVM; starts one if none runs, and waits for it."""
        with self._lock:
            if self.jvm is not None and self.jvm.is_running:
                return self.jvm
            coming = self._begin()
        return coming.result()

    def stop(self) -> None:
        """Stop the JVM, including one that is still starting. Idempotent."""
        with self._lock:
            coming = self._coming
        if coming is not None:
            with suppress(Exception):  # the caller that waits for it is told
                coming.result()
        with self._lock:
            jvm, self.jvm = self.jvm, None
        if jvm is not None:
            jvm.stop()

    def _begin(self, *, is_polled: bool = False) -> Future[EmbeddedSpark]:
        if self._coming is None:
            if self.jvm is not None:
                self._tell(f"Spark ended, starting it again: {_last_line(self.jvm.log)}")
                self.jvm.stop(0)
                self.jvm = None
            self._coming = Future()
            self._run(self._start, self._coming, is_polled)
        return self._coming

    def _start(self, coming: Future[EmbeddedSpark], is_polled: bool) -> None:
        try:
            jvm = start_spark(self._options, self._tell)
        except BaseException as error:
            self._failed(str(error), is_polled)
            coming.set_exception(error)
            return
        with self._lock:
            self._coming, self.trouble, self._failures = None, None, 0
            self.generation += 1
            self.jvm = jvm
        coming.set_result(jvm)
        if self._is_wanted is not None:
            self._run(self._watch, jvm)

    def _failed(self, text: str, is_polled: bool) -> None:
        wait_ms = int(_RESTARTS.nominal_ms(self._failures + 1))
        again = f", next try in {wait_ms / 1_000:g} s" if is_polled else ""
        self._tell(f"Spark did not start{again}: {text}")
        with self._lock:
            self._coming, self.trouble = None, text
            self._failures += 1
            self._start_at_ms = self._clock.monotonic_ms() + wait_ms

    def _watch(self, jvm: EmbeddedSpark) -> None:
        jvm.wait()
        with self._lock:
            if self.jvm is jvm and self._is_wanted is not None and self._is_wanted():
                self._begin()

    @staticmethod
    def _run(target: Callable[..., None], *arguments: object) -> None:
        name = "penstock-spark"
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


def _last_line(log: str) -> str:
    return log.rpartition("\n")[2]
