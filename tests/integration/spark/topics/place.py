"""Topic servers for tests that read them with Spark, and names of topics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.conformance.servers import ServerProcess

NUMBERS = count(1)


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
