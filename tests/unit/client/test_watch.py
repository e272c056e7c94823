"""Watches over real sockets that break: every record once, whatever happens in between."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.client import (
    AsyncClient,
    CaughtUp,
    Client,
    Position,
    Records,
    Tombstone,
    TopicDeleted,
)
from penstock.client.aio import watch as async_watch
from penstock.client.aio import work as async_work
from penstock.client.blocking import watch, work
from penstock.client.errors import Unreachable
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected
from penstock.protocol.errors import (
    InvalidRequest,
    NotAQueue,
    ServerUnavailable,
    TopicNotFound,
    Unauthorized,
)
from tests.unit.client.faces import FACES, named
from tests.unit.client.log_server import LogServer, wanted
from tests.unit.client.scripted import (
    CUT,
    DEADLINE_S,
    HANG,
    STREAM_HEAD,
    answered,
    chunk,
    failed,
    frame,
    in_turn,
    quick,
    scripted,
)

TOPICS = {"a": 5, "b": 3}
STREAM_BYTES = 1_020


@pytest.fixture(params=FACES, ids=named)
def face(request):
    return request.param


def last(seq):
    """Whether an event has the record that is waited for."""
    return lambda event: isinstance(event, Records) and event.to_seq >= seq


def everything(settings, topics):
    """What a blocking watch hands out until all that there is has come."""
    found = {name: [] for name in topics}
    with Client(settings) as client, client.watch(list(topics)) as watch:
        for event in watch:
            if isinstance(event, Records):
                found[event.topic] += [record.data for record in event.records]
            if {name: len(texts) for name, texts in found.items()} == topics:
                return found, watch
    raise AssertionError("the watch ended")


@pytest.mark.parametrize("first", range(0, STREAM_BYTES, 60))
def test_a_stream_cut_at_any_byte_goes_on_where_it_was(first):
    for cut in range(first, first + 60, 4):
        with scripted(LogServer(TOPICS, [cut, None])) as server:
            assert everything(quick(server.url), TOPICS)[0] == wanted(TOPICS)


def test_cut_after_cut_loses_and_doubles_nothing(face):
    model = LogServer({"a": 9}, [40, 200, 0, "lost", 333, "shutdown", "lost", 211, 250], batch=1)
    with scripted(model) as server:
        events, watch = face.watched(quick(server.url), last(9), "a")
    data = [record.data for e in events if isinstance(e, Records) for record in e.records]
    assert data == wanted({"a": 9})["a"]
    assert watch.reconnects >= 5


def test_frames_that_come_again_after_a_resume_are_dropped():
    with scripted(LogServer(TOPICS, [400, 500, 300, None], overlap=True)) as server:
        found, watch = everything(quick(server.url), TOPICS)
    assert found == wanted(TOPICS)
    assert watch.reconnects == 3


def test_a_new_session_begins_at_the_cursors_and_gives_the_epoch_back(face):
    model = LogServer({"a": 4}, [220, None])
    with scripted(model) as server:
        events, watch = face.watched(quick(server.url), last(4), "a")
    first, second = model.bodies
    assert first["topics"] == {"a": {"from_seq": 0}}
    assert second["topics"]["a"]["epoch"] == 5
    assert second["topics"]["a"]["from_seq"] == events[0].to_seq
    assert watch.positions == {"a": Position(4, 5)}


def test_tail_begins_behind_what_is_there_and_stays_there_after_a_resume(face):
    model = LogServer({"a": 4}, [10, None])
    with scripted(model) as server:
        events, _ = face.watched(quick(server.url), 1, "a", tail=True)
    assert events == [CaughtUp(topic="a", head_seq=4)]
    assert [body["topics"]["a"] for body in model.bodies] == [
        {"tail": True}, {"from_seq": 4, "epoch": 5},
    ]  # fmt: skip


def test_a_watch_begins_where_it_is_told_to():
    model = LogServer({"a": 4, "b": 4}, [])
    starts = {"a": 2, "b": Position(3, 5)}
    with scripted(model) as server, Client(quick(server.url)) as client:
        batch = next(client.watch(starts, node="me", tag="t*", prefixes=["c"]))
    assert [record.seq for record in batch.records] == [3, 4]
    (body,) = model.bodies
    assert body["topics"] == {"a": {"from_seq": 2}, "b": {"from_seq": 3, "epoch": 5}}
    assert (body["node"], body["tag"], body["prefixes"]) == ("me", "t*", ["c"])


def test_an_unknown_topic_ends_a_watch_before_it_began(face):
    with scripted(LogServer({"a": 1}, [])) as server, pytest.raises(TopicNotFound) as caught:
        face.watched(quick(server.url), 1, ["a", "none"])
    assert caught.value.detail == {"topic": "none"}


def test_a_topic_that_vanished_while_the_stream_was_down_is_an_event(face):
    model = LogServer({"a": 2, "b": 1}, [500, None])

    def answer(seen):
        if len(model.bodies) == 1 and seen.method == "POST":
            del model.topics["a"]
        return model(seen)

    with scripted(answer) as server:
        seen_gone = TopicDeleted(topic="a")
        _, watch = face.watched(quick(server.url), lambda event: event == seen_gone, ["a", "b"])
    assert set(watch.positions) == {"b"}


def session(*frames, then=HANG):
    """A server with one session, whose stream says this."""
    created = answered(200, {"wid": "w", "topics": {"a": {"from_seq": 0, "epoch": 1}}})
    stream = [STREAM_HEAD, chunk(b"".join(frames)), then]
    return lambda seen: created if seen.method == "POST" else stream


def record_frame(low, high):
    records = [{"$seq": n, "$ts": 1, "$tag": "t", "data": n, "meta": {"k": n}} for n in (low, high)]
    return frame("record", {
        "topic": "a", "from_seq": low - 1, "head_seq": 9, "records": records, "to_seq": high,
    })  # fmt: skip


def test_the_stream_ends_with_the_last_topic(face):
    gone = frame("topic-deleted", {"topic": "a", "head_seq": 0, "reason": "deleted"})
    with scripted(session(record_frame(1, 2), gone, then=CUT)) as server:
        events, watch = face.watched(quick(server.url), 9, "a")
    assert [type(event) for event in events] == [Records, TopicDeleted]
    assert watch.positions == {}


def test_every_kind_of_event_comes_typed(face):
    gap = {
        "topic": "a",
        "reason": "cap",
        "gap_from": 3,
        "gap_to": 5,
        "earliest_seq": 6,
        "head_seq": 9,
    }
    caught_up = {"topic": "a", "head_seq": 7}
    frames = [record_frame(1, 2), frame("tombstone", gap), record_frame(6, 7)]
    with scripted(session(*frames, frame("later", {}), frame("caught-up", caught_up))) as server:
        events, watch = face.watched(quick(server.url), 4, "a")
    assert [type(event) for event in events] == [Records, Tombstone, Records, CaughtUp]
    record = events[0].records[0]
    assert (record.seq, record.ts_ms, record.tag, record.data, record.meta) == (
        1,
        1,
        "t",
        1,
        {"k": 1},
    )
    assert (events[1].gap_from, events[1].gap_to, events[1].reason) == (3, 5, "cap")
    assert watch.positions["a"].from_seq == 7


def test_a_topic_made_anew_is_read_from_its_start(face):
    gap = {
        "topic": "a",
        "reason": "recreated",
        "gap_from": 1,
        "gap_to": 2,
        "earliest_seq": 1,
        "head_seq": 2,
    }
    with scripted(
        session(record_frame(7, 8), frame("tombstone", gap), record_frame(1, 2))
    ) as server:
        events, watch = face.watched(quick(server.url), 3, "a")
    assert [record.seq for record in events[2].records] == [1, 2]
    assert watch.positions["a"] == Position(2)


def test_silence_of_two_and_a_half_heartbeats_is_the_end_of_a_connection():
    model = LogServer({"a": 2}, [])
    streams = []

    def answer(seen):
        if seen.method == "GET" and not streams:
            streams.append(seen)
            return [STREAM_HEAD, HANG]
        return model(seen)

    with scripted(answer) as server, Client(quick(server.url)) as client:
        watch = client.watch("a", heartbeat_ms=1_000)
        assert watch._flow.core.silence_ms == 2_500
        watch._flow.core.silence_ms = 50
        assert next(watch).to_seq == 2
        assert watch.reconnects == 1


def test_a_refused_token_ends_a_watch(face):
    with scripted(in_turn(failed(401, "unauthorized"))) as server, pytest.raises(Unauthorized):
        face.watched(quick(server.url), 1, "a")


def test_a_server_that_stays_away_ends_a_watch_after_the_window(face):
    with scripted(LogServer({"a": 1}, [])) as server:
        url = server.url
    settings = quick(url, reconnect=Backoff(1, 5, 0.0, window_ms=50))
    with pytest.raises(Unreachable, match="connection refused"):
        face.watched(settings, 1, "a")


def test_a_throttled_session_is_asked_for_again(face):
    model = LogServer({"a": 2}, [])
    refusals = [failed(429, "throttled", "Retry-After: 0"), failed(503, "not_ready")]
    with scripted(lambda seen: refusals.pop() if refusals else model(seen)) as server:
        events, _ = face.watched(quick(server.url), 1, "a")
    assert events[0].to_seq == 2


def test_the_next_event_can_be_waited_for_a_while():
    with scripted(LogServer({"a": 2}, [])) as server, Client(quick(server.url)) as client:
        watch = client.watch("a")
        assert watch.next_event(20).to_seq == 2
        assert isinstance(watch.next_event(20), CaughtUp)
        assert watch.next_event(0.02) is None
        assert watch.next_event(0) is None


def test_an_async_watch_loses_nothing_when_a_wait_for_it_is_cancelled():
    async def run(url):
        found = []
        async with AsyncClient(quick(url)) as client, client.watch("a") as watch:
            while len(found) < 9:
                event = await watch.next_event(0.0005)
                if isinstance(event, Records):
                    found += [record.data for record in event.records]
        return found

    with scripted(LogServer({"a": 9}, [300, 100, None], batch=1)) as server:
        assert asyncio.run(run(server.url)) == wanted({"a": 9})["a"]


def test_another_thread_can_end_a_watch():
    with scripted(LogServer({"a": 2}, [])) as server, Client(quick(server.url)) as client:
        watch = client.watch("a")
        events = []
        thread = threading.Thread(target=lambda: events.extend(watch))
        thread.start()
        while len(events) < 2 and thread.is_alive():
            thread.join(0.001)
        watch.close()
        thread.join(20)
        assert not thread.is_alive()


def test_a_watch_of_nothing_or_of_both_tail_and_seqs_is_refused():
    client = Client()
    with pytest.raises(Rejected, match="nothing to watch"):
        client.watch([])
    with pytest.raises(InvalidRequest, match="either at the tail or after seqs"):
        client.watch({"a": 1}, tail=True)


def job_frame(seq):
    return frame("job", {
        "topic": "q", "$seq": seq, "lease_id": f"lease_{seq}", "deadline": 99, "$ts": 1,
        "deliveries": 1, "data": {"n": seq},
    })  # fmt: skip


def test_jobs_come_until_the_stream_is_lost_and_then_on():
    first_done = threading.Event()

    def first_stream():
        yield from (STREAM_HEAD, chunk(job_frame(1)))
        first_done.wait(DEADLINE_S)
        yield CUT

    streams = [
        first_stream(),
        [STREAM_HEAD, chunk(frame("error", {"code": "server_shutting_down", "error": "x"})), CUT],
        failed(503, "not_ready"),
        [STREAM_HEAD, chunk(job_frame(2)), HANG],
    ]
    settled = []

    def answer(seen):
        if seen.method == "GET":
            return streams.pop(0)
        settled.append((seen.path, seen.json()))
        first_done.set()
        counts = {"skipped": [], "ready": 0, "in_flight": 0}
        return answered(200, {"topic": "q", "acked": 1, "nacked": 1, **counts})

    with scripted(answer) as server, Client(quick(server.url)) as client:
        work = client.work("q", "me", count=3, lease_ms=60_000)
        assert next(work).ack()
        second = next(work)
        assert second.data == {"n": 2}
        with pytest.raises(ZeroDivisionError), second:
            raise ZeroDivisionError
    assert server.seen[0].target == "/v0/topics/q/work?node=me&max=3&lease_ms=60000"
    assert settled == [
        ("/v0/topics/q/ack", {"node": "me", "seqs": [1], "lease_ids": ["lease_1"]}),
        ("/v0/topics/q/nack", {"node": "me", "seqs": [2], "lease_ids": ["lease_2"],
                               "reason": "ZeroDivisionError"}),
    ]  # fmt: skip


def test_a_job_that_fails_goes_back_without_a_reason_where_older_nodes_cannot_read_it():
    nacked = []

    def answer(seen):
        if seen.method == "GET":
            return [STREAM_HEAD, chunk(job_frame(1)), HANG]
        nacked.append(seen.json())
        if "reason" in nacked[-1]:
            return failed(409, "upgrade_pending")
        return answered(200, {"topic": "q", "nacked": 1, "skipped": [], "ready": 1, "in_flight": 0})

    with scripted(answer) as server, Client(quick(server.url)) as client:
        work = client.work("q", "me", lease_ms=60_000)
        with pytest.raises(ZeroDivisionError), next(work):
            raise ZeroDivisionError
    assert [each.get("reason") for each in nacked] == ["ZeroDivisionError", None]


@pytest.mark.parametrize("kind", ["work", "watch"])
def test_a_stream_that_was_idle_since_its_last_outage_has_all_its_time_for_the_next(
    kind, monkeypatch
):
    now_s = [1_000.0]
    for module in (async_work, async_watch, work, watch):
        monkeypatch.setattr(module, "monotonic", lambda: now_s[0])
    jobs = in_turn(
        [STREAM_HEAD, CUT],
        [STREAM_HEAD, chunk(b"retry: 2000\n\n: hb\n\n"), CUT],
        [STREAM_HEAD, chunk(job_frame(1)), HANG],
    )
    records = LogServer({"a": 1}, [0, 19, None])  # the second says what the one for jobs does

    def answer(seen):
        if seen.method == "GET":
            now_s[0] += 40  # more than there is to come back in
        return jobs(seen) if kind == "work" else records(seen)

    with (
        scripted(answer) as server,
        Client(quick(server.url)) as client,
        client.work("q", "me", lease_ms=60_000) if kind == "work" else client.watch("a") as stream,
    ):
        assert next(stream) is not None


def test_a_topic_that_is_no_queue_any_more_ends_the_work():
    error = frame("error", {"code": 409, "error": "topic is no longer a queue", "topic": "q"})
    with (
        scripted(in_turn([STREAM_HEAD, chunk(error), CUT])) as server,
        Client(quick(server.url)) as client,
        pytest.raises(NotAQueue),
    ):
        next(client.work("q", "me", lease_ms=60_000))


def test_a_watch_and_a_work_tell_their_trouble_while_they_connect_again():
    heard = []
    streams = [failed(503, "not_ready"), [STREAM_HEAD, chunk(job_frame(1)), HANG]]
    with scripted(lambda _: streams.pop(0)) as server:
        settings = quick(server.url, reconnect=Backoff(300, 300, 0.0, 30_000))
        with (
            Client(settings, on_trouble=heard.append) as client,
            client.work("q", "me", lease_ms=60_000) as work,
        ):
            while work.trouble is None:
                assert work.next_job(0.001) is None
            assert work.trouble == "it is not_ready"
            assert work.next_job(30).seq == 1
            assert work.trouble is None
            assert work.next_job(0.001) is None
    assert heard == ["it is not_ready", None]
    with Client(quick("http://127.0.0.1:9")) as client, client.watch("a") as watch:
        while watch.trouble is None:
            assert watch.next_event(0.05) is None
        assert "127.0.0.1:9: connection refused" in watch.trouble


def test_the_async_face_tells_its_trouble_too():
    async def run(settings, heard):
        async with AsyncClient(settings, on_trouble=heard.append) as client:
            async with client.work("q", "me", lease_ms=60_000) as work:
                while work.trouble is None:
                    assert await work.next_job(0.001) is None
                assert work.trouble == "it is not_ready"
                assert (await work.next_job(30)).seq == 1
                assert work.trouble is None
            async with client.watch("a") as watch:
                while watch.trouble is None:
                    assert await watch.next_event(0.05) is None
                assert watch.trouble == "it is shutting_down"

    heard = []
    streams = [failed(503, "not_ready"), [STREAM_HEAD, chunk(job_frame(1)), HANG]]
    answer = in_turn(failed(503, "shutting_down"))
    with scripted(lambda s: streams.pop(0) if "work" in s.target else answer(s)) as server:
        asyncio.run(run(quick(server.url, reconnect=Backoff(300, 300, 0.0, 30_000)), heard))
    assert heard == ["it is not_ready", None, "it is shutting_down"]


@pytest.mark.parametrize(
    "last_words",
    [b"retry: 2000\n\n", b"retry: 2000\n\n" + frame("error", {"code": "internal", "error": "no"})],
    ids=["nothing", "an error"],
)
def test_streams_that_end_as_soon_as_they_begin_are_given_up_after_the_window(face, last_words):
    """Else one that fails for good would be opened for ever, as fast as the first time."""
    model = LogServer({"a": 1}, [])
    dies = [STREAM_HEAD, chunk(last_words), CUT]
    opened = []

    def answer(seen):
        if seen.method == "POST":
            return model(seen)
        opened.append(seen)
        return dies if len(opened) < 1_000 else failed(401, "unauthorized")

    with scripted(answer) as server:
        settings = quick(server.url, reconnect=Backoff(1, 5, 0.0, window_ms=50))
        with pytest.raises(ServerUnavailable):
            face.watched(settings, 1, "a")
        with pytest.raises(ServerUnavailable), Client(settings) as client:
            next(client.work("q", "me", lease_ms=60_000))


def test_a_heartbeat_is_enough_to_be_a_stream_that_works():
    beats = [STREAM_HEAD, chunk(b"retry: 2000\n\n: hb\n\n"), CUT]
    opened = []

    def answer(_):
        opened.append(1)
        return beats if len(opened) < 20 else [STREAM_HEAD, chunk(job_frame(1)), HANG]

    with scripted(answer) as server:
        settings = quick(server.url, reconnect=Backoff(10, 10, 0.0, window_ms=50))
        with Client(settings) as client, client.work("q", "me", lease_ms=60_000) as work:
            assert next(work).seq == 1
