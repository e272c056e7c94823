"""The Spark that a pipeline runs on: started or connected to, and made again when it is lost.

One that was not started here must share the files of the lake (`require`). A JVM of ours that ends
while it is in use is followed by another at once, while what ran on it is still finding out that it
is gone.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.lake.storage import Storage
from penstock.spark.jvm.command import SESSION_CONF
from penstock.spark.jvm.embedded import EmbeddedSpark, start_spark
from penstock.spark.link import abandon, close, new_session
from penstock.spark.options import SparkOptions
from penstock.spark.probes import check_python, check_shared

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class Sparks:
    """One session at a time. Threads may share it."""

    def __init__(self, options: SparkOptions | None = None) -> None:
        self._options = options or SparkOptions()
        self._lock = threading.Lock()
        self._embedded: EmbeddedSpark | None = None
        self._session: SparkSession | None = None
        self._storage: Storage | None = None
        self._starting = threading.Lock()
        self._next: Future[EmbeddedSpark] | None = None

    def require(self, storage: Storage) -> None:
        """Have every session share the files of a lake: `FilesNotShared` if one does not."""
        with self._lock:
            self._storage = storage
            if self._session is not None:
                self._check(self._session)

    @property
    def is_ours(self) -> bool:
        """Whether tasks run on this machine, in a JVM that is started here."""
        return self._options.is_local

    @property
    def is_remote(self) -> bool:
        """Whether the Spark is not ours to start."""
        return self._options.remote is not None

    @property
    def pid(self) -> int | None:
        """The JVM's process id, where it is ours."""
        return self._embedded.pid if self._embedded is not None else None

    def session(self) -> SparkSession:
        """The session, made if there is none."""
        with self._lock:
            if self._embedded is not None and not self._embedded.is_running:
                self._drop()
            if self._session is None:
                self._session = self._open()
                self._check(self._session)
            return self._session

    def is_live(self, session: SparkSession) -> bool:
        """Whether a session is the one there is, and its JVM there still if it is ours."""
        embedded = self._embedded
        return self._session is session and (embedded is None or embedded.is_running)

    def interrupt(self) -> None:
        """Stop what runs, as far as somebody listens still."""
        session, embedded = self._session, self._embedded
        if session is not None and (embedded is None or embedded.is_running):
            with suppress(Exception):
                session.interruptAll()

    def drop(self) -> None:
        """Let go of the session, and of a JVM of ours that has ended."""
        with self._lock:
            if self._embedded is not None and not self._embedded.is_running:
                self._drop()
            session, self._session = self._session, None
            if session is not None:
                close(session)

    def close(self) -> None:
        """Release the session and end the JVM, if it is ours."""
        with self._lock:
            self._drop()
            with self._starting:
                coming, self._next = self._next, None
            if coming is not None:
                with suppress(Exception):  # it is not wanted any more
                    coming.result().stop()

    def _open(self) -> SparkSession:
        url = self._options.remote
        if url is None:
            if self._embedded is None:
                self._embedded = self._started()
            return self._checked(new_session(self._embedded.url))
        conf = {**SESSION_CONF, **self._options.conf}
        return self._checked(new_session(url, conf=conf))

    def _checked(self, spark: SparkSession) -> SparkSession:
        """A session whose executors can run what a pipeline sends them."""
        try:
            check_python(spark)
        except BaseException:
            close(spark)
            raise
        return spark

    def _check(self, session: SparkSession) -> None:
        if self._storage is None or self.is_ours:
            return
        try:
            check_shared(session, self._storage)
        except BaseException:
            self._drop()
            raise

    def _started(self) -> EmbeddedSpark:
        """A JVM: the one that is being started, or a new one; the end of it is watched for."""
        coming = self._start()
        try:
            made = coming.result()
        finally:
            with self._starting:
                self._next = None
        threading.Thread(target=self._follow, args=(made,), daemon=True).start()
        return made

    def _start(self) -> Future[EmbeddedSpark]:
        with self._starting:
            if self._next is None:
                self._next = Future()
                threading.Thread(target=self._make, args=(self._next,), daemon=True).start()
            return self._next

    def _make(self, coming: Future[EmbeddedSpark]) -> None:
        try:
            coming.set_result(start_spark(self._options))
        except BaseException as error:
            coming.set_exception(error)

    def _follow(self, embedded: EmbeddedSpark) -> None:
        """Start the next JVM as soon as this one ends, if it ended in the middle of work."""
        embedded.wait()
        if self._embedded is embedded and self._session is not None:
            self._start()

    def _drop(self) -> None:
        session, self._session = self._session, None
        embedded, self._embedded = self._embedded, None
        if session is not None:
            (close if embedded is None or embedded.is_running else abandon)(session)
        if embedded is not None:
            embedded.stop()
