"""2 Limits: how many of everything, and what is told when there are no more."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.sockets import Socket
from tests.conformance.streams import EventStream
from tests.conformance.wire import (
    Api,
    Later,
    at,
    at_once,
    done,
    payloads,
    records,
    router_at,
    until,
)


@pytest.fixture(scope="module")
def small_server(launch) -> Api:
    """A server with room for few topics, one router, little data and small bodies."""
    address = launch(
        MAX_TOPICS=20,
        MAX_ROUTERS=1,
        MAX_WATCH_SESSIONS=2,
        MAX_TOTAL_BYTES=20_000,
        MAX_BODY_BYTES=50_000,
    ).address
    return Api(address)


@pytest.fixture
def small(small_server: Api) -> Iterator[Api]:
    """The small server; each test leaves it empty."""
    yield small_server
    for found in done(small_server.get("/v0/topics"))["topics"]:
        small_server.delete(at(found["topic"]))


@row("2 max_topics", "1.0 retry-after")
def test_only_a_new_topic_is_refused_at_the_cap(small, topic):
    refused = (name for number in range(21) if _is_refused(small, name := f"{topic}:{number}"))
    over = next(refused)
    detail = {"limit": "max_topics", "max": 20}
    expect.refusal(small.put(at(over)), 429, "throttled", detail)
    expect.refusal(small.post(at(over), records(1)), 429, "throttled", detail)
    answer = small.post(at(over), records(1, disable_backpressure=True))
    expect.refusal(answer, 429, "throttled", detail)
    known = f"{topic}:0"
    answer = small.put(router_at(topic), {"source": known, "dest": over})
    expect.refusal(answer, 429, "throttled", detail)
    expect.refusal(small.get(router_at(topic)), 404, "router_not_found")
    expect.refusal(small.get(at(over)), 404, "topic_not_found")
    assert small.make(known, ttl_ms=60_000)["created"] is False
    assert small.write(known, 1)["count"] == 1
    small.delete(at(known))
    assert small.put(at(over)).status == 201


def _is_refused(api: Api, name: str) -> bool:
    return api.put(at(name)).status == 429


@row("2 max_routers", "1.0 retry-after")
def test_a_refused_router_leaves_no_topics_behind(small):
    small.route("one", "r-a", "r-b")
    detail = {"limit": "max_routers", "max": 1}
    answer = small.put(router_at("two"), {"source": "r-c", "dest": "r-d"})
    expect.refusal(answer, 429, "throttled", detail)
    for name in ("r-c", "r-d"):
        expect.refusal(small.get(at(name)), 404, "topic_not_found")
    assert small.route("one", "r-a", "r-b", filter="x")["created"] is False
    small.delete(router_at("one"))
    assert small.put(router_at("two"), {"source": "r-c", "dest": "r-d"}).status == 201


@row("2 max_routers")
def test_routers_refused_at_the_same_time_leave_no_topics_behind(small, topic):
    calls = [
        functools.partial(
            small.put,
            router_at(f"{topic}:{n}"),
            {"source": f"{topic}:s{n}", "dest": f"{topic}:d{n}"},
        )
        for n in range(6)
    ]
    assert sorted(answer.status for answer in at_once(calls)) == [201] + [429] * 5
    assert len(done(small.get("/v0/topics", prefix=topic))["topics"]) == 2


@row("2 max_topics")
def test_topics_at_the_same_time_do_not_pass_the_cap(small, topic):
    answers = at_once([functools.partial(small.put, at(f"{topic}:{n}")) for n in range(30)])
    assert sorted(answer.status for answer in answers) == [201] * 20 + [429] * 10


@row("2 max_watch_sessions", "1.0 retry-after")
def test_watch_sessions_are_limited(small, topic):
    small.make(topic)
    small.watch(topic)
    small.watch(topic)
    answer = small.post("/v0/watch", {"topics": {topic: {}}})
    detail = {"limit": "max_watch_sessions", "max": 2}
    expect.refusal(answer, 429, "throttled", detail)


@row("2 max_total_bytes", "1.2 write disable_backpressure", "1.2 write order")
def test_a_write_over_the_quota_appends_nothing(small, topic, name):
    small.write(topic, "x" * 9_998, idempotency_key="k")
    detail = {"limit": "max_total_bytes", "max": 20_000}
    over = records("y" * 15_000)
    expect.refusal(small.post(at(topic), over), 429, "throttled", detail)
    answer = small.post(at(topic), {**over, "disable_backpressure": True})
    expect.refusal(answer, 429, "throttled", detail)
    assert small.state(topic)["head_seq"] == 1
    assert small.write(topic, "x", idempotency_key="k")["deduped"] is True
    small.write(name(), "small")
    done(small.post(at(topic, "delete"), {"before_seq": 2}))
    assert done(small.post(at(topic), over))["first_seq"] == 2


@row("1.0 payload too large")
def test_a_body_over_the_limit_is_413(small, topic):
    over = json.dumps(records("x" * 50_000)).encode()
    expect.refusal(small.post(at(topic), over), 413, "payload_too_large")
    expect.refusal(small.get(at(topic)), 404, "topic_not_found")


@row("1.0 payload too large")
def test_a_chunked_body_over_the_limit_is_413(small, topic):
    connection = small.connect()
    try:
        with contextlib.suppress(ConnectionError):
            connection.request(
                "POST",
                at(topic),
                body=iter([b'{"records":[{"data":"', b"x" * 60_000, b'"}]}']),
                headers={"Content-Type": "application/json"},
                encode_chunked=True,
            )
        assert connection.getresponse().status == 413
    finally:
        connection.close()


@row("1.0 payload too large")
def test_a_body_at_the_limit_is_taken(small, topic):
    frame = b'{"records":[{"data":1}],"pad":"%b"}'
    body = frame % (b"x" * (50_000 - len(frame) + 2))
    assert len(body) == 50_000
    assert small.post(at(topic), body).status == 201
    expect.refusal(small.post(at(topic), body + b" "), 413, "payload_too_large")


@pytest.fixture(scope="module")
def narrow(launch) -> Api:
    """A server with few streams and few requests at a time."""
    address = launch(
        API_KEYS="one,two,three",
        MAX_SSE_CONNECTIONS=3,
        MAX_SSE_CONNECTIONS_PER_KEY=2,
        MAX_INFLIGHT_PER_KEY=2,
    ).address
    return Api(address, "one")


def _stream(api: Api, path: str) -> EventStream:
    return EventStream(api.address, path, {"Authorization": f"Bearer {api.key}"})


@row("2 max_sse_connections_per_key", "1.0 retry-after")
def test_a_key_has_so_many_streams_and_gets_a_place_back(narrow, topic):
    narrow.make(topic, type="queue")
    path = narrow.watch(topic)
    _wait_for_no_streams(narrow)
    with _stream(narrow, path) as first, _stream(narrow, path) as second:
        assert first.status == second.status == 200
        with _stream(narrow, path) as third:
            expect.refusal(third.answer(), 429, "throttled")
        with _stream(narrow, at(topic, "work") + "?node=n") as work:
            expect.refusal(work.answer(), 429, "throttled")
        with pytest.raises(InvalidStatus) as caught:
            Socket(narrow.address, key="one")
        assert caught.value.response.status_code == 429
        with Socket(narrow.address, key="two") as other:
            other.send("ping")
            other.next("pong")
    until(lambda: _opens(narrow, path), "a place for a new stream")


@row("2 max_sse_connections", "1.0 retry-after")
def test_the_server_has_so_many_streams_sockets_too(narrow, topic):
    narrow.make(topic)
    _wait_for_no_streams(narrow)
    with contextlib.ExitStack() as stack:
        for key in ("one", "one", "two"):
            stack.enter_context(Socket(narrow.address, key=key))
        other = narrow.with_key("three")
        with _stream(other, other.watch(topic)) as stream:
            expect.refusal(stream.answer(), 429, "throttled", {"limit": "max_sse_connections"})
    path = other.watch(topic)
    until(lambda: _opens(other, path), "a place for a new stream")


def _opens(api: Api, path: str) -> bool:
    with _stream(api, path) as stream:
        return stream.status == 200


def _wait_for_no_streams(api: Api) -> None:
    """Wait until the streams of earlier tests are counted no more."""
    headers = {"Accept": "application/json"}
    until(lambda: api.get("/v0/metrics", headers).json["sse_connections"] == 0, "no streams")


@row("2 max_sse_connections")
def test_who_never_reads_a_stream_or_a_socket_gives_its_place_back(launch, topic):
    api = Api(launch(STREAM_STALL_MS=1_000).address)
    api.make(topic, type="queue")
    with (
        EventStream(api.address, api.watch(topic)) as deaf,
        EventStream(api.address, at(topic, "work") + "?node=n&max=1000") as worker,
        Socket(api.address, max_queue=1, compression=None) as socket,
        EventStream(api.address, api.watch(topic, heartbeat_ms=20)) as reader,
    ):
        socket.send("subscribe", topic=topic)
        for number in range(100):
            api.write(topic, [number, "x" * 200_000])
            [record] = reader.records(1)  # at once: a busy machine writes for longer than a stall
            assert record["data"][0] == number
        found = functools.partial(api.get, "/v0/metrics", {"Accept": "application/json"})
        until(lambda: reader.frame() and found().json["sse_connections"] == 1, "only the reader")
        assert deaf.status == worker.status == 200
    [job] = api.claim(topic, node="m")
    assert (job["$seq"], job["deliveries"]) == (1, 2)


@row("2 max_inflight_per_key", "1.0 retry-after")
def test_a_key_has_so_many_requests_at_a_time(narrow, topic):
    other = narrow.with_key("two")
    other.make(topic)
    waiting = [Later(lambda: _long_poll(narrow, topic)) for _ in range(2)]
    answer = until(
        lambda: (found := narrow.get(at(topic), touch="false")).status == 429 and found,
        "two requests in flight",
    )
    expect.refusal(answer, 429, "throttled", {"limit": "max_inflight_per_key"})
    assert other.get(at(topic)).status == 200, "another key is not concerned"
    assert narrow.get("/healthz").status == 200
    other.write(topic, "wake")
    for each in waiting:
        assert payloads(each.result()) == ["wake"]
    assert narrow.get(at(topic)).status == 200


def _long_poll(api: Api, topic: str) -> Any:
    """A long poll that tries again while another request is in its way."""
    body = {"wait_ms": 30_000}
    return until(
        lambda: (found := api.post(at(topic, "diff"), body)).status == 200 and found.json,
        "a place for a long poll",
        60,
    )


@row("2 max_inflight_per_key")
def test_streams_are_not_counted_as_requests_in_flight(narrow, topic):
    narrow.make(topic)
    path = narrow.watch(topic)
    _wait_for_no_streams(narrow)
    with _stream(narrow, path) as first, _stream(narrow, path) as second:
        first.next("caught-up")
        second.next("caught-up")
        assert narrow.get(at(topic)).status == 200
