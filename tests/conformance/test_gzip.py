"""1.0 Compression of requests and of answers."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import Answer, at, done, payloads, records

ENCODED = {"Content-Encoding": "gzip"}


def _packed(body) -> bytes:
    return gzip.compress(json.dumps(body).encode())


@row("1.0 gzip requests")
def test_a_compressed_body_is_understood(api, topic):
    assert api.post(at(topic), _packed(records("a", "b")), ENCODED).status == 201
    page = done(api.post(at(topic, "diff"), _packed({"from_seq": 1}), ENCODED))
    assert payloads(page) == ["b"]
    assert (
        api.put(at(topic), _packed({"ttl_ms": 60_000}), ENCODED).json["config"]["ttl_ms"] == 60_000
    )


@row("1.0 gzip requests")
@pytest.mark.parametrize(
    "body",
    [b"not gzip at all", gzip.compress(b'{"records":[{"data":1}]}')[:-9], b"\x1f\x8b"],
    ids=["plain", "cut", "only the mark"],
)
def test_a_body_that_is_not_gzip_is_400(api, topic, body):
    expect.refusal(api.post(at(topic), body, ENCODED), 400, "invalid_request")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("1.0 gzip requests", "1.0 payload too large")
def test_the_limit_of_64_mib_is_of_the_inflated_size(api, topic):
    mib = b" " * 1_048_576
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [packer.compress(b'{"records":[{"data":1}]}')]
    parts += [packer.compress(mib) for _ in range(64)]
    bomb = b"".join([*parts, packer.flush()])
    assert len(bomb) < 1_000_000
    expect.refusal(api.post(at(topic), bomb, ENCODED), 413, "payload_too_large")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("1.0 gzip responses")
@pytest.mark.parametrize("accept", ["gzip", "gzip, deflate, br", "br;q=1.0, gzip;q=0.8"])
def test_a_large_answer_is_compressed_for_who_accepts_it(api, topic, accept):
    api.write(topic, "x" * 5_000)
    plain = api.post(at(topic, "diff"))
    packed = api.post(at(topic, "diff"), {}, {"Accept-Encoding": accept})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.body) < len(plain.body)
    unpacked = json.loads(gzip.decompress(packed.body))
    assert payloads(unpacked) == payloads(plain.json)


@row("1.0 gzip responses")
@pytest.mark.parametrize("accept", [None, "identity", "br", "gzip;q=0"])
def test_who_does_not_accept_gzip_gets_none(api, topic, accept):
    api.write(topic, "x" * 5_000)
    headers = {} if accept is None else {"Accept-Encoding": accept}
    connection = api.connect()
    try:
        connection.putrequest("POST", at(topic, "diff"), skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
    finally:
        connection.close()
    assert answer.headers["Content-Encoding"] is None
    assert payloads(answer.json) == ["x" * 5_000]


@row("1.0 gzip responses")
def test_a_small_answer_is_not_worth_it(api, topic):
    api.write(topic, "x")
    answer = api.post(at(topic, "diff"), {}, {"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] is None
    assert payloads(answer.json) == ["x"]


@row("1.0 gzip responses")
def test_a_stream_is_never_compressed(api, topic):
    api.make(topic, type="queue")
    api.write(topic, "x" * 5_000)
    headers = {"Accept-Encoding": "gzip"}
    with EventStream(api.address, api.watch(topic), headers) as stream:
        assert stream.headers["Content-Encoding"] is None
        assert payloads(stream.next("record").data) == ["x" * 5_000]
    with EventStream(api.address, at(topic, "work") + "?node=n", headers) as stream:
        assert stream.headers["Content-Encoding"] is None
        assert stream.next("job").data["data"] == "x" * 5_000
