"""The Spark that a pipeline runs on: started or connected to, and made again when it is lost.

One that was not started here must share the files of the lake (`require`).
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.lake.shell import Storage
from penstock.spark.command import SESSION_CONF
from penstock.spark.embedded import EmbeddedSpark, start_spark
from penstock.spark.options import SparkOptions
from penstock.spark.python_probe import check_python
from penstock.spark.session import close, new_session
from penstock.spark.shared_files import check_shared

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

    def interrupt(self) -> None:
        """Stop what runs, as far as somebody listens still."""
        session = self._session
        if session is not None:
            with suppress(Exception):
                session.interruptAll()

    def drop(self) -> None:
        """Let go of the session, and of a JVM of ours that has ended."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                close(session)
            if self._embedded is not None and not self._embedded.is_running:
                self._drop()

    def close(self) -> None:
        """Release the session and end the JVM, if it is ours."""
        with self._lock:
            self._drop()

    def _open(self) -> SparkSession:
        url = self._options.remote
        if url is None:
            if self._embedded is None:
                self._embedded = start_spark(self._options)
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

    def _drop(self) -> None:
        if self._session is not None:
            close(self._session)
            self._session = None
        if self._embedded is not None:
            self._embedded.stop()
            self._embedded = None
