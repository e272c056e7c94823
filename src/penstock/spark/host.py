"""One Spark for a coordinator and all its workers: started when it is needed, again when it dies.

A start takes seconds, so it happens in a thread of its own and whoever asks meanwhile is told that
nothing serves yet. Each worker gets the URL and a session of its own by number, so that whoever
takes a dead worker's place can end what that one left running.
"""

from __future__ import annotations

import threading
from typing import Final
from uuid import uuid4

from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError
from penstock.kernel.shell import SystemClock
from penstock.spark.jvm.embedded import EmbeddedSpark, Tell, start_spark
from penstock.spark.options import SparkOptions, client_options, plain_options
from penstock.tables.engine import Factory

NAME: Final = "penstock.spark.refresh:make"
SESSION: Final = "session_id"
TAKES_OVER: Final = "takes_over"
OURS: Final = "is_ours"
"""Marks clients of a Spark whose tasks run on this machine, in a process that was started here."""
_WAIT_MS: Final = (1_000, 30_000)
"""How long to wait before a Spark that could not start is started again: first and at most."""


class SparkHost:
    """Keeps one Spark for others. With `remote` somebody else keeps it."""

    def __init__(self, options: SparkOptions, tell: Tell, clock: Clock | None = None) -> None:
        self._options, self._tell = options, tell
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._spark: EmbeddedSpark | None = None
        self._starting: threading.Thread | None = None
        self._generation = 0
        self._failures = 0
        self._start_at_ms = 0
        self._trouble: str | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The JVM's process id, if it is ours and runs."""
        spark = self._spark
        return spark.pid if spark is not None and spark.is_running else None

    def generation(self) -> int | None:
        """Which start of it serves now, or None while none does. Starts it; never waits."""
        if self._options.remote is not None:
            return 0
        with self._lock:
            if self._spark is not None:
                if self._spark.is_running:
                    return self._generation
                self._tell(f"Spark ended, starting it again: {_last_line(self._spark.log)}")
                self._spark.stop(0)
                self._spark = None
            if self._starting is None and self._clock.monotonic_ms() >= self._start_at_ms:
                self._starting = threading.Thread(target=self._start, name="penstock-spark")
                self._starting.daemon = True
                self._starting.start()
        return None

    def trouble(self) -> str | None:
        """Why it could not be started, if so."""
        return self._trouble

    def factory(self, instead_of: Factory | None = None) -> Factory:
        """How one worker makes its engine on this Spark."""
        options = plain_options(self._options)
        spark = self._spark
        if spark is not None:
            options = client_options(self._options, spark.url) | {OURS: self._options.is_local}
        options[SESSION] = str(uuid4())
        if instead_of is not None and instead_of.options.get("remote") == options["remote"]:
            options[TAKES_OVER] = instead_of.options[SESSION]
        return Factory(NAME, options)

    def close(self) -> None:
        """End the Spark, if it is ours."""
        self._closed = True
        starting = self._starting
        if starting is not None:
            starting.join()
        with self._lock:
            if self._spark is not None:
                self._spark.stop()
                self._spark = None

    def _start(self) -> None:
        try:
            spark = start_spark(self._options, self._tell)
        except (PenstockError, OSError) as error:
            self._failed(str(error))
            return
        with self._lock:
            self._starting, self._trouble, self._failures = None, None, 0
            if not self._closed:
                self._generation += 1
                self._spark = spark
                return
        spark.stop()

    def _failed(self, text: str) -> None:
        first_ms, most_ms = _WAIT_MS
        wait_ms = min(first_ms * 2 ** min(self._failures, 10), most_ms)
        with self._lock:
            self._starting, self._trouble = None, text
            self._failures += 1
            self._start_at_ms = self._clock.monotonic_ms() + wait_ms
        self._tell(f"Spark did not start, next try in {wait_ms / 1_000:g} s: {text}")


def _last_line(log: str) -> str:
    return log.rpartition("\n")[2]
