"""Bytes that are no requests, requests that are no sense: a protocol error, and others go on."""

from __future__ import annotations

import gzip
import resource
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.kernel.units import MIB
from penstock.server.api.app import ROUTES
from penstock.server.http.message import Exchange, TransportLimits
from penstock.testing import seeded, seeds
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api, until
from tests.integration.server.hostile import (
    H2_PREFACE,
    HANDSHAKE,
    assert_no_failure,
    assert_refused,
    assert_well,
    bodies,
    exchange,
    malformed,
    masked,
    mutations,
    post,
    read_all,
    rss_bytes,
    statuses,
)
from tests.integration.server.serving import serving

BODY_MAX = 4 * MIB
BOMB = 128 * MIB
"""More than the server may grow, however it is packed."""
QUIET = 10_000
"""Connections that say nothing, if the system allows so many files."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"), MAX_BODY_BYTES=BODY_MAX)
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture(autouse=True)
def others_are_served(server: ServerProcess) -> Iterator[None]:
    """After each test the server is as well as before, and its log tells of no failure."""
    yield
    assert_well(server, "bystander")
    assert "Traceback" not in server.log


@pytest.mark.parametrize("what", malformed())
def test_a_malformed_request_is_refused(server, what):
    answer = exchange(server.address, malformed()[what])
    assert_refused(answer)


@pytest.mark.parametrize("seed", seeds(1))
def test_whatever_bytes_come_nothing_fails(server, seed):
    with seeded(seed) as random:
        for text in mutations(random, 400):
            assert_refused_any(exchange(server.address, text))


def assert_refused_any(answer: bytes) -> None:
    """As a refusal, but some mutated requests are good ones."""
    assert all(status < 500 or status == 503 for status in statuses(answer)), answer[:500]


def test_what_follows_a_refused_request_is_not_taken_for_another(server):
    smuggled = b"POST /v0/topics/smuggled HTTP/1.1\r\nHost: localhost\r\n"
    smuggled += b"Content-Type: application/json\r\n"
    smuggled += b'Content-Length: 24\r\n\r\n{"records":[{"data":1}]}'
    for what in ("two lengths", "length and chunks", "chunked not last", "a length with a sign"):
        head = malformed()[what].partition(b"\r\n\r\n")[0] + b"\r\n\r\n0\r\n\r\n"
        answer = exchange(server.address, head + smuggled)
        assert statuses(answer) == [400], (what, answer)
    assert Api(server.address).get("/v0/topics/smuggled").status == 404


@pytest.mark.parametrize("what", bodies())
def test_a_body_without_sense_is_refused_on_every_route(server, what):
    api = Api(server.address)
    api.make("q", type="queue")
    api.make("t")
    for route in ROUTES.routes:
        if route.body:
            for name in ("q", "t"):
                path = route.path.replace("{name}", name)
                assert_no_failure(api.request(route.method, path, bodies()[what]))


@pytest.mark.parametrize(
    "name",
    [
        "%00",
        "a%00b",
        "%ff",
        "..",
        "%2e%2e",
        "a" * 256,
        "a" * 5_000,
        "%ED%A0%80",
        "é",
        "a b",
        "%",
        "{}",
    ],
)
def test_an_impossible_name_is_refused_on_every_route(server, name):
    for route in ROUTES.routes:
        if route.named and "open_" not in route.name:
            path = route.path.replace("{name}", name).encode()
            body = b'{"records":[{"data":1}],"node":"n","seqs":[1],"lease_ms":1,"before_seq":1}'
            request = b"%b %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % (
                route.method.encode(),
                path,
            )
            if route.body:
                request += b"Content-Type: application/json\r\n"
                request += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            answer = exchange(server.address, request + (b"" if route.body else b"\r\n"))
            assert_refused_any(answer)
            assert statuses(answer), route


def test_a_bomb_is_not_inflated(server):
    before = rss_bytes(server)
    bomb = gzip.compress(bytes(BOMB), 9)
    nested = gzip.compress(bomb)
    for body in (bomb, nested):
        answer = exchange(
            server.address, post("/v0/topics/t", body, b"Content-Encoding: gzip"), finish=False
        )
        assert statuses(answer)[-1] in (400, 413), answer[:300]
    raw = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [raw.compress(bytes(MIB)) + raw.flush(zlib.Z_SYNC_FLUSH) for _ in range(64)]
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    answer = exchange(server.address, head, *chunks, b"0\r\n\r\n")
    assert statuses(answer)[-1] == 413, answer[:300]
    assert rss_bytes(server) - before < 20 * BODY_MAX


def test_bodies_that_never_end_hold_no_more_than_they_may(server):
    before = rss_bytes(server)
    head = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        for _ in range(100):
            link = stack.enter_context(socket.create_connection(server.address, timeout=15))
            link.sendall(head + b"Content-Length: %d\r\n\r\n" % (BODY_MAX - 1))
            link.sendall(b"[" * 100_000)
        assert_well(server, "bystander")
        assert rss_bytes(server) - before < 64 * MIB
        huge = [head + b"Content-Length: %d\r\n\r\n" % (1 << 40), b"x"]
        assert statuses(exchange(server.address, *huge))[-1] == 413


def test_heads_that_come_a_byte_at_a_time_hold_nobody_up(server):
    with ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(server.address, timeout=30))
            for _ in range(50)
        ]
        for place in range(8):
            for link in links:
                link.sendall(b"GET /hea"[place : place + 1])
            assert_well(server, "bystander")


def test_connections_that_say_nothing_cost_little(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    theirs = int(
        next(
            line.split()[3]
            for line in Path(f"/proc/{server.process.pid}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(QUIET, theirs - 200, hard - 200)
    before = rss_bytes(server)
    try:
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(socket.create_connection(server.address, timeout=30))
            assert_well(server, "bystander")
            assert (rss_bytes(server) - before) / count < 32_768
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    until(lambda: len(list(descriptors.iterdir())) < 200, "the connections to be let go", 30)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


SETTINGS = frame(4, 0, 0)
HTTP2 = {
    "no settings": H2_PREFACE + b"garbage that is no frame at all, for a while and then some",
    "only the preface": H2_PREFACE,
    "data on nothing": H2_PREFACE + SETTINGS + frame(0, 0, 1, b"x" * 100),
    "stream 0": H2_PREFACE + SETTINGS + frame(1, 4, 0, b"\x82"),
    "even stream": H2_PREFACE + SETTINGS + frame(1, 5, 2, b"\x82\x86\x84"),
    "bad header block": H2_PREFACE + SETTINGS + frame(1, 5, 1, b"\xff" * 50),
    "too long a frame": H2_PREFACE + SETTINGS + frame(0, 0, 1, bytes(100_000)),
    "a length without a body": H2_PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "window over all": H2_PREFACE + SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,
    "window of nothing": H2_PREFACE + SETTINGS + frame(8, 0, 0, bytes(4)),
    "continuation alone": H2_PREFACE + SETTINGS + frame(9, 4, 1, b"\x82"),
    "push": H2_PREFACE + SETTINGS + frame(5, 4, 1, bytes(4) + b"\x82"),
    "settings of odd length": H2_PREFACE + frame(4, 0, 0, b"12345"),
    "headers without path": H2_PREFACE + SETTINGS + frame(1, 5, 1, b"\x82\x86"),
    "reset of nothing": H2_PREFACE + SETTINGS + frame(3, 0, 7, bytes(4)),
}


@pytest.mark.parametrize("what", HTTP2)
def test_garbage_in_http2_ends_that_connection_only(server, what):
    exchange(server.address, HTTP2[what])


GET_ROOT = b"\x82\x86\x84\x41\x01x"
FLOODS = {
    "settings": [frame(4, 0, 0, struct.pack("!HI", 4, 65_535))] * 50_000,
    "pings": [frame(6, 0, 0, bytes(8))] * 50_000,
    "resets": [
        frame(1, 5, 2 * n + 1, GET_ROOT) + frame(3, 0, 2 * n + 1, b"\0\0\0\x08")
        for n in range(20_000)
    ],
    "continuations": [frame(1, 1, 1, GET_ROOT), *[frame(9, 0, 1, b"\x40\x01a\x01b")] * 50_000],
    "empty data": [frame(1, 4, 1, b"\x83\x86\x84\x41\x01x"), *[frame(0, 0, 1)] * 50_000],
    "priorities": [frame(2, 0, 3, bytes(5))] * 50_000,
    "streams that stay": [frame(1, 4, 2 * n + 1, b"\x83\x86\x84\x41\x01x") for n in range(20_000)],
}


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_of_http2_frames_is_stopped(server, what):
    before = rss_bytes(server)
    for _ in range(3):
        link = socket.create_connection(server.address, timeout=30)
        with link:
            link.settimeout(15)
            try:
                link.sendall(H2_PREFACE + SETTINGS + b"".join(FLOODS[what]))
                link.shutdown(socket.SHUT_WR)
            except OSError:
                continue  # it was let go, or nobody reads what it asks for
            read_all(link)
    assert_well(server, "bystander")
    assert rss_bytes(server) - before < 64 * MIB


SOCKETS = {
    "garbage": b"\xff" * 500,
    "no mask": b"\x81\x02hi",
    "a reserved bit": masked(0xC1, b"{}"),
    "an unknown kind": masked(0x83, b"{}"),
    "text that is no UTF-8": masked(0x81, b"\xff\xfe"),
    "binary": masked(0x82, b"\x00\x01"),
    "no JSON": masked(0x81, b"{"),
    "no operation": masked(0x81, b'{"op":7}') + masked(0x81, b"[]") + masked(0x81, b"null"),
    "deep JSON": masked(0x81, b"[" * 60_000),
    "a surrogate": masked(0x81, b'{"op":"ping","request_id":"\\ud800"}'),
    "a huge id": masked(0x81, b'{"op":"ping","request_id":%b}' % (b"9" * 5_000)),
    "a long ping": masked(0x89, b"x" * 200),
    "a split ping": masked(0x09, b"x"),
    "continuation of nothing": masked(0x80, b"x"),
    "a close of one byte": masked(0x88, b"x"),
    "a close with a bad code": masked(0x88, b"\x00\x01"),
    "a length over all": masked(0x81, b"x", b"\xff" + b"\xff" * 8),
    "a length of gigabytes": masked(0x81, b"x" * 100, b"\xff" + struct.pack("!Q", 1 << 33)),
    "a bad subscription": masked(0x81, b'{"op":"subscribe","topics":{"a":{"from_seq":-1}}}'),
    "a bad publication": masked(0x81, b'{"op":"publish","topic":"\\u0000","records":[{}]}'),
    "pings without end": masked(0x89, b"x") * 20_000,
    "fragments without end": masked(0x01, b"x") + masked(0x00, b"x" * 100) * 20_000,
}


@pytest.mark.parametrize("what", SOCKETS)
def test_garbage_in_a_websocket_ends_that_connection_only(server, what):
    before = rss_bytes(server)
    answer = exchange(server.address, HANDSHAKE, SOCKETS[what])
    assert statuses(answer)[0] == 101
    assert rss_bytes(server) - before < 64 * MIB


@pytest.mark.parametrize(
    ("sent", "limits"),
    [
        (b"GET /hea", {"head_s": 0.2}),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", {"body_stall_s": 0.2}),
        (b"", {"idle_s": 0.2}),
        (H2_PREFACE, {"idle_s": 0.2}),
    ],
)
def test_who_is_too_slow_is_let_go(sent, limits):
    def answer(exchange: Exchange) -> None:
        exchange.reply(200, b"{}")

    with serving(answer, TransportLimits(**limits)) as served, served.connect() as link:
        link.sendall(sent)
        assert_refused_any(read_all(link))
