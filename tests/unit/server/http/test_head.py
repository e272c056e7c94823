from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.errors import InvalidRequest
from penstock.server.http.head import CHUNKED, Heads, split_target
from penstock.server.http.message import TransportLimits
from tests.unit.server.http.fake_loop import Peer, echo

HOST = "Host: a\r\n"


def refused(request: bytes) -> None:
    """Sent whole, byte by byte, and twice: nothing but one 400 and the end."""
    for pieces in ([request], [request[at : at + 1] for at in range(len(request))]):
        peer = Peer(echo)
        for piece in pieces:
            if not peer.transport.eof_written:
                peer.send(piece)
        (answer,) = peer.answers()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert peer.transport.eof_written
        assert peer.service.counters.requests_total == 0


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "X: folded\r\n line\r\n",
        "X: folded\r\n\tline\r\n",
        "X : blank before the colon\r\n",
        "X\r\n",
        ": nameless\r\n",
        "X: nul\0\r\n",
        "X: return\rhere\r\n",
        "X: lf\nY: 1\r\n",
        "X(: bad name\r\n",
        "Host: b\r\n",
    ],
)
def test_headers_that_could_be_read_in_two_ways_are_refused(headers):
    refused(f"POST / HTTP/1.1\r\n{HOST}{headers}\r\n".encode("latin-1"))


@pytest.mark.parametrize(
    "line",
    [
        "GET /",
        "GET / HTTP/0.9",
        "GET / HTTP/1.2",
        "GET / HTTP/2.0",
        "GET / HTTP/1.1 ",
        "GET  / HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "get / HTTP/1.1",
        "GET nowhere HTTP/1.1",
        "GET /a#b HTTP/1.1",
        "GET /\xff HTTP/1.1",
        "CONNECT a:80 HTTP/1.1",
        "GET http:// HTTP/1.1",
        "GET / RTSP/1.0",
        "PRI * HTTP/2.1",
    ],
)
def test_lines_that_are_no_requests_are_refused(line):
    refused(f"{line}\r\n{HOST}\r\n".encode("latin-1"))


@pytest.mark.parametrize("path", ["/%zz", "/%4", "/a%", "/%ff", "/a%3A%ff", "/%41%zz"])
def test_escapes_that_stand_for_nothing_stay_as_they_came(path):
    assert split_target(path.encode()) == (path, "")


def test_a_nul_in_a_path_is_part_of_a_name_as_any_other_character():
    assert split_target(b"/a%00") == ("/a\0", "")


def test_http_1_1_needs_a_host_and_http_1_0_does_not():
    refused(b"GET / HTTP/1.1\r\n\r\n")
    peer = Peer(echo)
    peer.send(b"GET / HTTP/1.0\r\n\r\n")
    assert peer.answers()[0].status == 200


def test_http_1_0_has_no_chunks():
    refused(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"g\r\n",
        b"ffffffffffffffff\r\n",
        b"5;bad\0\r\nhello\r\n0\r\n\r\n",
        b"5\rX\nhello\r\n0\r\n\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"1;" + b"x" * 5_000,
    ],
)
def test_bad_chunks_are_refused(chunks):
    refused(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(1, 50))
def test_a_chunked_body_comes_back_however_it_is_cut(parts, step):
    seen = []

    def application(exchange):
        seen.append(exchange.request.body)
        exchange.reply_json(b"")

    request = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    request += b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    peer = Peer(application)
    for at in range(0, len(request), step):
        peer.send(request[at : at + step])
    assert seen == [b"".join(parts)]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/a:b?x=1", "/a:b", "x=1"),
        (b"/a%3Ab%20c?x=%31", "/a:b c", "x=%31"),
        (b"/%C3%BC", "/ü", ""),
        (b"/a?b?c", "/a", "b?c"),
        (b"/a//b/../c", "/a//b/../c", ""),
        (b"http://example.org:80/v0?x", "/v0", "x"),
        (b"HTTPS://example.org", "/", ""),
        (b"http://example.org?x=1", "/", "x=1"),
        (b"*", "*", ""),
        (b"//double", "//double", ""),
    ],
)
def test_targets_are_taken_apart(target, path, query):
    assert split_target(target) == (path, query)


@given(st.text())
def test_any_path_comes_back(text):
    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    found = "/" + text.replace("/", "%2F")  # so that a name with a slash stays one name
    assert split_target(b"/" + quoted.encode()) == (found, "")


def test_heads_are_remembered_up_to_a_bound_and_mean_the_same():
    heads = Heads(TransportLimits())
    for number in range(5_000):
        raw = f"POST /{number} HTTP/1.1\r\nHost: h{number}\r\nContent-Length: {number}\r\n\r\n"
        for _ in range(2):
            line, terms = heads.parse(raw.encode())
            assert (line.path, terms.headers["host"], terms.length) == (
                f"/{number}",
                f"h{number}",
                number,
            )
    assert len(heads.lines) <= 2_048
    assert len(heads.terms) <= 2_048


def test_what_a_head_means_depends_on_line_and_headers_together():
    heads = Heads(TransportLimits())
    headers = b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert heads.parse(b"POST / HTTP/1.1\r\n" + headers)[1].length == CHUNKED
    with pytest.raises(InvalidRequest):
        heads.parse(b"POST / HTTP/1.0\r\n" + headers)
    no_host = b"X: 1\r\n\r\n"
    assert not heads.parse(b"GET / HTTP/1.0\r\n" + no_host)[1].keep_alive
    with pytest.raises(InvalidRequest):
        heads.parse(b"GET / HTTP/1.1\r\n" + no_host)
    line, terms = heads.parse(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (line.method, terms.is_head, terms.hot) == ("GET", True, False)
    assert heads.parse(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")[1].hot
