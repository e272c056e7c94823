"""1.0 HTTP/2 with prior knowledge on the same port."""

from __future__ import annotations

import gzip
import json
from functools import partial

import pytest

from tests.conformance import expect
from tests.conformance.h2client import H2Client
from tests.conformance.rows import row
from tests.conformance.wire import Api, at, payloads, records, until


@pytest.fixture
def h2(server):
    with H2Client(server) as client:
        yield client


def _json(body) -> bytes:
    return json.dumps(body).encode()


@row("1.0 h2c")
def test_a_write_and_a_read(api, h2, topic):
    reply = h2.request("POST", at(topic), _json(records("a", "b")))
    assert reply.status == 201
    body = json.loads(reply.body)
    expect.keys(body, expect.WRITE)
    assert reply.headers["content-type"].startswith("application/json")
    reply = h2.request("POST", at(topic, "diff"), _json({"from_seq": 1}))
    assert payloads(json.loads(reply.body)) == ["b"]
    assert payloads(api.diff(topic)) == ["a", "b"], "the same data on HTTP/1.1"


@row("1.0 h2c")
def test_requests_without_a_body(h2, topic):
    assert h2.request("PUT", at(topic)).status == 201
    assert h2.request("POST", at(topic, "diff")).status == 200
    assert h2.request("GET", at(topic) + "?touch=false").status == 200
    assert h2.request("DELETE", at(topic)).status == 200
    assert h2.request("GET", "/healthz").status == 200


@row("1.0 h2c", "1.0 error body")
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v0/nowhere", b"", 404, "not_found"),
        ("DELETE", "/v0/topics", b"", 405, "method_not_allowed"),
        ("POST", "/v0/topics/x", b"{", 400, "invalid_request"),
        ("GET", "/v0/topics/no-such-topic", b"", 404, "topic_not_found"),
    ],
)
def test_errors_have_the_envelope(h2, method, path, body, status, code):
    reply = h2.request(method, path, body)
    assert reply.status == status
    assert expect.envelope(json.loads(reply.body))["code"] == code
    if status == 405:
        assert "GET" in reply.headers["allow"]


@row("1.0 h2c")
def test_many_streams_at_a_time(h2, topic):
    streams = [h2.send("POST", at(topic), _json(records(n))) for n in range(40)]
    bodies = [json.loads(h2.reply(stream).body) for stream in streams]
    assert sorted(body["first_seq"] for body in bodies) == list(range(1, 41))


@row("1.0 h2c", "1.2 diff wait")
def test_a_parked_stream_does_not_hold_up_the_others(api, h2, topic):
    h2.request("PUT", at(topic))
    parked = h2.send("POST", at(topic, "diff"), _json({"wait_ms": 30_000}))
    until(lambda: api.state(topic)["last_read_ts"], "the reader is there")
    assert h2.request("POST", at(topic), _json(records("wake"))).status == 200
    assert payloads(json.loads(h2.reply(parked).body)) == ["wake"]


@row("1.0 h2c")
def test_a_large_body_goes_both_ways_through_the_windows(h2, topic):
    batch = records(*["x" * 100_000 for _ in range(8)])
    assert h2.request("POST", at(topic), _json(batch)).status == 201
    reply = h2.request("POST", at(topic, "diff"), _json({"max_batch_bytes": 8_000_000}))
    assert payloads(json.loads(reply.body)) == ["x" * 100_000] * 8


@row("1.0 h2c", "1.4 frame format")
def test_a_watch_stream(api, h2, topic):
    api.write(topic, "old")
    stream = h2.send("GET", api.watch(topic), headers={"accept": "text/event-stream"})
    reply = h2.wait_for(stream, b"event: caught-up\n")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.body.startswith(b"retry: 2000\n\nid: ")
    api.write(topic, "new")
    h2.wait_for(stream, b'"data":"new"')
    assert h2.request("GET", at(topic)).status == 200, "beside the stream"
    h2.reset(stream)
    assert h2.request("GET", at(topic)).status == 200, "after the stream"


@row("1.0 h2c", "1.4 GET headers", "1.6 work")
def test_the_head_of_a_stream_begins_nothing(api, h2, topic):
    api.make(topic, type="queue")
    api.write(topic, "job")
    watch = api.watch(topic)
    for path in (watch, at(topic, "work") + "?node=w"):
        for answer in (h2.request("HEAD", path), api.request("HEAD", path)):
            assert (answer.status, answer.body) == (200, b"")
            assert answer.headers["content-type"] == "text/event-stream"
    (job,) = api.post(at(topic, "claim"), {"node": "w"}).json["claimed"]
    assert job["deliveries"] == 1
    h2.wait_for(h2.send("GET", watch), b"event: record\n")


@row("1.0 h2c", "1.6 work disconnect")
def test_a_stream_that_is_reset_gives_its_jobs_back(api, h2, topic):
    api.make(topic, type="queue")
    api.write(topic, "job")
    stream = h2.send("GET", at(topic, "work") + "?node=w")
    h2.wait_for(stream, b"event: job\n")
    h2.reset(stream)
    [job] = until(lambda: api.claim(topic, node="n2"), "the job of the stream that was reset")
    assert job["deliveries"] == 2


@row("1.0 h2c", "1.6 work disconnect", "2 max_sse_connections")
def test_a_stream_that_is_cancelled_with_its_request_leaves_nothing_behind(launch, topic):
    server = launch(MAX_SSE_CONNECTIONS=4)
    api = Api(server.address)
    api.make(topic, type="queue")
    api.write(topic, "job")
    with H2Client(server.address) as h2:
        for _ in range(10):
            h2.send_and_reset("GET", at(topic, "work") + "?node=w")
            h2.send_and_reset("GET", api.watch(topic))
        assert h2.request("GET", at(topic)).status == 200, "all before it were taken"
        metrics = partial(api.get, "/v0/metrics", {"Accept": "application/json"})
        until(lambda: metrics().json["sse_connections"] == 0, "no streams")
        h2.wait_for(h2.send("GET", api.watch(topic)), b"event: record\n")
    [job] = until(lambda: api.claim(topic, node="n2"), "the job of the streams that were reset")
    assert job["deliveries"] == 1


@row("1.0 h2c", "1.0 gzip requests", "1.0 gzip responses")
def test_gzip_both_ways(h2, topic):
    body = gzip.compress(_json(records("x" * 5_000)))
    reply = h2.request("POST", at(topic), body, {"content-encoding": "gzip"})
    assert reply.status == 201
    reply = h2.request("POST", at(topic, "diff"), headers={"accept-encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert payloads(json.loads(gzip.decompress(reply.body))) == ["x" * 5_000]
