from __future__ import annotations

import gzip
import http.client
import socket
import ssl
import struct
import threading

import pytest
from websockets.sync.client import connect

from penstock.server.http.message import Exchange, Stream, TransportLimits, as_chunk
from tests.integration.server.serving import DEADLINE_S, LOOPS, serving

GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"
LAST_GET = b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@pytest.fixture(params=sorted(LOOPS))
def kind(request):
    return request.param


def read_until(connection: socket.socket, text: bytes) -> bytes:
    found = b""
    while text not in found:
        more = connection.recv(65536)
        assert more, f"the end, after {found[-200:]!r}"
        found += more
    return found


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while more := connection.recv(65536):
        found += more
    return found


class Watch:
    """An application whose every answer is a stream."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.told: list[str] = []

    def __call__(self, exchange: Exchange) -> None:
        stream = exchange.stream()
        stream.on_room = lambda: self.told.append("room")
        stream.on_gone = lambda: self.told.append("gone")
        self.streams.append(stream)


def test_many_requests_on_one_connection(kind):
    def application(exchange):
        exchange.reply_json(b'{"size":%d}' % len(exchange.request.body))

    with serving(application, kind=kind) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
        for size in (0, 1, 1_000, 300_000, 5_000_000):
            client.request("POST", "/v0/topics/a", b"x" * size)
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"size":%d}' % size)
        client.request("POST", "/chunked", iter([b"abc", b"de"]), encode_chunked=True,
                       headers={"Transfer-Encoding": "chunked"})  # fmt: skip
        assert client.getresponse().read() == b'{"size":5}'
        client.request("POST", "/", gzip.compress(b"x" * 2_000_000),
                       headers={"Content-Encoding": "gzip"})  # fmt: skip
        assert client.getresponse().read() == b'{"size":2000000}'
        client.request("HEAD", "/")
        assert client.getresponse().read() == b""
        client.close()
        assert served.call(lambda: served.listener.counters.requests_total) == 8
        served.until(lambda: served.listener.connections_open == 0)
        assert served.call(lambda: served.listener.buffered_bytes) == 0


def test_large_answers_arrive_whole_at_a_slow_reader(kind):
    content = bytes(range(256)) * 2_000
    limits = TransportLimits(write_buffer_bytes_max=10_000)
    with serving(lambda exchange: exchange.reply(200, content), limits, kind=kind) as served:
        connection = served.connect(receive_buffer_bytes=4_096)
        connection.sendall((GET % b"/1") + (GET % b"/2")[:-2] + b"Connection: close\r\n\r\n")
        found = read_all(connection)
        connection.close()
    assert found.count(content) == 2


def test_a_refused_upload_is_told_why_while_it_still_sends(kind):
    with serving(lambda exchange: exchange.reply_json(b""), TransportLimits(body_bytes_max=100),
                 kind=kind) as served:  # fmt: skip
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
        client.request("POST", "/", b"x" * 5_000_000)
        answer = client.getresponse()
        assert answer.status == 413
        assert b"payload_too_large" in answer.read()
        client.close()


def test_a_watcher_that_does_not_read_is_lagged_in_bounded_memory_and_then_told(kind):
    watch = Watch()
    limits = TransportLimits(stream_buffer_bytes_max=100_000)
    with serving(watch, limits, kind=kind) as served:
        connection = served.connect(receive_buffer_bytes=4_096)
        connection.sendall(LAST_GET % b"/watch")
        read_until(connection, b"\r\n\r\n")
        frame = b"data: " + b"x" * 9_992 + b"\n\n"
        written = 0

        def fill() -> None:
            nonlocal written
            while watch.streams[0].write(frame):
                written += 1
                assert watch.streams[0].buffered <= 110_000

        served.call(fill)
        assert written > 10
        assert watch.told == []
        found = 0
        while found < written * len(as_chunk(frame)):
            found += len(connection.recv(65536))
        served.until(lambda: watch.told == ["room"])
        served.call(lambda: watch.streams[0].write(b"last"))
        served.call(watch.streams[0].close)
        assert read_all(connection) == as_chunk(b"last") + LAST_CHUNK
        connection.close()
        assert watch.told == ["room"]


def test_a_stream_keeps_its_order_when_the_socket_takes_parts(kind):
    watch = Watch()
    with serving(watch, kind=kind) as served:
        connection = served.connect(receive_buffer_bytes=4_096)
        connection.sendall(LAST_GET % b"/watch")
        head = read_until(connection, b"\r\n\r\n")
        found = bytearray(head.partition(b"\r\n\r\n")[2])
        reader = threading.Thread(target=lambda: found.extend(read_all(connection)))
        reader.start()
        expected = bytearray()
        for number in range(1_000):
            frame = b"%06d" % number + b"." * (number % 4_000)
            served.until(lambda frame=frame: watch.streams[0].write(frame))
            expected += as_chunk(frame)
        served.call(watch.streams[0].close)
        reader.join()
        connection.close()
    assert found == expected + LAST_CHUNK


@pytest.mark.parametrize("reset", [True, False])
def test_a_watcher_that_leaves_is_noticed_and_nothing_is_written_to_its_successor(kind, reset):
    watch = Watch()
    with serving(watch, kind=kind) as served:
        first = served.connect()
        first.sendall(LAST_GET % b"/watch")
        read_until(first, b"\r\n\r\n")
        if reset:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.close()
        served.until(lambda: watch.told == ["gone"])
        second = served.connect()  # most likely with the descriptor of the first
        second.sendall(LAST_GET % b"/watch")
        read_until(second, b"\r\n\r\n")
        assert not served.call(lambda: watch.streams[0].write(b"for the first"))
        served.call(lambda: watch.streams[1].write(b"for the second"))
        served.call(watch.streams[1].close)
        assert read_all(second) == as_chunk(b"for the second") + LAST_CHUNK
        second.close()
        assert served.call(lambda: served.listener.counters.streams_open) == 0


def test_writing_to_a_watcher_that_was_reset_at_this_moment_harms_nobody(kind):
    watch = Watch()
    with serving(watch, kind=kind) as served:
        connection = served.connect()
        connection.sendall(LAST_GET % b"/watch")
        read_until(connection, b"\r\n\r\n")

        def leave_and_write() -> None:
            # The loop cannot notice the reset before this returns.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            for _ in range(5):
                watch.streams[0].write(b"into the void")

        served.call(leave_and_write)
        served.until(lambda: watch.told == ["gone"])


def test_a_request_whose_peer_leaves_is_told(kind):
    gone = threading.Event()

    def application(exchange):
        exchange.on_gone = gone.set

    with serving(application, kind=kind) as served:
        connection = served.connect()
        connection.sendall(GET % b"/long-poll")
        served.until(lambda: served.listener.counters.requests_total == 1)
        connection.close()
        assert gone.wait(DEADLINE_S)


def test_draining_answers_what_is_owed_closes_the_idle_and_accepts_nobody(kind):
    exchanges: list[Exchange] = []
    with serving(exchanges.append, kind=kind) as served:
        busy, idle = served.connect(), served.connect()
        busy.sendall(GET % b"/slow")
        served.until(lambda: len(exchanges) == 1)
        served.until(lambda: served.listener.connections_open == 2)
        assert served.wait(served.listener.drain(0.01)) is False
        assert idle.recv(1) == b""
        with pytest.raises(OSError):
            served.connect()
        served.call(lambda: exchanges[0].reply_json(b"owed"))
        assert read_all(busy).endswith(b"owed")
        assert served.wait(served.listener.drain(DEADLINE_S)) is True
        busy.close()
        idle.close()


def test_websocket_messages_go_both_ways(kind):
    def application(exchange):
        websocket = exchange.upgrade("penstock.v0")
        websocket.on_text = lambda text: websocket.send(b"echo " + text)

    with (
        serving(application, kind=kind) as served,
        connect(f"ws://127.0.0.1:{served.port}/v0/ws", subprotocols=["penstock.v0"]) as client,
    ):
        assert client.subprotocol == "penstock.v0"
        client.send("hello")
        assert client.recv(timeout=DEADLINE_S) == "echo hello"
        client.send("x" * 500_000)
        assert len(client.recv(timeout=DEADLINE_S)) == 500_005
        assert client.ping().wait(DEADLINE_S)


def test_a_websocket_that_does_not_read_refuses_the_fifth_message_and_tells_of_room(kind):
    told, sockets = [], []

    def application(exchange):
        websocket = exchange.upgrade(None)
        websocket.on_room = lambda: told.append("room")
        sockets.append(websocket)

    with serving(application, kind=kind) as served:
        connection = served.connect(receive_buffer_bytes=4_096)
        connection.sendall(
            b"GET /v0/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        read_until(connection, b"\r\n\r\n")
        message = b"x" * 50_000
        sent = served.call(
            lambda: next(count for count in range(1_000) if not sockets[0].send(message))
        )
        found = 0
        while found < sent * len(message):
            found += len(connection.recv(65536))
        served.until(lambda: told == ["room"])
        connection.close()


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_tls_serves_both_protocols_and_streams(kind, alpn, certificate):
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*certificate)
    client_side = ssl.create_default_context(cafile=str(certificate.cert))
    client_side.check_hostname = False
    client_side.set_alpn_protocols([alpn])
    watch = Watch()
    with serving(watch, kind=kind, tls=server_side) as served:
        connection = client_side.wrap_socket(served.connect(), server_hostname="localhost")
        assert connection.selected_alpn_protocol() == alpn
        if alpn == "http/1.1":
            connection.sendall(LAST_GET % b"/watch")
            read_until(connection, b"\r\n\r\n")
            served.call(lambda: watch.streams[0].write(b"secret"))
            read_until(connection, b"secret")
        else:
            assert connection.recv(9)[3] == 4, "a SETTINGS frame"
        connection.close()


def test_a_client_that_shuts_down_its_sending_side_gets_its_answer(kind):
    """As `nc` does at the end of its input: the answer comes from a later turn of the loop."""
    asked = threading.Event()
    held: list[Exchange] = []

    def application(exchange):
        held.append(exchange)
        asked.set()

    with serving(application, kind=kind) as served:
        with served.connect() as connection:
            connection.sendall(GET % b"/slow")
            connection.shutdown(socket.SHUT_WR)
            assert asked.wait(DEADLINE_S)
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):  # the server has seen the end, and keeps the request
                connection.recv(1)
            connection.settimeout(DEADLINE_S)
            served.call(lambda: held[0].reply(200, b"x" * 200_000))
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.endswith(b"x" * 200_000)
