"""2 Shutdown: SIGTERM and SIGINT."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket

import pytest
from websockets.exceptions import ConnectionClosed

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.sockets import Socket
from tests.conformance.streams import EventStream
from tests.conformance.wire import Answer, Api, Later, at, payloads, until

CUT = (ConnectionError, http.client.NotConnected)
"""What a client sees of a connection that the server has closed."""


@row("2 shutdown", "2 shutdown websocket", "2 shutdown work", "2 shutdown answers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_streams_are_told_and_the_server_ends(launch, number):
    process = launch()
    address = process.address
    api = Api(address)
    api.write("t", 1)
    api.make("jobs", type="queue")
    work_path = at("jobs", "work") + "?node=n"
    with (
        EventStream(address, api.watch("t")) as watching,
        EventStream(address, work_path) as working,
        Socket(address) as ws,
    ):
        watching.until("caught-up")
        working.frame()
        ws.send("subscribe", topic="t")
        ws.until("caught_up")
        api.make("polled")
        polling = Later(lambda: api.post(at("polled", "diff"), {"wait_ms": 30_000}))
        until(lambda: api.state("polled")["last_read_ts"], "the reader is there")
        process.terminate(number)
        frame = watching.next("error")
        expect.keys(frame.data, {"code", "message"})
        assert frame.data["code"] == "server_shutting_down"
        assert frame.id is not None
        assert watching.rest() == []
        frame = working.next("error")
        assert frame.data["code"] == "server_shutting_down"
        assert "error" in frame.data
        assert working.rest() == []
        error = ws.until("error")
        assert error["code"] == "server_shutting_down"
        with pytest.raises(ConnectionClosed):
            ws.next()
    _answered(polling.result(15))
    assert process.wait(15) == 0
    with pytest.raises(ConnectionError):
        api.get("/healthz")


def _answered(answer: Answer) -> None:
    """A long poll is not cut: it has an answer."""
    if answer.status == 200:
        assert answer.json["records"] == []
    else:
        expect.refusal(answer, 503, "shutting_down")


@row("2 shutdown answers", "2 disk", "2 fsync")
def test_what_was_acknowledged_while_shutting_down_is_kept(launch):
    process = launch()
    api = Api(process.address)
    api.make("t", durability="disk")
    api.route("r", "t", "copy")
    for durability in ("disk", "fsync"):
        api.write(durability, 1, 2, 3, config={"durability": durability})

    def write_until_refused() -> int:
        count = 0
        while True:
            try:
                answer = api.post(at("t"), {"records": [{"data": count}]})
            except (ConnectionError, OSError):
                return count
            if answer.status != 200:
                expect.refusal(answer, 503, "shutting_down")
                return count
            count += 1

    writer = Later(write_until_refused)
    until(lambda: api.state("t")["head_seq"] >= 50, "some writes")
    process.terminate()
    acknowledged = writer.result()
    assert process.wait(15) == 0
    process.start()
    api = Api(process.address)
    for durability in ("disk", "fsync"):
        assert payloads(api.diff(durability)) == [1, 2, 3]
        assert api.write(durability, 4)["first_seq"] == 4
    found: list[int] = []
    while True:
        page = api.diff("t", len(found), limit=1000)
        found += payloads(page)
        if page["caught_up"]:
            break
    assert found == list(range(len(found)))
    assert len(found) - acknowledged in (0, 1), "only the write without an answer may be there too"
    copies = api.diff("copy", limit=1000)
    assert copies["head_seq"] >= len(found), "copies of all that was written"


@row("2 shutdown answers", "1.0 retry-after")
def test_a_request_that_comes_while_draining_is_told_or_cut_but_never_left_hanging(launch):
    process = launch()
    address = process.address
    api = Api(address)
    body = json.dumps({"records": [{"data": 1}]}).encode()
    head = f"POST {at('t')} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    connection = api.connect()
    with socket.create_connection(address, timeout=10) as begun:
        begun.sendall(head.encode() + body[:5])
        assert api.exchange(connection, "GET", "/healthz").status == 200
        process.terminate()
        until(lambda: _refuses(address), "the listener is closed")
        connection.auto_open = 0
        with contextlib.closing(connection), contextlib.suppress(*CUT):
            answer = api.exchange(connection, "GET", "/v0/topics")
            expect.refusal(answer, 503, "shutting_down")
    assert process.wait(15) == 0


def _refuses(address) -> bool:
    try:
        socket.create_connection(address, timeout=5).close()
    except ConnectionError:
        return True
    return False
