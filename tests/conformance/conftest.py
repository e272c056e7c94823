"""Which server the suite talks to, and fresh names in it.

`pytest tests/conformance --server http://host:port` (or PENSTOCK_CONFORMANCE_URL) checks a server
that is running; without it one is started. Tests that need settings of their own start their own
server, and are skipped with a reason when the suite was pointed at a server from outside.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Address, Api

Launch = Callable[..., ServerProcess]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--server", help="check this running server: http://host:port")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(*ids): the rows of the contract that a test covers")


def _outside(config: pytest.Config) -> str | None:
    return config.getoption("--server", None) or os.environ.get("PENSTOCK_CONFORMANCE_URL") or None


@pytest.fixture(scope="session")
def server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Address]:
    """Where the server under test listens."""
    url = _outside(pytestconfig)
    if url is not None:
        yield Address.parse(url)
        return
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    try:
        yield process.start().address
    finally:
        process.close()


@pytest.fixture(scope="session")
def api(server: Address) -> Api:
    """A client of the server under test."""
    return Api(server)


@pytest.fixture(scope="module")
def launch(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launch]:
    """Starts servers with settings of their own (names without PENSTOCK_); ends them afterwards."""
    if _outside(pytestconfig) is not None:
        pytest.skip("needs a server with settings of its own; --server names one from outside")
    started: list[ServerProcess] = []

    def start(*, ready: bool = True, **settings: object) -> ServerProcess:
        process = ServerProcess(tmp_path_factory.mktemp("server"), **settings)
        started.append(process)
        if ready:
            process.start()
        return process

    yield start
    for process in started:
        process.discard()


@pytest.fixture
def name() -> Callable[[], str]:
    """Makes names that nobody else uses."""
    return fresh_name


@pytest.fixture
def topic() -> str:
    """The name of a topic that does not exist yet."""
    return fresh_name()


def fresh_name() -> str:
    return f"c-{uuid.uuid4().hex[:16]}"
