from __future__ import annotations

import gzip
import json
from collections import defaultdict

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import Unauthorized
from penstock.server.http.http2 import FRAMES_A_TURN
from penstock.server.http.message import TransportLimits
from tests.unit.server.http.fake_loop import Desk, Peer, echo


class Client:
    """The library's client state, joined to a fake transport."""

    def __init__(self, application, limits=None, *, service=None, window=None) -> None:
        self.peer = Peer(application, limits, service=service)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.status: dict[int, int] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.goodbye: int | None = None
        self.opens_windows = True
        self._read = 0
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.flush()

    def flush(self) -> None:
        while True:
            data = self.h2.data_to_send()
            if data and not self.peer.transport.lost:
                self.peer.send(data)
            new = self.peer.sent[self._read :]
            self._read += len(new)
            if not new:
                return
            for event in self.h2.receive_data(new):
                self._take(event)

    def _take(self, event) -> None:
        match event:
            case ResponseReceived():
                self.headers[event.stream_id] = dict(event.headers)
                self.status[event.stream_id] = int(dict(event.headers)[":status"])
            case DataReceived():
                self.bodies[event.stream_id] += event.data
                if self.opens_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                self.ended.add(event.stream_id)
            case StreamReset():
                self.reset[event.stream_id] = event.error_code
            case ConnectionTerminated():
                self.goodbye = event.error_code

    def ask(self, path="/", *, method="GET", body=None, more=(), ends=True) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"),
                   (":authority", "a"), *more]  # fmt: skip
        self.h2.send_headers(stream_id, headers, end_stream=body is None and ends)
        if body is not None:
            self.send(stream_id, body, ends=ends)
        self.flush()
        return stream_id

    def send(self, stream_id: int, body: bytes, *, ends: bool) -> None:
        while body:
            window = self.h2.local_flow_control_window(stream_id)
            size = min(window, self.h2.max_outbound_frame_size, len(body))
            assert size, "the server gave no window"
            self.h2.send_data(stream_id, body[:size])
            body = body[size:]
            self.flush()
        if ends:
            self.h2.end_stream(stream_id)
        self.flush()


def code_of(client: Client, stream_id: int) -> str:
    return json.loads(bytes(client.bodies[stream_id]))["error"]["code"]


def test_a_request_is_handed_over_as_with_http_1_1():
    client = Client(echo)
    stream_id = client.ask("/a%3Ab?x=1", method="POST", body=b"hello", more=[("x-one", "1")])
    assert client.status[stream_id] == 200
    assert stream_id in client.ended
    assert not client.reset
    method, path, query, headers, body = json.loads(bytes(client.bodies[stream_id]))
    assert (method, path, query, body) == ("POST", "/a:b", "x=1", "hello")
    assert headers == {"x-one": "1", "host": "a"}


def test_the_preface_is_known_however_it_is_cut():
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    headers = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "a")]
    h2.send_headers(1, headers, end_stream=True)
    data = h2.data_to_send()
    for cut in range(1, len(data)):
        peer = Peer(echo)
        peer.send(data[:cut])
        peer.send(data[cut:])
        assert peer.service.counters.requests_total == 1, f"cut at {cut}"


def test_a_request_that_begins_like_the_preface_is_http_1_1():
    peer = Peer(echo)
    for byte in b"PUT / HTTP/1.1\r\nHost: a\r\n\r\n":
        peer.send(bytes([byte]))
    assert peer.answers()[0].status == 200


def test_requests_are_answered_in_any_order():
    desk = Desk()
    client = Client(desk)
    streams = [client.ask(f"/{number}") for number in range(3)]
    for number in (2, 0, 1):
        desk.exchanges[number].reply_json(b"%d" % number)
        client.flush()
    assert [bytes(client.bodies[stream]) for stream in streams] == [b"0", b"1", b"2"]


def test_a_large_answer_respects_the_windows_of_the_peer():
    content = bytes(range(256)) * 2_000
    client = Client(lambda exchange: exchange.reply(200, content), window=1_000)
    client.opens_windows = False
    stream_id = client.ask()
    assert len(client.bodies[stream_id]) == 1_000
    while stream_id not in client.ended:
        before = len(client.bodies[stream_id])
        client.h2.increment_flow_control_window(30_000, stream_id)
        client.h2.increment_flow_control_window(30_000)
        client.flush()
        assert len(client.bodies[stream_id]) > before
    assert bytes(client.bodies[stream_id]) == content


def test_large_bodies_are_taken_and_compressed_ones_inflated():
    seen = []

    def application(exchange):
        seen.append(exchange.request.body)
        exchange.reply_json(b"")

    client = Client(application)
    client.ask(method="POST", body=b"x" * 1_000_000)
    client.ask(method="POST", body=gzip.compress(b"y" * 3_000_000),
               more=[("content-encoding", "gzip")])  # fmt: skip
    assert seen == [b"x" * 1_000_000, b"y" * 3_000_000]
    assert client.peer.service.budget.used == 0


def test_large_answers_are_compressed_for_those_who_accept_it():
    for size in (2_000, 400_000):
        client = Client(lambda exchange, size=size: exchange.reply_json(b"x" * size))
        stream_id = client.ask(more=[("accept-encoding", "gzip")])
        client.peer.loop.run()
        client.flush()
        assert client.headers[stream_id]["content-encoding"] == "gzip"
        assert gzip.decompress(bytes(client.bodies[stream_id])) == b"x" * size


@pytest.mark.parametrize(
    ("more", "body", "code"),
    [
        ([("content-length", "101")], None, "payload_too_large"),
        ([], b"x" * 101, "payload_too_large"),
        ([("content-encoding", "gzip")], gzip.compress(bytes(200)), "payload_too_large"),
        ([("content-encoding", "gzip")], b"no gzip", "invalid_request"),
        ([("content-encoding", "br")], b"1", "unsupported_media_type"),
    ],
)
def test_bad_bodies_are_refused_and_the_connection_survives(more, body, code):
    client = Client(echo, TransportLimits(body_bytes_max=100))
    stream_id = client.ask(method="POST", body=body, more=more, ends=False)
    if body is not None:
        client.h2.end_stream(stream_id)
        client.flush()
    assert code_of(client, stream_id) == code
    assert not client.reset
    assert client.status[client.ask()] == 200
    assert client.peer.service.budget.used == 0


def test_what_is_still_sent_after_the_answer_is_thrown_away_and_stopped_after_a_while():
    client = Client(echo, TransportLimits(body_bytes_max=100, linger_s=3))
    early = client.ask(method="POST", body=b"x" * 101, ends=False)
    assert client.status[early] == 413
    assert early in client.ended
    client.send(early, b"y" * 50_000, ends=False)
    assert not client.reset, "a peer that is told to stop might not look at its answer"
    client.peer.wait(4)
    client.flush()
    assert client.reset == {early: ErrorCodes.NO_ERROR}
    assert client.status[client.ask()] == 200


def test_a_request_that_ends_after_its_answer_is_not_reset():
    client = Client(echo, TransportLimits(body_bytes_max=100, linger_s=3))
    early = client.ask(method="POST", body=b"x" * 101, ends=False)
    client.send(early, b"y", ends=True)
    client.peer.wait(9)
    client.flush()
    assert not client.reset


@pytest.mark.parametrize("path", ["nowhere", "/a#b"])
def test_bad_targets_are_refused_and_the_connection_survives(path):
    client = Client(echo)
    stream_id = client.ask(path)
    assert (client.status[stream_id], code_of(client, stream_id)) == (400, "invalid_request")
    assert client.status[client.ask()] == 200


def test_head_has_no_body():
    client = Client(lambda exchange: exchange.reply_json(b"12345"))
    stream_id = client.ask(method="HEAD")
    assert client.headers[stream_id]["content-length"] == "5"
    assert client.bodies[stream_id] == b""
    assert stream_id in client.ended


def test_an_application_that_fails_costs_one_500(caplog):
    def application(exchange):
        raise RuntimeError("secret")

    client = Client(application)
    stream_id = client.ask()
    assert (client.status[stream_id], code_of(client, stream_id)) == (500, "internal")


def test_a_stream_is_lagged_by_a_closed_window_and_told_when_there_is_room():
    desk, told = Desk(), []
    client = Client(desk, TransportLimits(stream_buffer_bytes_max=50), window=100)
    client.opens_windows = False
    stream_id = client.ask()
    stream = desk.exchanges[0].stream(b"text/event-stream", [(b"Cache-Control", b"no-store")])
    stream.on_room = lambda: told.append("room")
    assert stream.write(b"x" * 100)
    assert stream.write(b"y" * 40)
    assert not stream.write(b"z" * 20)
    assert stream.buffered == 40
    client.flush()
    client.h2.increment_flow_control_window(1_000, stream_id)
    client.flush()
    assert told == ["room"]
    assert stream.write(b"end")
    stream.close()
    client.flush()
    assert bytes(client.bodies[stream_id]) == b"x" * 100 + b"y" * 40 + b"end"
    assert stream_id in client.ended
    assert client.headers[stream_id]["cache-control"] == "no-store"
    assert client.peer.service.counters.streams_open == 0


def test_who_asks_for_room_in_vain_is_told_when_there_is_some():
    desk, told = Desk(), []
    client = Client(desk, window=100)
    client.opens_windows = False
    stream_id = client.ask()
    stream = desk.exchanges[0].stream()
    stream.on_room = lambda: told.append("room")
    assert stream.has_room()
    stream.write(b"x" * 101)
    assert not stream.has_room()
    client.flush()
    client.h2.increment_flow_control_window(1_000, stream_id)
    client.flush()
    assert told == ["room"]
    assert stream.has_room()


def test_a_cancelled_request_and_a_cancelled_stream_are_told():
    desk, told = Desk(), []
    client = Client(desk)
    first, second = client.ask("/request"), client.ask("/stream")
    stream = desk.exchanges[1].stream()
    stream.on_gone = lambda: told.append("gone")
    for stream_id in (first, second):
        client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        client.flush()
    assert desk.gone == ["/request"]
    assert told == ["gone"]
    desk.exchanges[0].reply_json(b"late")
    assert not stream.write(b"late")
    desk.exchanges.clear()
    client.ask()
    desk.exchanges[0].reply_json(b"1")


def test_a_flood_of_cancelled_requests_ends_the_connection():
    desk = Desk()
    client = Client(desk, TransportLimits(http2_resets_max=20))
    for _ in range(21):
        client.h2.reset_stream(client.ask(), ErrorCodes.CANCEL)
        client.flush()
        if client.goodbye is not None:
            break
    assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM
    assert client.peer.transport.closing


def test_cancelling_now_and_then_is_fine():
    desk = Desk()
    client = Client(desk, TransportLimits(http2_resets_max=5))
    for _ in range(30):
        client.h2.reset_stream(client.ask(), ErrorCodes.CANCEL)
        client.flush()
        client.peer.wait(3)
    assert client.goodbye is None


def test_too_many_streams_at_once_are_not_taken():
    desk = Desk()
    client = Client(desk, TransportLimits(http2_streams_max=3))
    assert client.h2.remote_settings.max_concurrent_streams == 3
    client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 100
    client.h2.remote_settings.acknowledge()
    for _ in range(4):
        client.ask()
    assert len(desk.exchanges) == 3
    assert client.peer.transport.closing


def test_draining_finishes_what_is_open_refuses_the_rest_and_says_goodbye():
    desk = Desk()
    client = Client(desk)
    stream_id = client.ask()
    client.peer.service.drain()
    late = client.ask()
    assert client.reset[late] == ErrorCodes.REFUSED_STREAM
    assert not client.peer.transport.closing
    desk.exchanges[0].reply_json(b"1")
    assert client.peer.transport.closing
    client.flush()
    assert client.goodbye == ErrorCodes.NO_ERROR
    assert bytes(client.bodies[stream_id]) == b"1"


def test_bytes_that_are_no_frames_end_the_connection():
    client = Client(echo)
    client.peer.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
    assert client.peer.transport.closing
    assert not client.peer.service.connections


def test_an_idle_connection_and_a_stalled_body_end():
    client = Client(echo)
    stream_id = client.ask(method="POST", body=b"1", ends=False)
    client.peer.wait(32)
    client.flush()
    assert code_of(client, stream_id) == "invalid_request"
    client.peer.wait(77)
    assert client.peer.transport.closing


def test_a_peer_that_never_opens_its_window_is_cut_off():
    client = Client(lambda exchange: exchange.reply(200, b"x" * 5_000), window=1_000)
    client.opens_windows = False
    client.ask()
    client.peer.wait(59)
    assert not client.peer.transport.aborted
    client.peer.wait(4)
    assert client.peer.transport.aborted


def test_the_peer_that_goes_is_told_to_every_request():
    desk = Desk()
    client = Client(desk)
    client.ask("/a")
    client.ask("/b")
    client.peer.go()
    assert sorted(desk.gone) == ["/a", "/b"]
    assert client.peer.service.budget.used == 0


def test_a_websocket_is_not_upgraded_from_http_2():
    desk = Desk()
    Client(desk).ask()
    with pytest.raises(Rejected):
        desk.exchanges[0].upgrade(None)


def test_unfinished_bodies_wait_for_memory_and_all_are_answered():
    limits = TransportLimits(buffered_bytes_max=100_000, http2_window_bytes=20_000)
    client = Client(echo, limits)
    streams = [client.ask(method="POST", body=b"x" * 15_000, ends=False) for _ in range(10)]
    assert client.peer.service.budget.used > 100_000
    for stream_id in streams:
        client.send(stream_id, b"y" * 5_000, ends=True)
    assert [client.status[stream_id] for stream_id in streams] == [200] * 10
    assert client.peer.service.budget.used == 0


@pytest.mark.parametrize("goodbye", [False, True], ids=["cancelled", "goodbye"])
def test_a_stream_whose_peer_left_in_the_same_read_is_told_that_it_is_gone(goodbye):
    told = []

    def watch(exchange) -> None:
        stream = exchange.stream()
        stream.on_gone = lambda: told.append("gone")

    client = Client(watch)
    stream_id = client.h2.get_next_available_stream_id()
    headers = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "a")]
    client.h2.send_headers(stream_id, headers, end_stream=True)
    if goodbye:
        client.h2.close_connection()
    else:
        client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
    client.peer.send(client.h2.data_to_send())
    assert told == ["gone"]
    assert client.peer.service.counters.streams_open == 0


def test_a_stream_whose_window_stays_closed_is_let_go_and_the_connection_goes_on():
    desk, told = Desk(), []
    client = Client(desk, TransportLimits(stream_stall_s=100), window=100)
    client.opens_windows = False
    slow, idle = client.ask("/slow"), client.ask("/idle")
    stream, other = (exchange.stream() for exchange in desk.exchanges)
    stream.on_gone = lambda: told.append("gone")
    stream.write(b"x" * 200)
    client.peer.wait(99)
    client.flush()
    stream.write(b"y")
    assert not client.reset
    client.peer.wait(5)
    client.flush()
    assert client.reset == {slow: ErrorCodes.CANCEL}
    assert told == ["gone"]
    assert other.write(b"1")
    client.flush()
    assert bytes(client.bodies[idle]) == b"1"


def test_a_closed_stream_whose_window_stays_closed_is_let_go_too():
    desk = Desk()
    client = Client(desk, TransportLimits(stream_stall_s=100), window=100)
    client.opens_windows = False
    slow = client.ask("/slow")
    stream = desk.exchanges[0].stream()
    stream.write(b"x" * 200)
    stream.close()
    client.peer.wait(103)
    client.flush()
    assert client.reset == {slow: ErrorCodes.CANCEL}


def test_a_request_cancelled_as_there_is_memory_for_it_ends_nothing_else():
    limits = TransportLimits(http2_window_bytes=1_000, buffered_bytes_max=100)
    client = Client(echo, limits)
    first = client.ask("/first", method="POST", body=b"x" * 200, ends=False)
    waits = client.ask("/waits", method="POST", body=b"y" * 600, ends=False)
    client.h2.end_stream(first)
    client.h2.reset_stream(waits, ErrorCodes.CANCEL)
    client.flush()
    assert client.status == {first: 200}
    assert client.goodbye is None
    assert client.status[client.ask("/next")] == 200
    assert client.peer.service.budget.used == 0


def test_a_request_cancelled_while_the_server_drains_ends_nothing_else():
    desk = Desk()
    client = Client(desk)
    first = client.ask("/first")
    client.peer.service.drain()
    late = client.h2.get_next_available_stream_id()
    headers = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "a")]
    client.h2.send_headers(late, headers, end_stream=True)
    client.h2.reset_stream(late, ErrorCodes.CANCEL)
    client.flush()
    desk.exchanges[0].reply_json(b"1")
    client.flush()
    assert client.status == {first: 200}


def test_very_many_frames_in_one_read_leave_others_their_turn():
    client = Client(echo)
    client.ask()
    peer, before = client.peer, len(client.peer.sent)
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"12345678"
    peer.transport.protocol.data_received(ping * 10 * FRAMES_A_TURN)
    assert len(peer.sent) - before == FRAMES_A_TURN * len(ping)
    assert not peer.transport.reading, "the rest of it comes first"
    answered = []
    peer.loop.call_soon(lambda: answered.append(len(peer.sent) - before))
    peer.loop.run()
    assert answered[0] <= 2 * FRAMES_A_TURN * len(ping), "somebody else had a turn in between"
    assert len(peer.sent) - before == 10 * FRAMES_A_TURN * len(ping)
    assert peer.transport.reading


def test_requests_wait_while_the_peer_does_not_take_the_answers_before_them():
    desk = Desk()
    client = Client(desk, TransportLimits(http2_answers_bytes_max=1_000), window=10)
    client.opens_windows = False
    first = client.ask("/first")
    desk.exchanges[0].reply(200, b"x" * 5_000)
    second = client.ask("/second")
    assert [each.request.path for each in desk.exchanges] == ["/first"]
    gone = client.ask("/gone")
    client.h2.reset_stream(gone, ErrorCodes.CANCEL)
    client.h2.increment_flow_control_window(10_000, first)
    client.h2.increment_flow_control_window(10_000)
    client.flush()
    assert [each.request.path for each in desk.exchanges] == ["/first", "/second"]
    desk.exchanges[1].reply(200, b"y")
    client.flush()
    assert (bytes(client.bodies[first]), bytes(client.bodies[second])) == (b"x" * 5_000, b"y")


def test_a_peer_that_takes_its_answer_byte_by_byte_is_let_go():
    client = Client(lambda exchange: exchange.reply(200, b"x" * 100_000),
                    TransportLimits(write_stall_s=20), window=10)  # fmt: skip
    client.opens_windows = False
    slow = client.ask()
    for _ in range(30):
        client.peer.wait(1)
        if not client.peer.transport.lost:
            client.h2.increment_flow_control_window(1, slow)
            client.flush()
    assert client.peer.transport.aborted


def test_a_body_of_somebody_without_a_key_is_refused_at_its_head():
    client = Client(echo)
    client.peer.service.check_head = lambda *_head: Unauthorized("expected a key")
    stream_id = client.ask(method="POST", body=b"x" * 100, ends=False)
    assert (client.status[stream_id], code_of(client, stream_id)) == (401, "unauthorized")
    assert client.peer.service.budget.used == 0
    assert client.status[client.ask()] == 200


def test_very_many_requests_that_waited_are_answered_each_at_once():
    answered = []

    def application(exchange):
        answered.append(exchange.request.path)
        exchange.reply(200, b"x" * (5_000 if exchange.request.path == "/first" else 1))

    limits = TransportLimits(http2_answers_bytes_max=1_000, http2_streams_max=2_000)
    client = Client(application, limits, window=10)
    client.opens_windows = False
    first = client.ask("/first")
    others = [client.ask("/other") for _ in range(1_000)]
    assert answered == ["/first"]
    client.h2.increment_flow_control_window(10_000, first)
    client.h2.increment_flow_control_window(10_000)
    client.flush()
    assert len(answered) == 1_001
    assert client.ended == {first, *others}
    assert set(client.status.values()) == {200}


def test_whoever_went_in_the_same_read_is_known_to_be_gone():
    desk = Desk()
    client = Client(desk)
    stream_id = client.h2.get_next_available_stream_id()
    headers = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "a")]
    client.h2.send_headers(stream_id, headers, end_stream=True)
    client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
    client.flush()
    assert desk.exchanges[0].is_gone
