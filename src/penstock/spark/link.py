"""Sessions: each is one client of a Spark, embedded or remote, that speaks Spark Connect.

Sessions share a Spark and nothing else. A process may have several, and several processes may
connect to the same Spark by its URL.
"""

from __future__ import annotations

import atexit
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from weakref import WeakSet

from penstock.spark.errors import SparkNotStarted
from penstock.spark.jvm.command import SESSION_CONF
from penstock.spark.jvm.embedded import Tell, missing, start_spark
from penstock.spark.jvm.java import find_java
from penstock.spark.options import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_RETRIES_MAX: Final = 3
_CHANNEL: Final = (
    # A process keeps connections for all who call the same address, and a server that was away
    # would be asked again only after up to two minutes: each session has its own instead.
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
_DETAILS: Final = re.compile(r'\bdetails = "((?:[^"\\]|\\.)*)"')


def check_installed(options: SparkOptions) -> None:
    """Say at once if pyspark is missing, or the Java that a Spark of our own needs."""
    try:
        import pyspark.sql.connect.session  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise missing(error) from error
    if options.remote is None:
        find_java(options.java_home)


@contextmanager
def open_session(options: SparkOptions, tell: Tell | None = None) -> Iterator[SparkSession]:
    """A session on the Spark that the options name, which is started and stopped if it is ours."""
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
    """A session on a Spark that runs, released at the end.

    Whoever knows `session_id` and user can interrupt it from another process (`interrupt`).
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
    """A session that the caller closes (`close`): for workers that keep one for their life."""
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
        for key, value in (conf or {}).items():
            if found.get(key) != value:
                spark.conf.set(key, value)
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
    return SparkNotStarted(f"expected a Spark at {_hidden(url)}, found: {reason(error)}")


def _hang_up(spark: SparkSession) -> None:
    with suppress(Exception):
        spark.client.close()


@atexit.register
def _hang_up_all() -> None:
    """Close what is open while gRPC still runs: at the interpreter's own end it would hang."""
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
    """Release a session; a server that is gone already is no error."""
    from pyspark.errors import PySparkException

    try:
        spark.stop()
    except PySparkException:
        spark.client.close()


def abandon(spark: SparkSession) -> None:
    """Let go of a session whose server is known to be gone: there is nobody to ask."""
    spark.client.close()


def interrupt(url: str, session_id: str, *, user: str = "penstock") -> None:
    """Stop everything that a session runs, and the session: for the owner of one that died."""
    with connect(url, session_id=session_id, user=user) as spark:
        spark.interruptAll()


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
