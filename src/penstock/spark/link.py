"""The link of a program to Spark: its sessions, and the Spark behind them, kept or reached by URL.

A session is one client of a Spark, embedded or remote, that speaks Spark Connect. Sessions share a
Spark and nothing else. A process may have several, and several processes may connect to the same
Spark by its URL. `SparkLink` keeps one session for a program: it starts Spark if it is embedded,
and replaces the session or the JVM when it is lost.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote
from weakref import WeakSet

from penstock.spark.errors import SparkNotStarted
from penstock.spark.jvm.command import SESSION_CONF
from penstock.spark.jvm.embedded import EmbeddedSpark, Tell, missing, start_spark
from penstock.spark.jvm.java import find_java
from penstock.spark.jvm.keeper import JvmKeeper
from penstock.spark.options import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Check = Callable[["SparkSession"], None]
"""Refuses a session that cannot do the work."""

_RETRIES_MAX: Final = 3
_CHANNEL: Final = (
    # gRPC shares connections to one address within a process, and would try a server that was away
    # again only after up to two minutes: each session has a connection of its own instead.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long one attempt to connect may take
)
_OPEN: Final[WeakSet[SparkSession]] = WeakSet()
_LOGGERS: Final = (
    "SQLQueryContextLogger",
    "DataFrameQueryContextLogger",
    "pyspark.sql.connect.logging",
)
"""Loggers of pyspark that write to standard error what its exceptions say too."""
_CLOSED: Final = "INVALID_HANDLE.SESSION_CLOSED"
_DETAILS: Final = re.compile(r'\bdetails = "((?:[^"\\]|\\.)*)"')


def check_installed(options: SparkOptions) -> None:
    """Fail early if pyspark is missing, or the Java that an embedded Spark needs."""
    try:
        import pyspark.sql.connect.session  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise missing(error) from error
    if options.remote is None:
        find_java(options.java_home)


@contextmanager
def open_session(options: SparkOptions, tell: Tell | None = None) -> Iterator[SparkSession]:
    """A session on the Spark of the options; an embedded one is started and stopped with it."""
    with ExitStack() as stack:
        url = options.remote
        if url is None:
            told: Mapping[str, Any] = {} if tell is None else {"tell": tell}
            url = stack.enter_context(start_spark(options, **told)).url
        conf = {**SESSION_CONF, **options.conf} if options.remote else {}
        yield stack.enter_context(connect(url, conf=conf))


@contextmanager
def connect(
    url: str,
    *,
    session_id: str | None = None,
    user: str = "penstock",
    conf: Mapping[str, str] | None = None,
    retries_max: int = _RETRIES_MAX,
) -> Iterator[SparkSession]:
    """A session on a running Spark, released at the end.

    Another process that knows `session_id` and user can interrupt it (`interrupt`).
    """
    spark = new_session(url, session_id=session_id, user=user, conf=conf, retries_max=retries_max)
    try:
        yield spark
    finally:
        close(spark)


def new_session(
    url: str,
    *,
    session_id: str | None = None,
    user: str = "penstock",
    conf: Mapping[str, str] | None = None,
    retries_max: int = _RETRIES_MAX,
) -> SparkSession:
    """A session that the caller closes (`close`): for workers that keep one until they exit."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise missing(error) from error
    silence()
    full = with_parameters(
        url, {"user_id": user} | ({"session_id": session_id} if session_id else {})
    )
    try:
        channel = DefaultChannelBuilder(full, list(_CHANNEL))
        spark = SparkSession.Builder().channelBuilder(channel).create()
    except PySparkException as error:
        raise _not_there(url, error) from error
    _OPEN.add(spark)
    # By default a client tries for minutes to reach a server that is gone.
    policy = DefaultPolicy(max_retries=retries_max, max_backoff=1_000)
    spark.client.set_retry_policies([policy])
    try:
        spark.version  # noqa: B018 - the first call: now we know that a server answers
        found = spark.conf.getAll if conf else {}
        wanted = {key: value for key, value in (conf or {}).items() if found.get(key) != value}
        if wanted:
            spark.conf._set_all(wanted, silent=False)  # one request, not one for each
    except PySparkException as error:
        _hang_up(spark)
        raise _not_there(url, error) from error
    return spark


def silence() -> None:
    """Keep pyspark from writing to standard error in this process. Idempotent."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"pyspark\..*")


def _not_there(url: str, error: Exception) -> SparkNotStarted:
    return SparkNotStarted(f"no Spark answers at {_hidden(url)}: {reason(error)}")


def _hang_up(spark: SparkSession) -> None:
    with suppress(Exception):
        spark.client.close()


@atexit.register
def _hang_up_all() -> None:
    """Close open sessions while gRPC still runs: at interpreter exit it would hang."""
    for spark in list(_OPEN):
        if not spark.client.is_closed:
            _hang_up(spark)


def reason(error: BaseException) -> str:
    """Why a Spark Connect server did not answer, in one line.

    >>> reason(Exception('<_InactiveRpcError of RPC:\\n\\tdetails = "refused"\\n\\tdebug = "x">'))
    'refused'
    """
    found = _DETAILS.search(str(error))
    return " ".join((found[1] if found else str(error)).split())


def close(spark: SparkSession) -> None:
    """Release a session; a server that is already gone is not an error."""
    from pyspark.errors import PySparkException

    try:
        spark.stop()
    except PySparkException:
        spark.client.close()


def abandon(spark: SparkSession) -> None:
    """Discard a session whose server is known to be gone, without calling the server."""
    spark.client.close()


def interrupt(url: str, session_id: str, *, user: str = "penstock") -> None:
    """Stop everything that a session runs, and release it: for a session whose process died.

    One that is closed already runs nothing.
    """
    try:
        with connect(url, session_id=session_id, user=user) as spark:
            spark.interruptAll()
    except SparkNotStarted as error:
        if _CLOSED not in error.message:
            raise


def with_parameters(url: str, parameters: Mapping[str, str]) -> str:
    """A Spark Connect URL with more parameters.

    >>> with_parameters("sc://h:1/;token=t", {"user_id": "a"})
    'sc://h:1/;token=t;user_id=a'
    """
    base, _, given = url.partition("/;")
    texts = [part for part in given.split(";") if part]
    texts += [f"{key}={quote(value)}" for key, value in parameters.items()]
    return f"{base.rstrip('/')}/;{';'.join(texts)}"


def _hidden(url: str) -> str:
    return url.partition("/;")[0]


class SparkLink:
    """One session on one Spark, for a program: opened on first use, replaced when it is lost.

    Without `remote` in the options, the Spark is a JVM of this machine that starts and ends with
    the link; with `restarts`, one that ends in the middle of work is followed by another at once.
    `is_ours` says that a remote Spark was started on this machine by our own program. Threads may
    share a link.
    """

    def __init__(
        self,
        options: SparkOptions | None = None,
        *,
        session_id: str | None = None,
        is_ours: bool = False,
        restarts: bool = True,
    ) -> None:
        self._options = options or SparkOptions()
        self._session_id = session_id
        self._lock = threading.Lock()
        self._checks: tuple[Check, ...] = ()
        self._session: SparkSession | None = None
        self._on: EmbeddedSpark | None = None
        """The session's JVM, if this process started it."""
        self._keeper: JvmKeeper | None = None
        if self._options.remote is None:
            is_wanted = self._is_used if restarts else None
            self._keeper = JvmKeeper(self._options, is_wanted=is_wanted)
        self.is_ours = is_ours or self._options.is_local
        """Whether tasks run on this machine, in a process that Penstock started."""
        self.is_remote = self._options.remote is not None
        """Whether another program starts and stops the Spark."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The JVM's process id, if this process started it and it is running."""
        return None if self._keeper is None else self._keeper.pid

    @property
    def log(self) -> str:
        """The last output of an embedded JVM."""
        return "" if self._on is None else self._on.log

    def require(self, *checks: Check) -> None:
        """Run these checks on every session before it is used, and on the one open now."""
        with self._lock:
            self._checks = checks
            if self._session is not None:
                self._run_checks(self._session, checks)

    def session(self) -> SparkSession:
        """The session, opened if there is none."""
        with self._lock:
            if self._on is not None and not self._on.is_running:
                self._release()
            if self._session is None:
                self._session = self._open()
                self._run_checks(self._session, self._checks)
            return self._session

    def is_live(self, session: SparkSession) -> bool:
        """Whether a session is the current one, and the JVM that it is on still runs."""
        return self._session is session and (self._on is None or self._on.is_running)

    def interrupt(self) -> None:
        """Stop what runs, if the Spark is still there; from any thread."""
        session = self._session
        if session is not None and self.is_live(session):
            with suppress(Exception):
                session.interruptAll()

    def drop(self) -> None:
        """Discard the session. An embedded JVM keeps running for the next one."""
        with self._lock:
            self._release()

    def close(self) -> None:
        """Release the session and stop an embedded JVM. The next `session` starts again."""
        with self._lock:
            self._release()
            if self._keeper is not None:
                self._keeper.stop()

    def _is_used(self) -> bool:
        return self._session is not None

    def _open(self) -> SparkSession:
        if self._keeper is not None:
            self._on = self._keeper.get()
            return new_session(self._on.url)
        # A session id cannot be reused: the server refuses one that was released.
        session_id, self._session_id = self._session_id, None
        conf = {**SESSION_CONF, **self._options.conf}
        return new_session(str(self._options.remote), session_id=session_id, conf=conf)

    def _run_checks(self, session: SparkSession, checks: Iterable[Check]) -> None:
        try:
            for check in checks:
                check(session)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        session, self._session = self._session, None
        on, self._on = self._on, None
        if session is not None:
            (close if on is None or on.is_running else abandon)(session)
