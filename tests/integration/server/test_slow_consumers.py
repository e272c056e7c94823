"""A watcher that does not read: bounded in memory, noticed by nobody else, and later complete."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.kernel.units import MIB
from tests.conformance.servers import ServerProcess
from tests.conformance.streams import EventStream
from tests.conformance.wire import Api
from tests.integration.server.hostile import HANDSHAKE, masked, rss_bytes

WRITES = 60
BATCH = 50
FILL = "x" * 2_000
SIZE = WRITES * BATCH * len(FILL)
SLOW = 20
DEADLINE_S = 60.0


@pytest.fixture
def server(tmp_path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    try:
        yield process.start()
    finally:
        process.close()


class Quick:
    """A watcher that reads all the time: what it got, and when."""

    def __init__(self, api: Api, topic: str) -> None:
        self.got: list[int] = []
        self.lag_s: list[float] = []
        self.events: list[str] = []
        self._stream = EventStream(api.address, api.watch(topic, limit=1_000))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._stream as stream:
            while len(self.got) < WRITES * BATCH:
                frame = stream.next(deadline_s=DEADLINE_S)
                self.events.append(frame.event or "")
                if frame.event == "record":
                    records = frame.data["records"]
                    self.got += [record["data"][0] for record in records]
                    self.lag_s.append(time.time() - records[-1]["$ts"] / 1e3)

    def result(self) -> list[int]:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"only {len(self.got)} came"
        return self.got


def silent(api: Api, path: str) -> socket.socket:
    """A stream that is asked for and not read."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    link.settimeout(DEADLINE_S)
    link.connect(api.address)
    link.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    return link


def write_all(api: Api, topic: str) -> None:
    link = api.connect()
    for number in range(WRITES):
        records = [{"data": [number * BATCH + place, FILL]} for place in range(BATCH)]
        answer = api.exchange(link, "POST", f"/v0/topics/{topic}", {"records": records})
        assert answer.status == 200, str(answer)
    link.close()


def frames(link: socket.socket) -> Iterator[tuple[str, Any]]:
    """Events of a stream that is read at last, as (event, data)."""
    rest, event = b"", ""
    while part := link.recv(65_536):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"event: "):
                event = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield event, json.loads(line[6:])


def test_a_watcher_that_does_not_read_costs_little_and_misses_nothing(server):
    api = Api(server.address)
    api.make("quiet")
    api.make("t")
    alone = Quick(api, "quiet")
    write_all(api, "quiet")
    assert alone.result() == list(range(WRITES * BATCH))

    before = rss_bytes(server)
    links = [silent(api, api.watch("t", limit=1_000)) for _ in range(SLOW)]
    quick = Quick(api, "t")
    write_all(api, "t")
    # The one who reads gets everything in order; how late must not depend on those who do not.
    assert quick.result() == list(range(WRITES * BATCH))
    assert "tombstone" not in quick.events
    assert _median(quick.lag_s) < 20 * _median(alone.lag_s) + 1.0
    # The records themselves are kept once; each slow one may hold a few pages beyond that.
    grown = rss_bytes(server) - before
    assert grown < 3 * SIZE + SLOW * 2 * MIB, f"{grown} bytes for {SLOW} slow watchers"

    for link in links[:3]:
        got: list[int] = []
        for event, data in frames(link):
            assert event in ("record", "caught-up"), (event, data)
            if event == "record":
                got += [record["data"][0] for record in data["records"]]
            elif len(got) == WRITES * BATCH:
                break
        assert got == list(range(WRITES * BATCH))
    for link in links:
        link.close()


def test_a_watcher_that_a_cap_has_passed_gets_one_tombstone(server):
    api = Api(server.address)
    api.make("t", cap_records=100)
    link = silent(api, api.watch("t", limit=1_000))
    write_all(api, "t")
    got, gaps, last = [], [], 0
    for event, data in frames(link):
        if event == "tombstone":
            gaps.append((data["gap_from"], data["gap_to"]))
        elif event == "record":
            got += [record["$seq"] for record in data["records"]]
            last = data["to_seq"]
        if event == "caught-up" and data["head_seq"] == WRITES * BATCH and last == WRITES * BATCH:
            break
    link.close()
    assert got == sorted(set(got)), "in order, each once"
    assert got[-1] == WRITES * BATCH
    # It was passed while it did not read: what is missing is exactly what it was told of, at once.
    missing = sorted(set(range(1, WRITES * BATCH + 1)) - set(got))
    assert missing
    assert gaps == [(missing[0], missing[-1])]
    assert missing == list(range(missing[0], missing[-1] + 1))


def test_a_socket_that_does_not_read_costs_little_and_misses_nothing(server):
    api = Api(server.address)
    api.make("t")
    before = rss_bytes(server)
    links = []
    for _ in range(SLOW):
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        link.settimeout(DEADLINE_S)
        link.connect(server.address)
        link.sendall(HANDSHAKE + masked(0x81, b'{"op":"subscribe","topic":"t"}'))
        links.append(link)
    quick = Quick(api, "t")
    write_all(api, "t")
    assert quick.result() == list(range(WRITES * BATCH))
    grown = rss_bytes(server) - before
    assert grown < 3 * SIZE + SLOW * 5 * MIB, f"{grown} bytes for {SLOW} slow sockets"
    last = b'"$seq":%d,' % (WRITES * BATCH)
    tail = b""
    while last not in tail:
        part = links[0].recv(65_536)
        assert part, "the socket was closed before it had everything"
        tail = tail[-100:] + part
    for link in links:
        link.close()


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
