"""Real processes: what a second server and a second signal do, and leave alone."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest

from penstock.topics.persist.data_dir import Boot, read_boot
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Address, Api, payloads, until

HINT = "a second signal ends it now"


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers with directories of their own; they are ended with the test."""
    servers: list[ServerProcess] = []

    def make(name: str, **settings: object) -> ServerProcess:
        (tmp_path / name).mkdir()
        servers.append(ServerProcess(tmp_path / name, **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.discard()


def begin_upload(address: Address) -> socket.socket:
    """A write that says how long it is and then stops; the server has seen its head."""
    link = socket.create_connection(address, timeout=30)
    link.sendall(
        b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    )
    assert link.recv(100).startswith(b"HTTP/1.1 100")
    link.sendall(b"{")
    return link


@pytest.mark.parametrize("store", ["segment", "sqlite"])
def test_a_server_that_finds_the_log_held_leaves_the_port_file_as_it_is(launched, store):
    first = launched("first", STORE=store).start()
    address = first.address
    port_file, data = first.directory / "port", first.directory / "data"
    second = launched("second", STORE=store, PORT_FILE=port_file, DATA_DIR=data)
    second.launch()
    assert second.wait() == 1
    assert f"held by process {first.process.pid}" in second.log
    assert first.address == address
    assert Api(address).get("/readyz").status == 200


@pytest.mark.parametrize("numbers", [(SIGINT, SIGINT), (SIGTERM, SIGTERM), (SIGINT, SIGTERM)])
def test_a_second_signal_drops_a_stuck_upload_and_ends_the_log_in_good_order(launched, numbers):
    server = launched("one", DRAIN_MS=600_000).start()
    Api(server.address).write("t", 1, config={"durability": "disk"})
    with begin_upload(server.address) as stuck:
        server.terminate(numbers[0])
        until(lambda: HINT in server.log, "a word about the second signal")
        assert server.process.poll() is None
        assert server.log.count(HINT) == 1
        server.terminate(numbers[1])
        assert server.wait() == 0
        assert is_cut(stuck)
    boot = read_boot(server.directory / "data")
    assert isinstance(boot, Boot)
    assert boot.clean
    server.start()
    assert payloads(Api(server.address).diff("t")) == [1]
    assert "Traceback" not in server.log


def test_one_signal_waits_for_an_upload_that_goes_on(launched):
    server = launched("one", DRAIN_MS=600_000).start()
    with begin_upload(server.address) as slow:
        server.terminate()
        until(lambda: HINT in server.log, "a word about the second signal")
        slow.sendall(b'"records":[{"data":1}]'.ljust(98) + b"}")
        assert slow.recv(10_000).startswith(b"HTTP/1.1 ")
    assert server.wait() == 0


def test_an_end_that_is_quick_says_nothing_of_a_second_signal(launched):
    server = launched("one").start()
    server.terminate()
    assert server.wait() == 0
    assert HINT not in server.log


def is_cut(link: socket.socket) -> bool:
    """Whether the other side has let go of a connection, without an answer."""
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


def test_a_server_takes_all_the_descriptors_it_may_have(launched) -> None:
    server = launched("one")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        server.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert server.process is not None
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    soft, hard = next(
        line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")
    )
    assert soft == hard
