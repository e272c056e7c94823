"""Whatever a peer sends: no exception leaves the transport, and every byte is given back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernel.errors import Rejected
from penstock.server.http.message import Exchange
from tests.unit.server.http.fake_loop import Peer, get, post
from tests.unit.server.http.test_http2 import Client
from tests.unit.server.http.test_websocket import UPGRADE

GOOD = [
    get("/a"),
    post("/b", b"hello"),
    post("/c", b"\x1f\x8b\x08\x00", "Content-Encoding: gzip"),
    b"POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HEAD /e HTTP/1.0\r\n\r\n",
    get("/ws", *UPGRADE),
    get("/stream"),
]


def application(exchange: Exchange) -> None:
    if exchange.request.path == "/ws":
        try:
            websocket = exchange.upgrade(None)
        except Rejected:
            exchange.reply(400, b"{}")
            return
        websocket.on_text = websocket.send
    elif exchange.request.path == "/stream":
        exchange.stream().write(b"data")
    else:
        exchange.reply_json(b"{}")


def send_all(peer: Peer, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        if peer.transport.lost or not peer.transport.reading:
            break
        peer.send(data[at : at + step])
    peer.go()
    assert peer.service.budget.used == 0
    assert peer.service.counters.failures_total == 0
    assert peer.service.counters.streams_open == peer.service.counters.websockets_open == 0
    assert not peer.service.connections


@given(
    st.lists(st.one_of(st.sampled_from(GOOD), st.binary(max_size=60)), max_size=5),
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4),
    st.integers(1, 200),
)
@settings(max_examples=300)
def test_http_1_1_survives_any_bytes(pieces, flips, step):
    data = bytearray(b"".join(pieces))
    for place, byte in flips:
        if place < len(data):
            data[place] = byte
    send_all(Peer(application), bytes(data), step)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=5),
       st.binary(max_size=100), st.integers(1, 100))  # fmt: skip
@settings(max_examples=200)
def test_http_2_survives_any_bytes(flips, rest, step):
    client = Client(application)
    for path in ("/a", "/stream"):
        stream_id = client.h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "a")]
        client.h2.send_headers(stream_id, headers)
        client.h2.send_data(stream_id, b"hello", end_stream=True)
    data = bytearray(client.h2.data_to_send() + rest)
    for place, byte in flips:
        if place < len(data):
            data[place] = byte
    send_all(client.peer, bytes(data), step)


@given(st.binary(max_size=300), st.integers(1, 50))
@settings(max_examples=200)
def test_a_websocket_survives_any_bytes(data, step):
    peer = Peer(application)
    peer.send(get("/ws", *UPGRADE))
    send_all(peer, data, step)
