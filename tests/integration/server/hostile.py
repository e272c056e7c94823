"""What someone who means harm sends, and what must hold however much of it comes."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Address, Answer, Api

READ_S = 15.0
H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def rss_bytes(server: ServerProcess) -> int:
    """The memory that a server has now."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def exchange(address: Address, *pieces: bytes, finish: bool = True) -> bytes:
    """Send bytes as they are, and read until the server has no more to say."""
    with socket.create_connection(address, timeout=READ_S) as link:
        try:
            for piece in pieces:
                link.sendall(piece)
            if finish:
                link.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server may have ended it already; what it said is still to be read
        return read_all(link)


def read_all(link: socket.socket) -> bytes:
    """Everything until the server ends the connection."""
    parts: list[bytes] = []
    try:
        while part := link.recv(65_536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def statuses(answer: bytes) -> list[int]:
    """The statuses of the HTTP/1.1 answers in a stream of bytes."""
    return [
        int(line[9:12])
        for line in answer.split(b"\r\n")
        if line.startswith(b"HTTP/1.1 ") and line[9:12].isdigit()
    ]


def assert_refused(answer: bytes) -> None:
    """Nothing at all, or errors of the protocol in their envelope; never a 500."""
    found = statuses(answer)
    assert not answer or found, f"no HTTP: {answer[:200]!r}"
    assert all(status < 500 or status == 503 for status in found), answer[:500]
    if found and found[-1] >= 400:
        body = answer.rpartition(b"\r\n\r\n")[2]
        if body:  # an answer to HEAD has none
            assert_envelope(json.loads(body))


def assert_envelope(body: object) -> None:
    """An error is told in the one shape that all have."""
    assert isinstance(body, dict), body
    assert body.keys() == {"error"}, body
    assert {"code", "message"} <= body["error"].keys() <= {"code", "message", "detail"}, body


def assert_no_failure(answer: Answer) -> None:
    """A success or an error of the protocol."""
    assert answer.status < 500, str(answer)
    if answer.status >= 400:
        assert_envelope(answer.json)


def assert_well(server: ServerProcess, topic: str) -> None:
    """Others are served: a write is taken and can be read."""
    api = Api(server.address)
    head_seq = api.write(topic, "well")["head_seq"]
    assert api.diff(topic, head_seq - 1)["records"][0]["data"] == "well"
    assert server.process.poll() is None


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    """A request as bytes."""
    lines = [
        b"POST %b HTTP/1.1" % path.encode(),
        b"Host: localhost",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@cache
def malformed() -> dict[str, bytes]:
    """Requests that are wrong each in its own way."""
    good = b'{"records":[{"data":1}]}'
    head = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    return {
        "nothing": b"",
        "blank lines": b"\r\n\r\n\r\n",
        "no version": b"GET /healthz\r\n\r\n",
        "garbage": bytes(range(256)) * 8,
        "zeros": bytes(4_096),
        "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        "cut in the line": b"GET /hea",
        "cut in the headers": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA",
        "cut in the body": head + b"Content-Length: 100\r\n\r\n{",
        "a huge line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a huge header": b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000 + b"\r\n\r\n",
        "many headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        "a header without name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        "a header without colon": b"GET / HTTP/1.1\r\nhost x\r\n\r\n",
        "a NUL in a header": b"GET / HTTP/1.1\r\nHost: localhost\x00y\r\n\r\n",
        "a folded header": b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
        "a bare line feed": b"GET /healthz HTTP/1.1\nHost: x\n\n",
        "two lengths": head + b"Content-Length: 24\r\nContent-Length: 5\r\n\r\n" + good,
        "length and chunks": head
        + b"Content-Length: 24\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + b"GET /healthz HTTP/1.1\r\n\r\n",
        "a negative length": head + b"Content-Length: -1\r\n\r\n" + good,
        "a length in words": head + b"Content-Length: many\r\n\r\n" + good,
        "a length with a sign": head + b"Content-Length: +24\r\n\r\n" + good,
        "a length over all": head + b"Content-Length: 99999999999999999999\r\n\r\n" + good,
        "an unknown coding": head + b"Transfer-Encoding: deflate\r\n\r\n" + good,
        "chunked not last": head + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + good,
        "a chunk too short": chunked + b"5\r\nab\r\n0\r\n\r\n",
        "a chunk without end": chunked + b"18\r\n" + good + b"XX0\r\n\r\n",
        "a chunk size in words": chunked + b"zz\r\nab\r\n0\r\n\r\n",
        "a chunk size over all": chunked + b"fffffffffffffffff\r\n",
        "a chunk size of spaces": chunked + b"  \r\n",
        "a chunk extension without end": chunked + b"1;" + b"a" * 300_000,
        "no such coding": head + b"Content-Encoding: br\r\nContent-Length: 24\r\n\r\n" + good,
        "no gzip": head + b"Content-Encoding: gzip\r\nContent-Length: 24\r\n\r\n" + good,
        "half a gzip": post("/v0/topics/t", gzip.compress(good)[:-6], b"Content-Encoding: gzip"),
        "HTTP 3": b"GET /healthz HTTP/3.0\r\n\r\n",
        "HTTP 0.9": b"GET /healthz HTTP/0.9\r\n\r\n",
        "an unknown method": b"FROB /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "connect": b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "another server": b"GET http://example.org/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "no path": b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a path that is no UTF-8": b"GET /v0/topics/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "half an escape": b"GET /v0/topics/%f HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a NUL in the path": b"GET /v0/topics/a%00b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "upwards": b"GET /v0/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "an upgrade to nothing": b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\n"
        b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMA\r\n\r\n",
        "a socket without key": b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
        "an expectation": head + b"Expect: 200-ok\r\nContent-Length: 24\r\n\r\n" + good,
    }


def mutations(random: Random, count: int) -> Iterator[bytes]:
    """Good requests with a few bytes changed, left out or doubled."""
    pool = [value for value in malformed().values() if len(value) < 1_000]
    pool += [post("/v0/topics/t", b'{"records":[{"data":[1,2,{"a":null}],"tag":"x"}]}')]
    for _ in range(count):
        text = bytearray(random.choice(pool) + random.choice(pool))
        for _ in range(random.randrange(1, 8)):
            place = random.randrange(len(text) + 1)
            kind = random.randrange(3)
            if kind == 0:
                text[place:place] = random.randbytes(random.choice((1, 1, 2, 9)))
            elif kind == 1:
                del text[place : place + random.choice((1, 1, 5))]
            else:
                text[place:place] = text[place : place + 20]
        yield bytes(text)


@cache
def bodies() -> dict[str, bytes]:
    """Bodies that a JSON reader may choke on."""
    deep = 100_000
    return {
        "nothing": b"",
        "no JSON": b"{",
        "a list": b"[]",
        "a number": b"1",
        "null": b"null",
        "invalid UTF-8": b'{"records":[{"data":"\xff\xfe"}]}',
        "a lone surrogate": b'{"records":[{"data":"\\ud800","tag":"\\udfff"}],"node":"\\ud800"}',
        "a NUL": b'{"records":[{"data":1,"tag":"\\u0000"}],"node":"\\u0000"}',
        "deep lists": b'{"records":[{"data":' + b"[" * deep + b"]" * deep + b"}]}",
        "deep objects": b'{"a":' * deep + b"1" + b"}" * deep,
        "deep and open": b"[" * deep,
        "a huge integer": b'{"before_seq":%b,"from_seq":%b}' % (b"9" * 5_000, b"9" * 5_000),
        "a huge float": b'{"records":[{"data":1e999999}],"from_seq":1e400}',
        "not a number": b'{"records":[{"data":NaN}],"from_seq":NaN}',
        "negative": b'{"from_seq":-1,"limit":-1,"max":-1,"lease_ms":-1,"before_seq":-1}',
        "too large": b'{"from_seq":18446744073709551616,"seqs":[18446744073709551616],"node":"n"}',
        "largest": b'{"from_seq":18446744073709551615,"seqs":[18446744073709551615],"node":"n"}',
        "doubled keys": b'{"records":[],"records":[{"data":1}],"node":"n","node":5}',
        "wrong types": b'{"records":{},"node":[],"topics":[],"source":1,"dest":{},"match":7}',
        "empty names": b'{"topics":{"":{}},"source":"","dest":"","dead_letter":"","node":""}',
        "bad names": b'{"topics":{"\\u0000":{}},"source":"a/b","dest":"..","dead_letter":" "}',
        "bad predicate": b'{"match":["tag","Glob","*x*"],"filter":["tag","Like",1]}',
        "comments": b'{"records":[{"data":1}]/* */}',
        "trailing": b'{"records":[{"data":1}]} x',
        "a mark": b'\xef\xbb\xbf{"records":[{"data":1}]}',
        "utf-16": '{"records":[{"data":1}]}'.encode("utf-16"),
        "many keys": b"{%b}" % b",".join(b'"k%d":%d' % (n, n) for n in range(50_000)),
        "many topics": b'{"topics":{%b}}' % b",".join(b'"t%d":{}' % n for n in range(5_000)),
        "many seqs": b'{"node":"n","seqs":[%b]}' % b",".join(b"%d" % n for n in range(50_000)),
        "many records": b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 10_001),
    }


HANDSHAKE = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def masked(first: int, payload: bytes, length: bytes | None = None) -> bytes:
    """A frame of a client's, with a mask of nothing."""
    if length is None:
        size = len(payload)
        length = bytes([128 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
    return bytes([first]) + length + bytes(4) + payload
