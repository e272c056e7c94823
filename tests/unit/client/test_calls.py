"""Calls against a scripted server, through both faces of the client."""

from __future__ import annotations

import asyncio
import gc
import gzip
import inspect
import json
import os
import pickle
import socket
import threading

import pytest

from penstock.client import AsyncClient, Client, ClientSettings, Record
from penstock.client.aio.tables import AsyncLake, AsyncTables
from penstock.client.blocking.tables import Lake, Tables
from penstock.client.errors import (
    ClientClosed,
    Disconnected,
    NotPenstock,
    TimedOut,
    Unreachable,
    answer_error,
)
from penstock.kernel.errors import Busy, Rejected, Unavailable, Unknown
from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.errors import (
    InvalidRequest,
    NotReady,
    Outcome,
    OutcomeUnknown,
    Throttled,
    TopicFull,
    TopicNotFound,
)
from tests.unit.client.faces import FACES, named
from tests.unit.client.scripted import (
    CUT,
    DEADLINE_S,
    HANG,
    RESET,
    WRITTEN,
    answered,
    failed,
    in_turn,
    quick,
    scripted,
)
from tests.waiting import until, wait_until

HEALTH = {"status": "ok", "version": "1", "uptime_ms": 5}


@pytest.fixture(params=FACES, ids=named)
def face(request):
    return request.param


def test_a_write_sends_its_records_and_gives_back_their_seqs(face):
    with scripted(in_turn(answered(201, WRITTEN))) as server:
        records = [{"n": 1}, Record("x", tag="t", node="n", meta={"k": 1}), b'{"raw" : true}']
        written = face.call(quick(server.url), "write", "a:b", records, node="m", create=True)
    assert (written.first_seq, written.seqs, written.created) == (1, [1], True)
    (seen,) = server.seen
    assert (seen.method, seen.target) == ("POST", "/v0/topics/a:b")
    assert seen.headers["content-type"] == "application/json"
    body = seen.json()
    assert len(body.pop("idempotency_key")) == 32
    assert body == {
        "node": "m",
        "create": True,
        "records": [
            {"data": {"n": 1}},
            {"data": "x", "tag": "t", "node": "n", "meta": {"k": 1}},
            {"data": {"raw": True}},
        ],
    }
    assert b'{"raw" : true}' in seen.body


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("put_topic", ("a",), {"durabilty": "fsync"}),
        ("write", ("a", [1]), {"config": {"durabilty": "fsync"}}),
    ],
)
def test_an_option_of_a_topic_that_nobody_knows_is_refused_with_the_nearest(
    face, name, args, options
):
    with scripted(in_turn(answered(200, WRITTEN))) as server:
        with pytest.raises(InvalidRequest) as caught:
            face.call(quick(server.url), name, *args, **options)
        assert not server.seen
    assert str(caught.value) == ("topics have no option 'durabilty': did you mean durability?")


def test_a_writer_refuses_options_that_nobody_knows_when_it_is_made():
    with Client() as client, pytest.raises(InvalidRequest, match="did you mean cap_bytes"):
        client.writer("a", config={"cap_byte": 1})
    with pytest.raises(InvalidRequest, match="did you mean cap_bytes"):
        AsyncClient().writer("a", config={"cap_byte": 1})


def test_one_connection_serves_call_after_call(face):
    with scripted(in_turn(answered(200, HEALTH))) as server:
        face.calls(quick(server.url), *[("health", (), {})] * 5)
        assert server.connections == 1
        assert len(server.seen) == 5


def test_an_answer_that_says_close_is_followed_by_another_connection(face):
    with scripted(in_turn([*answered(200, HEALTH, "Connection: close"), CUT])) as server:
        face.calls(quick(server.url), *[("health", (), {})] * 3)
        assert server.connections == 3


def test_a_connection_that_the_server_ended_while_idle_is_not_used_again(face):
    with scripted(in_turn([*answered(200, HEALTH), CUT])) as server:
        steps = [("metrics", (), {})] * 4
        assert len(face.calls(quick(server.url), *steps)) == 4


@pytest.mark.parametrize("ending", [CUT, RESET], ids=["closed", "reset"])
@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_write_cut_off_anywhere_is_sent_again_with_the_same_key(face, ending, cut):
    whole = answered(200, WRITTEN)[0]
    with scripted(in_turn([whole[:cut], ending], answered(200, WRITTEN))) as server:
        written = face.call(quick(server.url), "write", "a", [1])
    assert written.first_seq == 1
    keys = [seen.json()["idempotency_key"] for seen in server.seen]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_write_without_a_key_is_not_sent_again_when_its_answer_is_lost(face):
    with scripted(in_turn([CUT], answered(200, WRITTEN))) as server:
        with pytest.raises(OutcomeUnknown) as caught:
            face.call(quick(server.url), "write", "a", [1], idempotency_key=None)
        assert len(server.seen) == 1
    assert isinstance(caught.value, Unknown)
    assert caught.value.idempotency_key is None
    assert isinstance(caught.value.__cause__, Disconnected)


def test_a_write_that_never_gets_an_answer_ends_unknown_and_tells_its_key(face):
    with scripted(in_turn([CUT])) as server:
        settings = quick(server.url, tries_max=3)
        with pytest.raises(OutcomeUnknown, match="mine") as caught:
            face.call(settings, "write", "a", [1], idempotency_key="mine")
        assert len(server.seen) == 3
    assert caught.value.idempotency_key == "mine"


CHANGES = [
    ("put_topic", ("a",)),
    ("delete_topic", ("a",)),
    ("delete_records", ("a",), {"before_seq": 3}),
    ("claim", ("q", "n")),
    ("ack", ("q", "n", [1])),
    ("nack", ("q", "n", [1])),
    ("extend", ("q", "n", [1]), {"lease_ms": 1_000}),
    ("put_router", ("r", "a", "b")),
    ("delete_router", ("r",)),
    ("commit", ("s", Commit(session="x", local_seq=1, writes=(CommitWrite("e", set=1),)))),
    ("hold_stage", ("parse",)),
    ("backup", ("/b",), {"wait_ms": 0}),
]


@pytest.mark.parametrize("change", CHANGES, ids=[name for name, *_ in CHANGES])
def test_a_change_without_an_answer_ends_unknown_whatever_it_is(face, change):
    name, given, *options = change
    with scripted(in_turn([CUT])) as server:
        with pytest.raises(OutcomeUnknown) as caught:
            face.call(quick(server.url, tries_max=2), name, *given, **dict(*options))
        assert server.seen
    assert caught.value.outcome is Outcome.UNKNOWN
    assert caught.value.status == 0, "there was no answer"


@pytest.mark.parametrize(
    "answer",
    [
        [answered(200, WRITTEN)[0][:40], CUT],
        [HANG],
        failed(500, "internal"),
        failed(504, "outcome_unknown"),
        answered(200, b"<html>"),
        answered(502, b"<html>"),
        answered(503, b"<html>"),
    ],
    ids=["half", "silent", "500", "504", "page", "proxy 502", "proxy 503"],
)
@pytest.mark.parametrize("key", [None, "mine"])
def test_an_answer_that_is_not_certain_leaves_a_write_unknown(face, answer, key):
    with scripted(in_turn(answer)) as server:
        silence_s = 0.05 if HANG in answer else DEADLINE_S
        settings = quick(server.url, tries_max=2, read_timeout_s=silence_s)
        with pytest.raises(OutcomeUnknown) as caught:
            face.call(settings, "write", "a", [1], idempotency_key=key)
        wait_until(lambda: server.seen, "the server to see the request")
        assert len(server.seen) == 1 or key is not None
    assert caught.value.idempotency_key == key


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "throttled", Throttled),
        (503, "not_ready", NotReady),
        (404, "topic_not_found", TopicNotFound),
    ],
)
@pytest.mark.parametrize("change", CHANGES, ids=[name for name, *_ in CHANGES])
def test_a_change_that_was_refused_did_nothing(face, change, status, code, kind):
    name, given, *options = change
    refusal = failed(status, code, "Retry-After: 99")
    with scripted(in_turn(refusal)) as server, pytest.raises(kind) as caught:
        face.call(quick(server.url), name, *given, **dict(*options))
    assert caught.value.outcome is Outcome.DEFINITE
    assert not isinstance(caught.value, Unknown)


def test_a_change_that_was_never_sent_did_nothing(face):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(Unreachable) as caught:
        face.call(quick(url, tries_max=2), "write", "a", [1], idempotency_key=None)
    assert caught.value.outcome is Outcome.DEFINITE


@pytest.mark.parametrize(
    ("refusal", "is_told"),
    [
        (failed(422, "topic_full"), True),
        (failed(404, "topic_not_found"), False),
        (failed(429, "throttled", "Retry-After: 99"), False),
        (failed(401, "unauthorized"), False),
        (answered(404, b"<html>"), False),
    ],
    ids=["full", "no topic", "throttled", "no key", "a proxy"],
)
def test_only_what_is_said_after_a_look_for_the_key_tells_of_an_earlier_try(face, refusal, is_told):
    with scripted(in_turn([CUT], refusal)) as server:
        with pytest.raises(TopicFull if is_told else OutcomeUnknown) as caught:
            face.call(quick(server.url), "write", "a", [1], idempotency_key="mine")
        assert len(server.seen) == 2
    assert isinstance(caught.value, Unknown) == (not is_told)


def test_a_topic_that_is_gone_when_its_deletion_is_repeated_may_have_been_deleted_by_it(face):
    answers = in_turn([CUT], failed(404, "topic_not_found"))
    with scripted(answers) as server, pytest.raises(OutcomeUnknown) as caught:
        face.call(quick(server.url), "delete_topic", "a")
    assert isinstance(caught.value.__cause__, TopicNotFound)


def test_a_read_that_never_gets_an_answer_ends_with_what_was_wrong(face):
    with scripted(in_turn([CUT])) as server, pytest.raises(Disconnected, match=server.url):
        face.call(quick(server.url, tries_max=2), "get_topic", "a")


def test_a_claim_is_not_sent_again_when_its_answer_is_lost(face):
    with scripted(in_turn([CUT])) as server:
        with pytest.raises(OutcomeUnknown):
            face.call(quick(server.url), "claim", "q", "n")
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "code", "headers", "detail"),
    [
        (429, "throttled", ("Retry-After: 0",), {}),
        (429, "throttled", ("Retry-After: 99",), {"retry_after_ms": 1}),
        (429, "throttled", ("Retry-After: Sun, 06 Nov 1994 08:49:37 GMT",), {}),
        (429, "throttled", ("Retry-After: soon",), {}),
        (503, "not_ready", ("Retry-After: 0",), {"replay_progress": 0.5}),
        (503, "shutting_down", (), {}),
        (500, "internal", (), {}),
    ],
)
def test_a_server_that_cannot_now_is_asked_again(face, status, code, headers, detail):
    refusal = failed(status, code, *headers, **detail)
    with scripted(in_turn(refusal, refusal, answered(200, WRITTEN))) as server:
        assert face.call(quick(server.url), "write", "a", [1]).first_seq == 1
        assert len(server.seen) == 3


def test_a_wish_to_wait_beyond_the_deadline_ends_the_call_at_once(face):
    with scripted(
        in_turn(failed(429, "throttled", "Retry-After: 60", limit="max_topics"))
    ) as server:
        with pytest.raises(Throttled) as caught:
            face.call(quick(server.url, timeout_s=20), "put_topic", "a")
        assert len(server.seen) == 1
    assert isinstance(caught.value, Busy)
    assert (caught.value.status, caught.value.retry_after_ms) == (429, 60_000)
    assert caught.value.detail == {"limit": "max_topics"}


def test_a_date_to_wait_for_beyond_the_deadline_ends_the_call_at_once(face):
    refusal = failed(429, "throttled", "Retry-After: Fri, 31 Dec 2999 23:59:59 GMT")
    with scripted(in_turn(refusal)) as server:
        with pytest.raises(Throttled):
            face.call(quick(server.url, timeout_s=20), "put_topic", "a")
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7_500),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7_500),
        ("Sun Nov  6 08:49:37 1994", 7_500),
        ("Sun, 06 Nov 1994 08:49:29 GMT", 0),
        ("7", 7_000),
        ("0", 0),
        ("-1", None),
        ("1.5", None),
        ("Sun, 06 Nov", None),
        ("Sun, 66 Nov 1994 08:49:37 GMT", None),
        ("", None),
    ],
)
def test_a_wish_to_wait_is_in_seconds_or_a_date(text, expected_ms):
    now_ms = 784_111_769_500  # 08:49:29.5
    error = answer_error(429, b"", {"retry-after": text}, now_ms=now_ms)
    assert isinstance(error, Throttled)
    assert error.retry_after_ms == expected_ms


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(404, "topic_not_found", TopicNotFound), (422, "topic_full", TopicFull)],
)
def test_a_refusal_is_raised_by_its_code_and_not_tried_again(face, status, code, kind):
    with scripted(in_turn(failed(status, code, topic="a"))) as server:
        with pytest.raises(kind) as caught:
            face.call(quick(server.url), "write", "a", [1], create=False)
        assert len(server.seen) == 1
    assert (caught.value.code, caught.value.status) == (code, status)
    assert caught.value.detail == {"topic": "a"}


def test_nobody_at_the_address_is_said_in_words(face):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(Unreachable) as caught:
        face.call(quick(url, tries_max=2), "get_topic", "a")
    assert str(caught.value) == f"cannot connect to {url}: connection refused"
    assert isinstance(caught.value, Unavailable)


def test_a_server_that_comes_up_late_is_found(face):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    late: list[socket.socket] = []

    def serve() -> None:
        listener = socket.create_server(("127.0.0.1", port))
        listener.settimeout(DEADLINE_S)
        late.append(listener)
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(answered(200, WRITTEN)[0])

    timer = threading.Timer(0.1, serve)
    timer.start()
    try:
        url = f"http://127.0.0.1:{port}"
        assert face.call(quick(url), "write", "a", [1]).first_seq == 1
    finally:
        timer.join()
        late[0].close()


def test_silence_is_noticed(face):
    with scripted(in_turn([b"HTTP/1.1 200 OK\r\n", HANG])) as server:
        settings = quick(server.url, tries_max=2, read_timeout_s=0.05)
        with pytest.raises(TimedOut, match="did not answer"):
            face.call(settings, "get_topic", "a")


def test_slow_but_steady_bytes_are_no_silence(face):
    whole = answered(200, HEALTH)[0]
    with scripted(in_turn([whole[i : i + 1] for i in range(len(whole))])) as server:
        assert face.call(quick(server.url), "health").status == "ok"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ([b"220 mail.example ESMTP\r\n"], NotPenstock, "220 mail"),
        (answered(200, b"<html>"), NotPenstock, "html"),
        (answered(404, b"<html>"), Rejected, "what answered at http://127"),
    ],
    ids=["mail", "page", "missing page"],
)
def test_something_else_at_the_address_is_told_apart(face, answer, kind, words):
    with scripted(in_turn(answer)) as server, pytest.raises(kind, match=words):
        face.call(quick(server.url), "get_topic", "a")


def test_ready_tells_at_once_that_the_server_is_not(face):
    with scripted(
        in_turn(failed(503, "not_ready", "Retry-After: 1", replay_progress=0.25))
    ) as server:
        with pytest.raises(NotReady) as caught:
            face.call(quick(server.url), "ready")
        assert len(server.seen) == 1
    assert caught.value.detail == {"replay_progress": 0.25}


def test_bodies_are_compressed_both_ways_when_asked_to(face):
    body = gzip.compress(json.dumps(WRITTEN).encode())
    with scripted(in_turn(answered(200, body, "Content-Encoding: gzip"))) as server:
        settings = quick(server.url, gzip=True, gzip_bytes_min=10)
        assert face.call(settings, "write", "a", ["x" * 100]).first_seq == 1
    (seen,) = server.seen
    assert seen.headers["accept-encoding"] == "gzip"
    assert json.loads(gzip.decompress(seen.body))["records"] == [{"data": "x" * 100}]


def test_the_token_is_sent_and_the_base_path_kept(face):
    with scripted(in_turn(answered(200, HEALTH))) as server:
        settings = ClientSettings(server.url + "/base/", api_key="secret")
        face.call(settings, "health")
    (seen,) = server.seen
    assert seen.target == "/base/v0/health"
    assert seen.headers["authorization"] == "Bearer secret"


def test_pages_are_asked_for_until_the_last(face):
    row = {"head_seq": 1, "earliest_seq": 1, "count": 1, "bytes": 7, "durable": False}
    rows = [row | {"topic": name, "effective_priority": 0} for name in "abc"]
    pages = [
        answered(200, {"topics": rows[:2], "next_cursor": "c+/="}),
        answered(200, {"topics": rows[2:]}),
    ]
    with scripted(in_turn(*pages)) as server:
        found = face.gathered(quick(server.url), "list_topics", "p", page_size=2)
    assert [row.topic for row in found] == ["a", "b", "c"]
    assert found[0].size_bytes == 7
    assert [seen.target for seen in server.seen] == [
        "/v0/topics?prefix=p&page_size=2",
        "/v0/topics?prefix=p&page_size=2&cursor=c%2B%2F%3D",
    ]


def page(seqs, next_from_seq, head_seq):
    return answered(200, {
        "topic": "a", "records": [{"$seq": n, "$ts": 5, "data": {"n": n}} for n in seqs],
        "next_from_seq": next_from_seq, "head_seq": head_seq, "earliest_seq": 1,
        "caught_up": next_from_seq == head_seq, "tombstone": None, "lag": 0, "epoch": 9,
        "performance": {"server_total_ms": 0.1, "records_scanned": 2},
    })  # fmt: skip


def test_reading_goes_on_from_the_last_seq_looked_at_until_caught_up(face):
    with scripted(in_turn(page([1, 2], 3, 6), page([], 5, 6), page([6], 6, 6))) as server:
        diffs = face.gathered(quick(server.url), "read", "a", from_ts=77, tag="t*", page_size=2)
    assert [[record.data["n"] for record in diff.records] for diff in diffs] == [[1, 2], [], [6]]
    first, second, third = server.seen
    assert first.target == "/v0/topics/a/diff?from_ts=77"
    assert second.target == "/v0/topics/a/diff"
    assert first.json()["tag"] == "t*"
    assert [seen.json()["from_seq"] for seen in (second, third)] == [3, 5]
    assert second.json()["epoch"] == 9


def test_a_long_poll_may_take_as_long_as_it_asked_for(face):
    answers = iter([page([], 0, 0)])
    gate = threading.Event()

    def slowly(_):
        gate.wait(0.3)
        return next(answers)

    with scripted(slowly) as server:
        settings = quick(server.url, read_timeout_s=0.05, timeout_s=0.1)
        assert face.call(settings, "diff", "a", wait_ms=20_000).caught_up


def test_bad_arguments_are_refused_before_anything_is_sent(face):
    with scripted(in_turn(answered(200, WRITTEN))) as server:
        for records, words in [
            ({"a": 1}, "records must be a list, not one dict"),
            ("text", "not one str"),
            (5, "not one int"),
            ([object()], "cannot be encoded as JSON|Encoding objects"),
            ([b"{bad"], "must be JSON text"),
            ([b'1},{"data":2'], "must be JSON text"),
        ]:
            with pytest.raises(InvalidRequest, match=words):
                face.call(quick(server.url), "write", "a", records)
        with pytest.raises(InvalidRequest, match="the name is empty"):
            face.call(quick(server.url), "get_topic", "")
        assert server.seen == []


def test_more_calls_than_connections_wait_their_turn():
    async def run(settings):
        async with AsyncClient(settings) as client:
            await asyncio.gather(*[client.health() for _ in range(20)])

    with scripted(in_turn(answered(200, HEALTH))) as server:
        asyncio.run(run(quick(server.url, connections_max=3)))
        assert server.connections <= 3
        assert len(server.seen) == 20
    with scripted(in_turn(answered(200, HEALTH))) as server:
        with Client(quick(server.url, connections_max=3)) as client:
            threads = [threading.Thread(target=client.health) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert server.connections <= 3
        assert len(server.seen) == 20


def test_a_cancelled_call_takes_its_connection_with_it():
    async def run(settings):
        async with AsyncClient(settings) as client:
            task = asyncio.create_task(client.get_topic("a"))
            await until(lambda: server.seen, "the request")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.health()

    with scripted(in_turn([HANG], answered(200, HEALTH))) as server:
        asyncio.run(run(quick(server.url, connections_max=1)))
        assert server.connections == 2


def test_a_call_that_is_cancelled_just_as_its_turn_comes_is_only_cancelled():
    async def run(settings):
        async with AsyncClient(settings) as client:
            tasks = [asyncio.create_task(client.get_topic("a")) for _ in range(2)]
            await until(lambda: server.seen, "the request")
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
            await client.health()

    with scripted(in_turn([HANG], answered(200, HEALTH))) as server:
        asyncio.run(run(quick(server.url, connections_max=1)))


def test_closing_a_client_ends_the_calls_under_way():
    with scripted(in_turn([HANG])) as server:
        client = Client(quick(server.url))
        errors = []

        def call():
            try:
                client.write("a", [1])
            except OutcomeUnknown as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while not server.seen:
            thread.join(0.001)
        client.close()
        thread.join(DEADLINE_S)
        assert len(errors) == 1
        with pytest.raises(ClientClosed):
            client.health()


def test_a_deadline_of_its_own_counts_also_where_the_server_is_asked_to_wait_longer():
    async def asked(settings):
        async with AsyncClient(settings) as client:
            await client.within(0.5).diff("a", wait_ms=60_000)

    with scripted(in_turn([HANG])) as server:
        with Client(quick(server.url)) as client, pytest.raises(TimedOut):
            client.within(0.5).diff("a", wait_ms=60_000)
        with pytest.raises(TimedOut):
            asyncio.run(asked(quick(server.url)))


async def once(client):
    await client.health()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the first loop's, which nobody closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_async_client_serves_one_loop_after_the_other():
    with scripted(in_turn(answered(200, HEALTH))) as server:
        client = AsyncClient(quick(server.url))
        for _ in range(2):
            asyncio.run(once(client))
        assert server.connections == 2
    del client
    gc.collect()


def test_the_blocking_client_works_inside_a_running_loop():
    async def cell(client):
        return client.health().status

    with scripted(in_turn(answered(200, HEALTH))) as server, Client(quick(server.url)) as client:
        assert asyncio.run(cell(client)) == "ok"


def test_a_forked_child_uses_connections_of_its_own():
    with scripted(in_turn(answered(200, HEALTH))) as server, Client(quick(server.url)) as client:
        client.health()
        child = os.fork()
        if child == 0:
            try:
                client.health()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        client.health()
        assert [seen.connection for seen in server.seen] == [1, 2, 1]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_is_pickled_by_its_settings(kind):
    client = kind("http://127.0.0.1:4001", api_key="t").within(7)
    copy = pickle.loads(pickle.dumps(client))
    assert copy.settings == client.settings
    assert copy.settings.timeout_s == 7


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(OutcomeUnknown("text", status=500, idempotency_key="k", a=1)))
    assert (str(error), error.status, error.idempotency_key, error.detail) == (
        "text", 500, "k", {"a": 1, "idempotency_key": "k"},
    )  # fmt: skip


def public(kind):
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("one", "other"), [(Client, AsyncClient), (Tables, AsyncTables), (Lake, AsyncLake)]
)
def test_both_faces_have_the_same_methods_arguments_and_docstrings(one, other):
    blocking, asynchronous = public(one), public(other)
    assert set(asynchronous) - {"aclose"} == set(blocking) - {"close"}
    for name in set(blocking) & set(asynchronous) - {"settings", "tables", "lake"}:
        ours, theirs = blocking[name], asynchronous[name]
        assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters, name
        assert inspect.getdoc(ours) == inspect.getdoc(theirs), name
        assert inspect.getdoc(ours), name


@pytest.mark.parametrize(
    "url",
    ["4000", "ftp://a", "http://", "http://a:99999", "http://a b", "http://a\r\n", 4711],
)
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(Rejected):
        Client(url)


@pytest.mark.parametrize(
    "short", ["localhost:4000", "127.0.0.1:4000", "[::1]:4000", "a-b.example:1"]
)
def test_a_host_and_a_port_are_a_url(short):
    assert ClientSettings(short).url == f"http://{short}"
    assert ClientSettings(short).address.port == int(short.rpartition(":")[2])
