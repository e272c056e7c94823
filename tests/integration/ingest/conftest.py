"""A topic server for every test of the edge."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.servers import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server on a port that it keeps."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = ServerProcess(tmp_path, PORT=port)
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.address.port}"
