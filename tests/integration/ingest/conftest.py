"""A topic server for the tests of the edge: one for all, or one that may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conformance.servers import ServerProcess
from tests.integration.ingest.place import lasting_port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server on a port that it keeps."""
    process = ServerProcess(tmp_path, PORT=lasting_port())
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.address.port}"


@pytest.fixture(scope="session")
def shared_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that tests share, each with topics of its own."""
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    try:
        yield f"http://127.0.0.1:{process.start().address.port}"
    finally:
        process.close()


@pytest.fixture
def raw() -> str:
    """The name of a raw topic that no other test has."""
    return f"raw.{uuid4().hex}"
