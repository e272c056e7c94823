from __future__ import annotations

import gzip
import json
import logging
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import Unauthorized
from penstock.server.http.http1 import STEPS_A_TURN
from penstock.server.http.message import TransportLimits
from tests.unit.server.http.fake_loop import Desk, Peer, all_overlap, echo, get, post

CHUNKED = (
    b"POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;note=1\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n"
)
ZIPPED = post("/zipped", gzip.compress(b"squeezed" * 50), "Content-Encoding: gzip")
SEVERAL = (
    post("/a%3Ab?x=1", b"hello", "X-One: 1", "x-one: 2")
    + get("/plain")
    + b"\r\n"
    + CHUNKED
    + ZIPPED
    + b"HEAD /head HTTP/1.1\r\nHost: a\r\n\r\n"
    + post("/last", b"", "Connection: close")
)


def test_a_request_is_handed_over_as_it_was_sent():
    peer = Peer(echo)
    peer.send(post("/v0/topics/a%3Ab?limit=1&x=%20", b"hello", "X-One: 1", "x-one: 2"))
    (answer,) = peer.answers()
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["date"] == "Thu, 01 Jan 1970 00:00:00 GMT"
    method, path, query, headers, body = json.loads(answer.body)
    assert (method, path, query, body) == ("POST", "/v0/topics/a:b", "limit=1&x=%20", "hello")
    assert headers == {"host": "a", "x-one": "1, 2", "content-length": "5"}


def whole_answers() -> bytes:
    peer = Peer(echo)
    peer.send(SEVERAL)
    assert peer.sent.count(b"HTTP/1.1 200 OK") == 6
    assert peer.transport.closing
    return peer.sent


def test_requests_cut_at_any_one_place_get_the_same_answers():
    expected = whole_answers()
    for cut in range(1, len(SEVERAL)):
        peer = Peer(echo)
        peer.send(SEVERAL[:cut])
        peer.send(SEVERAL[cut:])
        assert peer.sent == expected, f"cut at {cut}"


@given(st.lists(st.integers(1, len(SEVERAL) - 1), max_size=40))
@settings(max_examples=50)
def test_requests_cut_anywhere_get_the_same_answers(cuts):
    peer = Peer(echo)
    places = [0, *sorted(cuts), len(SEVERAL)]
    for start, end in pairwise(places):
        peer.send(SEVERAL[start:end])
    assert peer.sent == whole_answers()


def test_requests_byte_by_byte_get_the_same_answers():
    peer = Peer(echo)
    for place in range(len(SEVERAL)):
        peer.send(SEVERAL[place : place + 1])
    assert peer.sent == whole_answers()


def test_a_head_seen_before_means_the_same_again():
    peer = Peer(echo)
    for _ in range(3):
        peer.send(post("/same", b"12345"))
    first, *others = peer.answers()
    assert [answer.body for answer in others] == [first.body] * 2


@given(st.permutations(range(6)))
@settings(max_examples=40)
def test_answers_leave_in_the_order_of_the_requests(order):
    desk = Desk()
    peer = Peer(desk, overlaps=all_overlap)
    peer.send(b"".join(get(f"/{number}") for number in range(6)))
    for number in order:
        desk.exchanges[number].reply_json(b"%d" % number)
    assert [answer.body for answer in peer.answers()] == [b"%d" % number for number in range(6)]
    assert peer.service.budget.used == 0


def test_a_second_answer_is_an_error_and_is_not_sent():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/"))
    desk.exchanges[0].reply_json(b"1")
    with pytest.raises(Rejected, match="answered already"):
        desk.exchanges[0].reply_json(b"2")
    assert len(peer.answers()) == 1


def test_beyond_the_limit_pipelined_requests_wait_in_the_socket():
    desk = Desk()
    peer = Peer(desk, TransportLimits(pipelined_max=3), overlaps=all_overlap)
    peer.send(b"".join(get(f"/{number}") for number in range(5)))
    assert [each.request.path for each in desk.exchanges] == ["/0", "/1", "/2"]
    assert not peer.transport.reading
    desk.exchanges[0].reply_json(b"0")
    assert len(desk.exchanges) == 3, "the application is not called from within its own answer"
    peer.loop.run()
    assert len(desk.exchanges) == 4
    for number in range(1, 5):
        desk.exchanges[number].reply_json(b"%d" % number)
        peer.loop.run()
    assert [answer.body for answer in peer.answers()] == [b"%d" % number for number in range(5)]
    assert peer.transport.reading


@pytest.mark.parametrize("pieces", [1, 2], ids=["in one read", "half a head arrives later"])
def test_a_head_that_waits_for_answers_does_not_count_as_slow(pieces):
    """The look at connections may come between an answer and the requests that waited for it."""
    desk = Desk()
    peer = Peer(desk, TransportLimits(pipelined_max=3, head_s=10.0), overlaps=all_overlap)
    data = b"".join(get(f"/{number}") for number in range(5))
    first = data if pieces == 1 else data[:-5]
    peer.send(first)
    peer.wait(30)
    desk.exchanges[0].reply_json(b"0")
    peer.service.tick()
    peer.loop.run()
    for number in range(1, 4):
        desk.exchanges[number].reply_json(b"%d" % number)
        peer.loop.run()
    if pieces == 2:
        peer.send(data[-5:])
    desk.exchanges[4].reply_json(b"4")
    assert [answer.status for answer in peer.answers()] == [200] * 5


def test_a_head_is_not_slow_while_the_peer_was_not_read_from():
    desk = Desk()
    peer = Peer(desk, TransportLimits(head_s=10.0, write_buffer_bytes_max=1_000))
    peer.send(get("/0"))
    peer.transport.stuck = True
    peer.send(get("/1")[:-5])
    desk.exchanges[0].reply_json(b'"' + b"x" * 2_000 + b'"')
    assert not peer.transport.reading
    peer.wait(30)
    peer.transport.unstick()
    peer.wait(5)
    peer.send(get("/1")[-5:])
    desk.exchanges[1].reply_json(b"1")
    assert [answer.status for answer in peer.answers()] == [200, 200]
    peer.send(get("/2")[:-5])
    peer.wait(12)
    assert peer.answers()[-1].status == 400


def writes_overlap(method: str, path: str) -> bool:
    return method == "POST" and path.startswith("/w")


PLACES = [get("/a"), post("/w1", b"1"), post("/w2", b"2"), post("/b", b"3"), post("/w1", b"1")]


@pytest.mark.parametrize(
    "parts",
    [[b"".join(PLACES)], PLACES, [part for each in PLACES for part in (each[:-1], each[-1:])]],
    ids=["one segment", "one segment each", "two segments each"],
)
def test_a_request_begins_when_those_before_it_are_answered_unless_all_may_overlap(parts):
    desk, parts = Desk(), list(parts)
    peer = Peer(desk, overlaps=writes_overlap)
    peer.send(post("/w1", b"1"))
    desk.exchanges.pop().reply_json(b"0")
    begun: list[list[str]] = []
    while parts or desk.exchanges:
        while parts and peer.transport.reading:
            peer.send(parts.pop(0))
        begun.append([each.request.path for each in desk.exchanges])
        exchanges, desk.exchanges = desk.exchanges, []
        for exchange in reversed(exchanges):
            exchange.reply_json(exchange.request.path.encode())
        peer.loop.run()
    assert begun == [["/a"], ["/w1", "/w2"], ["/b"], ["/w1"]]
    assert [each.body for each in peer.answers()[1:]] == [b"/a", b"/w1", b"/w2", b"/b", b"/w1"]
    assert peer.transport.reading


def test_what_waits_for_an_answer_before_it_is_not_read_and_is_not_late():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/long"))
    assert peer.transport.reading, "or nobody would notice that the peer goes"
    peer.send(post("/next", b"12")[:-1])
    assert not peer.transport.reading
    peer.wait(1_000)
    assert not peer.transport.closing
    desk.exchanges[0].reply_json(b"1")
    peer.loop.run()
    assert peer.transport.reading
    peer.send(b"2")
    assert desk.exchanges[1].request.body == b"12"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_request_of_another_method_is_never_taken_for_the_one_that_is_expected(method):
    handled: list[str] = []

    def write_again(exchange):
        handled.append("short way")
        exchange.reply_json(b"1")

    def application(exchange):
        handled.append(exchange.request.method)
        if exchange.request.method == "POST":
            exchange.expect_again(write_again)
        exchange.reply_json(b"1")

    peer = Peer(application)
    other = b"%b /t HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % method.encode()
    write = post("/t", b"12")
    for part in (other, write[:-2], write[-2:], other):
        peer.send(part)
    assert handled == [method, "POST", method]


def test_a_request_that_asks_in_vain_for_another_protocol_leaves_the_connection_as_it_was():
    peer = Peer(echo)
    peer.send(get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"))
    write = post("/t", b"12")
    peer.send(write[:-2])
    peer.send(write[-2:])
    assert [answer.status for answer in peer.answers()] == [200, 200]


def test_a_peer_that_does_not_read_its_answers_is_not_read():
    peer = Peer(lambda exchange: exchange.reply(200, b"x" * 2_000, content_type=b"text/plain"),
                TransportLimits(write_buffer_bytes_max=1_000))  # fmt: skip
    peer.transport.stuck = True
    peer.send(get("/") * 10)
    assert not peer.transport.reading
    assert peer.service.counters.requests_total == 1
    peer.transport.unstick()
    assert peer.transport.reading
    assert len(peer.answers()) == 10


def test_one_read_with_one_request_is_answered_with_one_write():
    peer = Peer(echo)
    peer.send(get("/"))
    assert peer.transport.writes == 1


# closing -----------------------------------------------------------------------------------------


def test_a_request_that_says_close_gets_its_answer_and_the_end():
    peer = Peer(echo)
    peer.send(get("/", "Connection: close") + get("/never"))
    (answer,) = peer.answers()
    assert answer.headers["connection"] == "close"
    assert peer.transport.closing


def test_http_1_0_ends_after_its_answer_unless_it_asks_to_go_on():
    peer = Peer(echo)
    peer.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert not peer.transport.closing
    assert peer.answers()[0].headers["connection"] == "keep-alive"
    peer.send(b"GET / HTTP/1.0\r\n\r\n")
    assert peer.transport.closing


def test_head_is_handed_over_as_get_and_answered_without_a_body():
    seen = []

    def application(exchange):
        seen.append(exchange.request.method)
        exchange.reply_json(b"12345")

    peer = Peer(application)
    peer.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert seen == ["GET"]
    assert b"Content-Length: 5" in peer.sent
    assert peer.sent.endswith(b"\r\n\r\n")


def test_the_application_is_told_once_when_the_peer_goes_before_the_answer():
    desk = Desk()
    peer = Peer(desk, overlaps=all_overlap)
    peer.send(post("/a", b"12") + post("/b", b"345"))
    desk.exchanges[1].reply_json(b"late")
    peer.go()
    assert desk.gone == ["/a"]
    desk.exchanges[0].reply_json(b"nobody reads this")
    assert peer.sent == b""
    assert peer.service.budget.used == 0
    assert not peer.service.connections


def test_draining_closes_the_idle_and_lets_the_busy_finish():
    desk = Desk()
    busy = Peer(desk)
    idle = Peer(desk, service=busy.service)
    idle.send(get("/"))
    desk.exchanges[0].reply_json(b"1")
    busy.send(get("/"))
    busy.service.drain()
    assert idle.transport.closing
    assert not busy.transport.closing
    desk.exchanges[1].reply_json(b"2")
    assert busy.answers()[0].headers["connection"] == "close"
    assert busy.transport.closing


# the application fails ---------------------------------------------------------------------------


def test_an_application_that_fails_costs_one_500_and_not_the_connection(caplog):
    def application(exchange):
        if exchange.request.path == "/bad":
            raise RuntimeError("secret")
        exchange.reply_json(b"1")

    peer = Peer(application)
    with caplog.at_level(logging.ERROR):
        peer.send(get("/bad") + get("/good"))
    bad, good = peer.answers()
    assert (bad.status, bad.code) == (500, "internal")
    assert b"secret" not in bad.body
    assert "secret" in caplog.text
    assert good.status == 200


def test_a_header_that_would_break_out_of_its_line_is_refused(caplog):
    def application(exchange):
        exchange.reply(200, b"", headers=[(b"x-echo", b"1\r\nSet-Cookie: stolen=1")])

    peer = Peer(application)
    peer.send(get("/"))
    assert peer.answers()[0].status == 500
    assert b"stolen" not in peer.sent


# compression -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2_000, 400_000])
def test_a_large_answer_is_compressed_for_those_who_accept_it(size):
    body = b"x" * size
    peer = Peer(lambda exchange: exchange.reply_json(body))
    peer.send(get("/", "Accept-Encoding: br;q=0.5, gzip") + get("/", "Accept-Encoding: gzip;q=0"))
    zipped, plain = peer.answers()
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(zipped.body) == body
    assert "content-encoding" not in plain.headers
    assert plain.body == body


def test_a_small_answer_is_never_compressed():
    peer = Peer(lambda exchange: exchange.reply_json(b"x" * 1024))
    peer.send(get("/", "Accept-Encoding: gzip"))
    assert "content-encoding" not in peer.answers()[0].headers


def test_a_bomb_is_refused_when_it_passes_the_limit_and_the_connection_survives():
    bomb = gzip.compress(b"\0" * 30_000_000)
    peer = Peer(echo, TransportLimits(body_bytes_max=5_000_000))
    peer.send(post("/", bomb, "Content-Encoding: gzip") + get("/next"))
    refused, following = peer.answers()
    assert (refused.status, refused.code) == (413, "payload_too_large")
    assert following.status == 200
    assert peer.service.budget.used == 0


def test_a_body_of_several_steps_and_members_is_inflated_whole():
    content = bytes(range(256)) * 20_000
    seen = []
    peer = Peer(lambda exchange: (seen.append(exchange.request.body), exchange.reply_json(b""))[1])
    squeezed = gzip.compress(content[:3_000_000]) + gzip.compress(content[3_000_000:])
    peer.send(post("/", squeezed, "Content-Encoding: gzip"))
    assert seen == [content]
    assert peer.service.budget.used == 0


@pytest.mark.parametrize(
    "body",
    [b"no gzip", gzip.compress(b"a")[:-4], gzip.compress(b"a") + b"rest", zlib.compress(b"a")],
)
def test_a_broken_gzip_body_is_invalid_and_the_connection_survives(body):
    peer = Peer(echo)
    peer.send(post("/", body, "Content-Encoding: gzip") + get("/"))
    broken, following = peer.answers()
    assert (broken.status, broken.code) == (400, "invalid_request")
    assert following.status == 200


def test_another_content_encoding_is_not_supported():
    peer = Peer(echo)
    peer.send(post("/", b"1", "Content-Encoding: br"))
    assert [(each.status, each.code) for each in peer.answers()] == [
        (415, "unsupported_media_type")
    ]


# limits ------------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused_by_its_length_alone():
    peer = Peer(echo, TransportLimits(body_bytes_max=10))
    peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
    assert (peer.answers()[0].status, peer.answers()[0].code) == (413, "payload_too_large")
    assert peer.transport.eof_written
    peer.send(b"the rest is thrown away")
    peer.wait(5)
    assert peer.transport.lost


def test_a_body_at_the_limit_is_taken():
    peer = Peer(echo, TransportLimits(body_bytes_max=10))
    peer.send(post("/", b"0123456789"))
    assert peer.answers()[0].status == 200


def test_a_chunked_body_is_refused_as_soon_as_it_passes_the_limit():
    peer = Peer(echo, TransportLimits(body_bytes_max=10))
    peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    peer.send(b"9\r\n123456789\r\n")
    assert not peer.sent
    peer.send(b"ff\r\n12")
    assert peer.answers()[0].code == "payload_too_large"
    assert peer.service.budget.used == 0


def test_a_head_over_the_limit_is_refused_whole_or_not():
    limits = TransportLimits(head_bytes_max=200)
    for head in (get("/", "X: " + "y" * 300), b"GET / HTTP/1.1\r\nX: " + b"y" * 300):
        peer = Peer(echo, limits)
        peer.send(head)
        assert (peer.answers()[0].status, peer.answers()[0].code) == (400, "invalid_request")


def test_too_many_headers_are_refused():
    peer = Peer(echo, TransportLimits(headers_max=3))
    peer.send(get("/", "A: 1", "B: 2"))
    peer.send(get("/", "A: 1", "B: 2", "C: 3"))
    assert [answer.status for answer in peer.answers()] == [200, 400]


def test_a_refusal_waits_for_the_answers_before_it():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/slow") + b"GET / HTTP/9.9\r\n\r\n" + get("/never"))
    peer.wait(20)
    assert not peer.sent
    desk.exchanges[0].reply_json(b"1")
    assert [answer.status for answer in peer.answers()] == [200, 400]
    assert len(desk.exchanges) == 1


def test_connections_over_the_limit_are_turned_away():
    peer = Peer(echo, TransportLimits(connections_max=1))
    other = Peer(echo, service=peer.service)
    (answer,) = other.answers()
    assert (answer.status, answer.code) == (429, "throttled")
    assert answer.headers["retry-after"] == "1"
    assert other.transport.closing
    peer.send(get("/"))
    assert peer.answers()[0].status == 200


def test_a_connection_that_comes_while_draining_is_told_so():
    peer = Peer(echo)
    peer.service.drain()
    (answer,) = Peer(echo, service=peer.service).answers()
    assert (answer.status, answer.code) == (503, "shutting_down")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("name", ["body_bytes_max", "idle_s", "pipelined_max"])
def test_every_limit_must_be_above_zero(name):
    with pytest.raises(Rejected, match=name):
        TransportLimits(**{name: 0})


# time --------------------------------------------------------------------------------------------


def test_an_idle_connection_is_closed_after_a_while():
    peer = Peer(echo)
    peer.send(get("/"))
    peer.wait(75)
    assert not peer.transport.closing
    peer.wait(2)
    assert peer.transport.closing


def test_a_connection_that_waits_for_the_application_is_not_idle():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/"))
    peer.wait(300)
    desk.exchanges[0].reply_json(b"1")
    peer.wait(70)
    assert not peer.transport.closing


def test_a_head_that_drips_is_refused():
    peer = Peer(echo)
    peer.send(b"GET / HTTP/1.1\r\nHos")
    for _ in range(12):
        peer.wait(1)
        if not peer.transport.eof_written:
            peer.send(b"t")
    assert peer.answers()[0].code == "invalid_request"


def test_a_body_that_stops_is_refused():
    peer = Peer(echo)
    peer.send(post("/", b"x" * 10)[:-5])
    peer.wait(30)
    assert not peer.sent
    peer.wait(2)
    assert peer.answers()[0].code == "invalid_request"
    assert peer.service.budget.used == 0


def test_a_body_that_drips_is_refused_and_one_that_flows_is_not():
    slow, good = Peer(echo), Peer(echo)
    for peer in (slow, good):
        peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(60):
        for peer, size in ((slow, 10), (good, 4_000)):
            peer.wait(1)
            if not peer.transport.eof_written:
                peer.send(b"x" * size)
    assert slow.answers()[0].code == "invalid_request"
    assert not good.sent


def test_a_peer_that_never_reads_its_answer_is_cut_off():
    peer = Peer(lambda exchange: exchange.reply(200, b"x" * 5_000),
                TransportLimits(write_buffer_bytes_max=1_000))  # fmt: skip
    peer.transport.stuck = True
    peer.send(get("/"))
    peer.wait(62)
    assert peer.transport.aborted


def test_a_peer_that_reads_slowly_is_not_cut_off():
    peer = Peer(lambda exchange: exchange.reply(200, b"x" * 5_000),
                TransportLimits(write_buffer_bytes_max=1_000))  # fmt: skip
    peer.transport.stuck = True
    peer.send(get("/"))
    for _ in range(10):
        peer.wait(40)
        del peer.transport.buffer[:100]
    assert not peer.transport.aborted


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_draining_answers_every_request_that_was_begun(order):
    desk = Desk()
    peer = Peer(desk, overlaps=all_overlap)
    peer.send(b"".join(post(f"/{number}", b"x") for number in range(3)))
    peer.service.drain()
    for number in order:
        desk.exchanges[number].reply_json(b"%d" % number)
        peer.loop.run()
    answers = peer.answers()
    assert [answer.body for answer in answers] == [b"0", b"1", b"2"]
    assert [answer.headers.get("connection") for answer in answers] == [None, None, "close"]
    assert peer.transport.closing
    assert not desk.gone


def test_draining_ends_a_connection_whose_last_answer_was_made_before():
    desk = Desk()
    peer = Peer(desk, overlaps=all_overlap)
    peer.send(post("/0", b"x") + post("/1", b"x"))
    desk.exchanges[1].reply_json(b"1")
    peer.service.drain()
    desk.exchanges[0].reply_json(b"0")
    assert [answer.body for answer in peer.answers()] == [b"0", b"1"]
    assert peer.transport.closing


def test_a_refused_answer_to_head_is_never_followed_by_another():
    """Its body would be read as the next answer."""
    peer = Peer(echo)
    head = post("/", b"not gzip", "Content-Encoding: gzip").replace(b"POST", b"HEAD")
    peer.send(head + get("/next"))
    assert peer.sent.count(b"HTTP/1.1") == 1
    assert b"Connection: close" in peer.sent


# 100-continue ------------------------------------------------------------------------------------


def test_a_client_that_waits_for_a_go_ahead_gets_it():
    peer = Peer(echo)
    request = post("/", b"hello", "Expect: 100-continue")
    peer.send(request[:-5])
    assert peer.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.send(b"hello")
    assert peer.sent.count(b"HTTP/1.1 200") == 1


def test_a_go_ahead_waits_for_the_answers_before_it():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/first") + post("/", b"hello", "Expect: 100-continue")[:-5])
    assert not peer.sent
    desk.exchanges[0].reply_json(b"1")
    peer.loop.run()
    assert peer.sent.endswith(b"1HTTP/1.1 100 Continue\r\n\r\n")


def test_no_go_ahead_is_sent_late_for_a_body_that_came_empty():
    desk = Desk()
    peer = Peer(desk, overlaps=all_overlap)
    peer.send(get("/first"))
    peer.send(
        b"POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    peer.send(b"0\r\n\r\n")
    for exchange in reversed(desk.exchanges):
        exchange.reply_json(b"1")
    assert len(desk.exchanges) == 2
    assert b"100 Continue" not in peer.sent


def test_no_go_ahead_is_sent_when_the_body_is_refused_or_there():
    peer = Peer(echo, TransportLimits(body_bytes_max=5))
    peer.send(post("/", b"hello", "Expect: 100-continue"))
    peer.send(post("/", b"hello!", "Expect: 100-continue")[:-6])
    assert [answer.status for answer in peer.answers()] == [200, 413]


def test_very_many_requests_in_one_read_leave_others_their_turn():
    peer = Peer(echo)
    peer.send(get("/"))
    count = 3 * STEPS_A_TURN
    peer.transport.protocol.data_received(get("/") * count)
    assert len(peer.answers()) == 1 + STEPS_A_TURN
    assert not peer.transport.reading, "the rest of it comes first"
    answered = []
    peer.loop.call_soon(lambda: answered.append(len(peer.answers())))
    peer.loop.run()
    assert answered[0] <= 1 + 2 * STEPS_A_TURN, "somebody else had a turn in between"
    assert len(peer.answers()) == 1 + count
    assert peer.transport.reading


def test_who_has_no_key_is_told_so_before_its_body_is_read():
    peer = Peer(echo)
    peer.service.check_head = lambda method, headers, _sender: (
        None
        if headers.get("authorization") == "Bearer k"
        else Unauthorized(f"expected a key: {method}")
    )
    peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100)
    (told,) = peer.answers()
    assert (told.status, told.code) == (401, "unauthorized")
    assert peer.service.budget.used == 0
    other = Peer(echo, service=peer.service)
    other.send(post("/", b"x" * 200).replace(b"Host", b"Authorization: Bearer k\r\nHost")[:-50])
    assert other.service.budget.used == 150


def test_an_answer_that_was_taken_slowly_does_not_count_against_the_next_one():
    limits = TransportLimits(write_stall_s=20, write_buffer_bytes_max=1_000)
    peer = Peer(lambda exchange: exchange.reply(200, b"x" * 5_000), limits)
    for _ in range(2):
        peer.transport.stuck = True
        peer.send(get("/"))
        peer.wait(5)
        peer.transport.unstick()
        assert not peer.transport.lost
        for _ in range(10):  # others are answered at once meanwhile
            peer.wait(5)
            peer.send(get("/"))
    assert len(peer.answers()) == 22


def test_a_body_of_very_many_chunks_leaves_others_their_turn():
    peer = Peer(echo)
    peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    body = b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n"
    peer.transport.protocol.data_received(body)
    assert not peer.transport.reading, "the rest of it comes first"
    turns = []

    def another() -> None:
        turns.append(len(peer.sent))
        if not peer.sent:
            peer.loop.call_soon(another)

    peer.loop.call_soon(another)
    peer.loop.run()
    assert len(turns) > 10
    assert json.loads(peer.answers()[0].body)[-1] == "x" * 50_000
    assert peer.transport.reading
    assert peer.service.budget.used == 0


def test_a_few_empty_lines_before_a_request_are_passed_over_and_very_many_are_not():
    peer = Peer(echo)
    peer.send(b"\r\n" * 8 + get("/"))
    peer.send(b"\r\n" * 100_000 + get("/"))
    assert [answer.status for answer in peer.answers()] == [200, 400]
    assert peer.transport.lost or peer.transport.eof_written


def test_a_body_is_let_go_with_its_answer_though_the_exchange_is_kept():
    kept = []

    def application(exchange):
        kept.append(exchange)
        exchange.expect_again(application)
        exchange.reply_json(b"1")

    peer = Peer(application)
    for size in (3, 100_000, 100_000):
        peer.send(post("/", b"x" * size))
    assert len(peer.answers()) == 3
    assert [exchange.request.body for exchange in kept] == [b""] * 3


def keeping() -> tuple[Peer, list[Any]]:
    """A peer of an application that keeps exchanges, and does not ask to be told of their end."""
    kept: list[Any] = []
    return Peer(kept.append), kept


def test_a_client_that_stops_sending_gets_the_answer_that_is_due():
    peer, kept = keeping()
    peer.send(get("/slow"))
    peer.stop_sending()
    assert not peer.transport.closing
    kept[0].reply(200, b"{}")
    peer.loop.run()
    assert [answer.status for answer in peer.answers()] == [200]
    assert peer.transport.lost


def test_a_client_that_stops_sending_gets_the_answers_to_all_that_it_sent():
    peer, kept = keeping()
    peer.send(get("/a") + post("/b", b"1") + get("/c") + b"GET /half HTTP/1.1\r\nHo")
    peer.stop_sending()
    for _ in range(3):
        assert not peer.transport.closing
        kept[-1].reply(200, b"{}")
        peer.loop.run()
    assert [each.request.path for each in kept] == ["/a", "/b", "/c"]
    assert len(peer.answers()) == 3
    assert peer.transport.lost


def test_a_large_answer_is_sent_to_the_end():
    peer, kept = keeping()
    peer.send(get("/large"))
    peer.stop_sending()
    peer.transport.stuck = True
    kept[0].reply(200, b"x" * 500_000)
    peer.loop.run()
    assert not peer.transport.lost
    peer.transport.unstick()
    assert len(peer.answers()[0].body) == 500_000
    assert peer.transport.lost


def test_a_request_that_ends_its_connection_is_answered_too():
    peer, kept = keeping()
    peer.send(get("/slow", "Connection: close"))
    peer.stop_sending()
    kept[0].reply(200, b"{}")
    peer.loop.run()
    assert len(peer.answers()) == 1
    assert peer.transport.lost


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", post("/", b"12345")[:-1]])
def test_a_client_that_stops_sending_before_a_request_is_whole_is_gone(sent):
    peer, _ = keeping()
    if sent:
        peer.send(sent)
    peer.stop_sending()
    assert peer.transport.lost


def test_a_request_that_waits_for_data_ends_at_once():
    peer, kept = keeping()
    peer.send(get("/wait"))
    told = []
    kept[0].on_gone = lambda: told.append(True)
    peer.stop_sending()
    assert (told, peer.transport.lost) == ([True], True)
    assert kept[0].is_gone


@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_stream_ends_at_once(begins):
    peer, kept = keeping()
    peer.send(get("/events"))
    lost = []

    def begin() -> None:
        live = kept[0].stream()
        live.on_gone = lambda: lost.append(True)

    if begins == "before":
        begin()
        peer.loop.run()
    peer.stop_sending()
    if begins == "after":
        assert kept[0].may_be_gone
        begin()
        peer.loop.run()
    assert (lost, peer.transport.lost) == ([True], True)


def test_a_body_that_is_still_inflated_is_answered():
    peer = Peer(echo)
    peer.send(post("/zipped", gzip.compress(b"1" * 2_000_000), "Content-Encoding: gzip")[:-1])
    assert peer.transport.reading
    peer.transport.protocol.data_received(
        post("/zipped", gzip.compress(b"1" * 2_000_000), "Content-Encoding: gzip")[-1:]
    )
    peer.stop_sending()
    assert [answer.status for answer in peer.answers()] == [200]
    assert peer.transport.lost
