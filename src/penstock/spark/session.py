"""Sessions: each is one client of a Spark, embedded or remote, that speaks Spark Connect.

Sessions share a Spark and nothing else. A process may have several, and several processes may
connect to the same Spark by its URL.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.spark.command import SESSION_CONF
from penstock.spark.embedded import Tell, missing, start_spark
from penstock.spark.errors import SparkNotStarted
from penstock.spark.java import find_java
from penstock.spark.options import SparkOptions
from penstock.spark.quiet import silence

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_RETRIES_MAX: Final = 3
_NOT_FOR_CLIENTS: Final = ("spark.sql.streaming.pollingDelay",)


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
    spark = new_session(url, session_id=session_id, user=user, retries_max=retries_max)
    try:
        for key, value in (conf or {}).items():
            spark.conf.set(key, value)
        yield spark
    finally:
        close(spark)


def new_session(
    url: str,
    *,
    session_id: str | None = None,
    user: str = "penstock",
    retries_max: int = _RETRIES_MAX,
) -> SparkSession:
    """A session that the caller closes (`close`): for workers that keep one for their life."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise missing(error) from error
    silence()
    full = with_parameters(
        url, {"user_id": user} | ({"session_id": session_id} if session_id else {})
    )
    try:
        spark = SparkSession.builder.remote(full).create()
        # By default a client tries for minutes to reach a server that is gone.
        policy = DefaultPolicy(max_retries=retries_max, max_backoff=1_000)
        spark.client.set_retry_policies([policy])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of retries is in the error we raise
            spark.version  # noqa: B018 - the first call: now we know that somebody answers
    except PySparkException as error:
        raise SparkNotStarted(f"expected a Spark at {_hidden(url)}, found: {error}") from error
    return spark


def close(spark: SparkSession) -> None:
    """Release a session; a server that is gone already is no error."""
    from pyspark.errors import PySparkException

    try:
        spark.stop()
    except PySparkException:
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
