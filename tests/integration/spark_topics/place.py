"""One Spark and one topic server for all tests of a run, however many directories ask."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

from penstock.spark.embedded import EmbeddedSpark, start_spark
from penstock.spark.options import SparkOptions
from tests.conformance.servers import ServerProcess

CACHE = Path(__file__).parents[3] / "build" / "spark"
OPTIONS = SparkOptions(cores=2, memory_mb=1_024, cache_dir=CACHE)
NUMBERS = count(1)


@cache
def the_spark() -> EmbeddedSpark:
    started = start_spark(OPTIONS)
    atexit.register(started.stop)
    return started


@contextmanager
def topic_server() -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as directory:
        process = ServerProcess(Path(directory))
        try:
            yield process.start()
        finally:
            process.close()


def url_of(server: ServerProcess) -> str:
    address = server.address
    return f"http://{address.host}:{address.port}"


def new_topic() -> str:
    return f"t{next(NUMBERS)}"
