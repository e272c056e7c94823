from __future__ import annotations

import logging

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from penstock.kernel.errors import Rejected
from penstock.server.http.message import Exchange, TransportLimits, WebSocket
from penstock.server.http.websocket import BYTES_A_TURN
from tests.unit.server.http.fake_loop import Peer, get

UPGRADE = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


class Chat:
    """An application that upgrades and keeps what it is told."""

    def __init__(self, subprotocol: str | None = None) -> None:
        self.subprotocol = subprotocol
        self.told: list[object] = []
        self.refusal: Rejected | None = None
        self.websocket: WebSocket

    def __call__(self, exchange: Exchange) -> None:
        try:
            self.websocket = exchange.upgrade(self.subprotocol)
        except Rejected as rejected:
            self.refusal = rejected
            exchange.reply(400, b"{}")
            return
        self.websocket.on_text = self.told.append
        self.websocket.on_binary = lambda data: self.told.append(("binary", data))
        self.websocket.on_room = lambda: self.told.append("room")
        self.websocket.on_gone = lambda: self.told.append("gone")


class Client:
    """The library's own client, joined to a fake transport."""

    def __init__(self, chat: Chat, limits: TransportLimits | None = None, **more) -> None:
        self.peer = Peer(chat, limits)
        self.protocol = ClientProtocol(parse_uri("ws://a/v0/ws"), **more)
        self.protocol.send_request(self.protocol.connect())
        self._read = 0
        self.flush()

    def flush(self) -> None:
        """Carry bytes both ways until nothing moves."""
        while True:
            for data in self.protocol.data_to_send():
                if data and not self.peer.transport.lost:
                    self.peer.send(data)
            new = self.peer.sent[self._read :]
            self._read += len(new)
            if not new:
                return
            self.protocol.receive_data(new)

    def frames(self) -> list[tuple[Opcode, bytes]]:
        self.flush()
        found = [event for event in self.protocol.events_received() if hasattr(event, "opcode")]
        return [(frame.opcode, bytes(frame.data)) for frame in found]


def test_messages_go_both_ways():
    chat = Chat("penstock.v0")
    client = Client(chat, subprotocols=["other", "penstock.v0"])
    assert client.protocol.subprotocol == "penstock.v0"
    client.protocol.send_text("grüße".encode())
    client.protocol.send_binary(b"\x00\xff")
    client.flush()
    assert chat.told == ["grüße".encode(), ("binary", b"\x00\xff")]
    assert chat.websocket.send(b'{"op":"pong"}')
    assert client.frames() == [(Opcode.TEXT, b'{"op":"pong"}')]
    assert client.peer.service.counters.websockets_open == 1


def test_fragments_are_joined_around_control_frames():
    chat = Chat()
    client = Client(chat)
    client.protocol.send_text(b"one ", fin=False)
    client.protocol.send_ping(b"?")
    client.protocol.send_continuation(b"two ", fin=False)
    client.protocol.send_continuation(b"three", fin=True)
    assert client.frames() == [(Opcode.PONG, b"?")]
    assert chat.told == [b"one two three"]


def test_frames_in_small_pieces_are_the_same_messages():
    chat = Chat()
    client = Client(chat)
    client.protocol.send_text(b"x" * 300)
    client.protocol.send_text(b"y")
    for byte in b"".join(client.protocol.data_to_send()):
        client.peer.send(bytes([byte]))
    assert chat.told == [b"x" * 300, b"y"]


@pytest.mark.parametrize("parts", [[b"x" * 101], [b"x" * 60, b"y" * 60]])
def test_a_message_over_the_limit_ends_the_connection(parts):
    chat = Chat()
    client = Client(chat, TransportLimits(websocket_message_bytes_max=100))
    client.protocol.send_text(parts[0], fin=len(parts) == 1)
    for part in parts[1:]:
        client.protocol.send_continuation(part, fin=True)
    client.flush()
    assert client.protocol.close_rcvd.code == 1009
    assert client.peer.transport.closing
    assert chat.told == ["gone"]


def test_text_that_is_not_utf_8_ends_the_connection():
    chat = Chat()
    client = Client(chat)
    client.protocol.send_text(b"\xff")
    client.flush()
    assert client.protocol.close_rcvd.code == 1007
    assert chat.told == ["gone"]


def test_a_client_that_closes_gets_its_close_back():
    chat = Chat()
    client = Client(chat)
    client.protocol.send_close(1001, "away")
    client.flush()
    assert client.protocol.close_rcvd.code == 1001
    assert client.peer.transport.closing
    assert chat.told == ["gone"]
    assert not chat.websocket.send(b"late")
    assert client.peer.service.counters.websockets_open == 0
    assert not client.peer.service.connections


def test_a_server_that_closes_says_why_and_waits_for_the_answer():
    chat = Chat()
    client = Client(chat)
    chat.websocket.send(b"last")
    chat.websocket.close(1012, "restart")
    chat.websocket.close()
    frames = client.frames()
    assert [opcode for opcode, _ in frames] == [Opcode.TEXT, Opcode.CLOSE]
    assert client.protocol.close_rcvd.code == 1012
    client.flush()
    assert client.peer.transport.closing
    assert chat.told == []


def test_a_client_that_never_answers_a_close_is_cut_off():
    chat = Chat()
    client = Client(chat)
    chat.websocket.close()
    client.peer.wait(6)
    assert client.peer.transport.aborted


def test_four_messages_wait_for_a_slow_socket_and_the_fifth_is_not_taken():
    chat = Chat()
    client = Client(chat)
    transport = client.peer.transport
    transport.stuck = True
    assert chat.websocket.send(b"0")
    assert [chat.websocket.send(b"%d" % number) for number in range(1, 7)] == [True] * 4 + [
        False
    ] * 2
    assert chat.told == []
    transport.unstick()
    assert chat.told == ["room"]
    assert [data for _, data in client.frames()] == [b"0", b"1", b"2", b"3", b"4"]
    assert chat.websocket.send(b"again")


def test_closing_a_slow_socket_still_sends_what_was_taken():
    chat = Chat()
    client = Client(chat)
    client.peer.transport.stuck = True
    chat.websocket.send(b"0")
    chat.websocket.send(b"1")
    chat.websocket.close()
    client.peer.transport.unstick()
    assert [opcode for opcode, _ in client.frames()] == [Opcode.TEXT, Opcode.TEXT, Opcode.CLOSE]


def test_a_client_that_pings_and_does_not_read_is_not_read():
    client = Client(Chat(), TransportLimits(write_buffer_bytes_max=500))
    client.peer.transport.stuck = True
    sent = 0
    while client.peer.transport.reading:
        client.protocol.send_ping(b"x" * 100)
        client.peer.send(b"".join(client.protocol.data_to_send()))
        sent += 1
        assert sent < 20
    client.peer.transport.unstick()
    assert client.peer.transport.reading


def test_an_application_that_fails_on_a_message_ends_only_that_socket(caplog):
    chat = Chat()
    client = Client(chat)

    def fail(text: bytes) -> None:
        raise RuntimeError("secret")

    chat.websocket.on_text = fail
    with caplog.at_level(logging.ERROR):
        client.protocol.send_text(b"1")
        client.flush()
    assert "secret" in caplog.text
    assert client.protocol.close_rcvd.code == 1011
    assert chat.told == ["gone"]


@pytest.mark.parametrize(
    "headers",
    [
        UPGRADE[1:],
        (UPGRADE[0], *UPGRADE[2:]),
        (*UPGRADE[:2], "Sec-WebSocket-Version: 8", UPGRADE[3]),
        UPGRADE[:3],
        (*UPGRADE[:3], "Sec-WebSocket-Key: c2hvcnQ="),
        (*UPGRADE[:3], "Sec-WebSocket-Key: ???"),
        (UPGRADE[0], "Upgrade: h2c", *UPGRADE[2:]),
    ],
)
def test_a_request_that_is_no_upgrade_is_rejected_and_can_be_answered(headers):
    chat = Chat()
    peer = Peer(chat)
    peer.send(get("/v0/ws", *headers))
    assert chat.refusal is not None
    assert peer.answers()[0].status == 400
    peer.send(get("/v0/ws"))
    assert len(peer.answers()) == 2


def test_the_answer_to_the_sample_key_is_the_sample_answer():
    chat = Chat()
    peer = Peer(chat)
    peer.send(get("/v0/ws", *UPGRADE))
    assert peer.sent.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in peer.sent


def test_an_upgrade_may_be_decided_later_and_what_follows_waits_for_it():
    waiting: list[Exchange] = []
    peer = Peer(waiting.append)
    peer.send(get("/v0/ws", *UPGRADE) + get("/after"))
    assert len(waiting) == 1
    waiting[0].reply(401, b"{}")
    peer.loop.run()
    assert len(waiting) == 2
    waiting[1].reply_json(b"1")
    assert [answer.status for answer in peer.answers()] == [401, 200]


def test_a_peer_that_takes_nothing_is_let_go():
    chat = Chat()
    client = Client(chat, TransportLimits(stream_stall_s=100))
    client.peer.wait(200)
    client.peer.transport.stuck = True
    assert chat.websocket.send(b"one")
    client.peer.wait(99)
    assert not client.peer.transport.closing
    client.peer.wait(4)
    assert client.peer.transport.aborted
    assert chat.told == ["gone"]


def test_a_peer_that_takes_a_little_now_and_then_is_kept():
    chat = Chat()
    client = Client(chat, TransportLimits(stream_stall_s=100))
    for _ in range(5):
        client.peer.transport.stuck = True
        assert chat.websocket.send(b"one")
        client.peer.wait(90)
        client.peer.transport.unstick()
    assert not client.peer.transport.closing


def test_very_many_messages_in_one_read_leave_others_their_turn():
    chat = Chat()
    client = Client(chat)
    count = 1_000
    for _ in range(count):
        client.protocol.send_text(b"0123456789")
    data = b"".join(client.protocol.data_to_send())
    assert len(data) > 3 * BYTES_A_TURN
    peer = client.peer
    peer.transport.protocol.data_received(data)
    assert 0 < len(chat.told) < count / 2
    assert not peer.transport.reading, "the rest of it comes first"
    heard = []
    peer.loop.call_soon(lambda: heard.append(len(chat.told)))
    peer.loop.run()
    assert heard[0] < count, "somebody else had a turn in between"
    assert chat.told == [b"0123456789"] * count
    assert peer.transport.reading


def test_nothing_is_heard_after_a_message_that_is_no_text():
    chat = Chat()
    client = Client(chat)
    client.protocol.send_text(b"good")
    client.protocol.send_frame(Frame(Opcode.TEXT, b"\xff"))
    client.protocol.send_text(b"late")
    client.peer.send(b"".join(client.protocol.data_to_send()))  # all of it in one read
    assert chat.told[0] == b"good"
    assert b"late" not in chat.told
