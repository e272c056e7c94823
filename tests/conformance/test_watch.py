"""1.4 Watch: sessions and their streams of server-sent events."""

from __future__ import annotations

import base64
import json
import re
import time

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.streams import EventStream
from tests.conformance.wire import DEADLINE_S, at, done, payloads, seqs

RECORD = {"topic", "from_seq", "to_seq", "head_seq", "records"}


def cursors(frame) -> dict[str, int]:
    """The session map that an id holds."""
    text = frame.id + "=" * (-len(frame.id) % 4)
    return json.loads(base64.urlsafe_b64decode(text))


def event_id(**map_: int) -> str:
    raw = json.dumps(map_, sort_keys=True, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


NESTED = base64.urlsafe_b64encode(b"[" * 2_000 + b"]" * 2_000).decode()


@pytest.fixture
def stream(api):
    """Opens streams and closes them after the test."""
    opened = []

    def open_stream(path, headers=None, **options):
        opened.append(EventStream(api.address, path, headers, **options))
        return opened[-1]

    yield open_stream
    for each in opened:
        each.close()


@row("1.4 POST")
def test_a_session_tells_where_its_stream_is(api, topic):
    api.make(topic, cap_records=2)
    api.write(topic, 1, 2, 3)
    answer = api.post("/v0/watch", {"topics": {topic: {"from_seq": 1}}})
    body = expect.success(answer, expect.WATCH)
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", body["wid"])
    assert body["stream_url"] == "/v0/watch/" + body["wid"]
    assert body["session_ttl_ms"] == 300_000
    expect.keys(body["topics"][topic], expect.WATCH_TOPIC)
    shown = {key: body["topics"][topic][key] for key in expect.WATCH_TOPIC}
    assert shown == {"from_seq": 1, "head_seq": 3, "earliest_seq": 2}


@row("1.4 POST")
def test_every_session_has_an_id_of_its_own(api, topic):
    api.make(topic)
    assert len({api.watch(topic) for _ in range(5)}) == 5


@row("1.4 POST errors")
@pytest.mark.parametrize("body", [{}, {"topics": {}}, {"topics": None}])
def test_a_session_without_topics_is_400(api, body):
    expect.refusal(api.post("/v0/watch", body), 400, "invalid_request")


@row("1.4 POST errors")
def test_a_session_has_at_most_256_topics(api, topic):
    api.make(topic)
    names = {f"{topic}:{number}": {} for number in range(257)}
    expect.refusal(api.post("/v0/watch", {"topics": names}), 400, "invalid_request")
    del names[f"{topic}:0"]
    answer = api.post("/v0/watch", {"topics": {**names, topic: {}}}, lenient="true")
    expect.refusal(answer, 400, "invalid_request")
    del names[f"{topic}:1"]
    body = done(api.post("/v0/watch", {"topics": {**names, topic: {}}}, lenient="true"))
    assert list(body["topics"]) == [topic]


@row("1.4 POST errors")
def test_an_unknown_topic_is_404(api, topic, name):
    api.make(topic)
    missing = name()
    answer = api.post("/v0/watch", {"topics": {topic: {}, missing: {}}})
    expect.refusal(answer, 404, "topic_not_found", {"topic": missing})


@row("1.4 POST lenient")
def test_a_lenient_session_drops_unknown_topics(api, topic, name, stream):
    api.write(topic, "x")
    body = {"topics": {topic: {}, name(): {}}}
    found = done(api.post("/v0/watch", body, lenient="1"))
    assert list(found["topics"]) == [topic]
    frame = stream(found["stream_url"]).next("record")
    assert cursors(frame) == {topic: 1}


@row("1.4 tail")
def test_a_tail_begins_at_the_head(api, topic, stream):
    api.write(topic, 1, 2)
    found = done(api.post("/v0/watch", {"topics": {topic: {"tail": True, "from_seq": 1}}}))
    assert found["topics"][topic]["from_seq"] == 2
    watching = stream(found["stream_url"])
    assert expect.told(watching.next("caught-up").data) == {"topic": topic, "head_seq": 2}
    api.write(topic, 3)
    assert payloads(watching.next("record").data) == [3]


@row("1.4 GET accept")
@pytest.mark.parametrize("accept", ["text/html", "application/json", "text/plain, image/png"])
def test_who_does_not_accept_events_gets_406_before_the_session_is_looked_up(api, topic, accept):
    expect.refusal(api.get("/v0/watch/wid_none", {"Accept": accept}), 406, "not_acceptable")
    api.make(topic)
    expect.refusal(api.get(api.watch(topic), {"Accept": accept}), 406, "not_acceptable")


@row("1.4 GET accept")
@pytest.mark.parametrize(
    "accept", [None, "*/*", "text/event-stream", "text/html, text/event-stream;q=0.9"]
)
def test_who_accepts_events_or_anything_gets_them(api, topic, stream, accept):
    api.make(topic)
    watching = stream(api.watch(topic), accept=accept)
    assert watching.status == 200
    watching.next("caught-up")


@row("1.4 GET unknown")
@pytest.mark.parametrize("wid", ["none", "wid_none", "wid_" + "A" * 22])
def test_an_unknown_session_is_404(api, wid):
    expect.refusal(api.get(f"/v0/watch/{wid}"), 404, "not_found")


@row("1.4 GET headers")
def test_the_headers_of_a_stream(api, topic, stream):
    api.make(topic)
    headers = stream(api.watch(topic), {"Accept-Encoding": "gzip"}).headers
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Accel-Buffering"] == "no"
    assert headers["Content-Encoding"] is None


@row("1.4 frame format")
def test_a_stream_begins_with_retry_and_frames_have_three_lines(api, topic, stream):
    api.write(topic, "a")
    watching = stream(api.watch(topic))
    assert watching.frame().lines == ["retry: 2000"]
    lines = watching.frame().lines
    assert [line.split(" ")[0] for line in lines] == ["id:", "event:", "data:"]
    assert lines[1] == "event: record"
    assert lines[2].startswith('data: {"')


@row("1.4 frame id")
def test_the_id_holds_the_whole_map_sorted_and_compact(api, topic, stream):
    first, second = f"{topic}:a", f"{topic}:b"
    api.write(second, 1, 2)
    api.write(first, 1)
    watching = stream(api.watch(second, first))
    frames = [watching.next(), watching.next(), watching.next(), watching.next()]
    ids = [frame.id for frame in frames if frame.id is not None]
    assert ids[-1] == event_id(**{first: 1, second: 2})
    for frame in frames:
        assert frame.id is None or set(cursors(frame)) == {first, second}
        assert frame.id is not None or frame.event != "record"
    assert sorted(frame.event for frame in frames) == ["caught-up"] * 2 + ["record"] * 2


@row("1.4 record")
def test_a_record_frame(api, topic, stream):
    body = {"records": [{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}]}
    done(api.post(at(topic), body))
    watching = stream(api.watch(topic, include_tags=True))
    data = watching.next("record").data
    expect.keys(data, RECORD)
    assert (data["topic"], data["from_seq"], data["to_seq"], data["head_seq"]) == (topic, 0, 1, 1)
    [record] = data["records"]
    assert expect.recent_ms(record.pop("$ts"))
    assert record == {"$seq": 1, "$node": "n", "$tag": "t", "data": {"a": 1}, "meta": {"m": 2}}


@row("1.4 record", "1.4 caught-up")
def test_live_traffic_is_record_and_caught_up_in_turn(api, topic, stream):
    api.write(topic, 1)
    watching = stream(api.watch(topic))
    watching.next("record")
    assert expect.told(watching.next("caught-up").data) == {"topic": topic, "head_seq": 1}
    for number in (2, 3, 4):
        api.write(topic, number)
        data = watching.next("record").data
        assert (data["from_seq"], data["to_seq"], seqs(data)) == (number - 1, number, [number])
        assert expect.told(watching.next("caught-up").data) == {"topic": topic, "head_seq": number}


@row("1.4 caught-up")
def test_an_empty_topic_is_caught_up_at_once(api, topic, stream):
    api.make(topic)
    frame = stream(api.watch(topic)).next("caught-up")
    assert expect.told(frame.data) == {"topic": topic, "head_seq": 0}


@row("1.4 caught-up")
def test_a_batch_that_does_not_end_at_the_head_is_not_caught_up(api, topic, stream):
    api.write(topic, *range(5))
    frames = stream(api.watch(topic, limit=2)).until("caught-up")
    assert [frame.event for frame in frames] == ["record"] * 3 + ["caught-up"]
    assert [seqs(frame.data) for frame in frames[:3]] == [[1, 2], [3, 4], [5]]
    assert [cursors(frame)[topic] for frame in frames[:3]] == [2, 4, 5]


@row("1.4 options")
def test_a_frame_has_256_records_by_default(api, topic, stream):
    api.write(topic, *[0] * 300)
    frames = stream(api.watch(topic)).until("caught-up")
    assert [len(frame.data["records"]) for frame in frames[:-1]] == [256, 44]


@row("1.4 options")
def test_a_frame_has_about_256_kib_by_default_and_as_many_as_asked_for(api, topic, stream):
    for _ in range(3):
        api.write(topic, "x" * 200_000)
    frames = stream(api.watch(topic)).until("caught-up")
    assert [seqs(frame.data) for frame in frames[:-1]] == [[1], [2], [3]]
    for budget in (0, 1_000_000, 2**40):
        frames = stream(api.watch(topic, max_batch_bytes=budget)).until("caught-up")
        assert [seqs(frame.data) for frame in frames[:-1]] == [[1, 2, 3]]


@row("1.4 options")
def test_what_a_frame_shows_of_a_record(api, topic, stream):
    body = {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 2}}]}
    done(api.post(at(topic), body))

    def shown(**options):
        [record] = stream(api.watch(topic, **options)).next("record").data["records"]
        return set(record)

    base = {"$seq", "$ts", "$node"}
    assert shown() == base | {"data", "meta"}
    assert shown(include_tags=True) == base | {"$tag", "data", "meta"}
    assert shown(include_meta=False) == base | {"data"}
    assert shown(include_data=False) == base | {"meta"}
    assert shown(include_data=False, include_meta=False) == base


@row("1.4 options", "2 node filter")
@pytest.mark.parametrize("node", ["me", ["me", "you"]])
def test_a_watcher_does_not_get_its_own_records_but_passes_them(api, topic, stream, node):
    for writer in ("me", "other", "me"):
        api.write(topic, writer, node=writer)
    data = stream(api.watch(topic, node=node)).next("record").data
    assert (data["from_seq"], data["to_seq"], payloads(data)) == (0, 3, ["other"])


@row("1.4 options", "2 node filter", "1.4 caught-up")
def test_a_topic_of_only_own_records_is_caught_up_without_a_record_frame(api, topic, stream):
    api.write(topic, 1, 2, node="me")
    watching = stream(api.watch(topic, node="me"))
    assert watching.next("caught-up").data["head_seq"] == 2
    api.write(topic, 3, node="me")
    api.write(topic, 4, node="you")
    assert payloads(watching.next("record").data) == [4]


@row("1.4 options")
@pytest.mark.parametrize("consistency", ["eventual", "strong"])
def test_both_consistencies_are_served_alike(api, topic, stream, consistency):
    api.write(topic, 1)
    assert payloads(stream(api.watch(topic, consistency=consistency)).next("record").data) == [1]


@row("1.4 tombstone")
def test_a_cursor_that_is_too_old_at_first_is_told_so_before_the_records(api, topic, stream):
    api.make(topic, cap_records=2)
    api.write(topic, *range(5))
    watching = stream(api.watch(topic))
    frame = watching.next("tombstone")
    assert expect.told(frame.data) == {
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert cursors(frame) == {topic: 3}
    assert seqs(watching.next("record").data) == [4, 5]
    watching.next("caught-up")


@row("1.4 tombstone")
def test_a_cursor_that_falls_behind_later_is_told_why(api, topic, stream):
    api.make(topic, cap_records=2)
    watching = stream(api.watch(topic))
    watching.next("caught-up")
    api.write(topic, *range(10))
    frame = watching.next("tombstone")
    assert (frame.data["reason"], frame.data["gap_from"], frame.data["gap_to"]) == ("cap", 1, 8)
    assert cursors(frame) == {topic: 8}
    assert seqs(watching.next("record").data) == [9, 10]
    watching.next("caught-up")


@row("1.4 tombstone", "2 delete is silent")
def test_a_deleted_prefix_is_silent_in_a_stream(api, topic, stream):
    api.write(topic, *range(5))
    done(api.post(at(topic, "delete"), {"before_seq": 4}))
    data = stream(api.watch(topic)).next("record").data
    assert seqs(data) == [4, 5]


@row("1.4 tombstone", "2 recreated")
def test_a_session_notices_that_its_topic_was_recreated(api, topic, stream):
    api.write(topic, *range(5))
    path = api.watch(topics={topic: {"from_seq": 5}})
    api.delete(at(topic))
    api.write(topic, "new", "new")
    watching = stream(path)
    watching.next("tombstone")
    assert payloads(watching.next("record").data) == ["new", "new"]


@row("1.4 topic-deleted")
def test_a_deleted_topic_is_told_at_once_and_the_last_one_ends_the_stream(api, topic, name, stream):
    other = name()
    api.make(topic)
    api.make(other)
    watching = stream(api.watch(topic, other))
    watching.next("caught-up")
    watching.next("caught-up")
    api.delete(at(topic))
    gone = {"topic": topic, "head_seq": 0, "reason": "deleted"}
    assert watching.next("topic-deleted").data == gone
    api.write(other, "still")
    assert payloads(watching.next("record").data) == ["still"]
    watching.next("caught-up")
    api.delete(at(other))
    assert watching.next("topic-deleted").data["topic"] == other
    assert watching.rest() == []


@row("1.4 heartbeat")
def test_an_idle_stream_beats(api, topic, stream):
    api.make(topic)
    watching = stream(api.watch(topic, heartbeat_ms=50))
    watching.next("caught-up")
    for _ in range(2):
        assert watching.frame().lines == [": hb"]
    api.write(topic, 1)
    assert payloads(watching.next("record").data) == [1]


@row("1.4 resume")
def test_a_stream_goes_on_where_the_session_was(api, topic, stream):
    path = _read_two(api, topic, stream)
    api.write(topic, 3)
    data = stream(path).next("record").data
    assert (data["from_seq"], payloads(data)) == (2, [3])


@row("1.4 resume")
def test_a_last_event_id_may_lower_the_cursor(api, topic, stream):
    path = _read_two(api, topic, stream)
    watching = stream(path, {"Last-Event-ID": event_id(**{topic: 1})})
    data = watching.next("record").data
    assert (data["from_seq"], payloads(data)) == (1, [2])


@row("1.4 resume")
@pytest.mark.parametrize(
    "last_event_id",
    ["???", "AAAA", event_id(other=0), base64.b64encode(b"[1]").decode(), "7", NESTED],
)
def test_a_last_event_id_that_means_nothing_is_ignored(api, topic, stream, last_event_id):
    path = _read_two(api, topic, stream)
    frame = stream(path, {"Last-Event-ID": last_event_id}).next("caught-up")
    assert frame.data["head_seq"] == 2


@row("1.4 resume")
def test_a_last_event_id_never_raises_the_cursor(api, topic, stream):
    api.write(topic, 1, 2)
    watching = stream(api.watch(topic), {"Last-Event-ID": event_id(**{topic: 2})})
    assert payloads(watching.next("record").data) == [1, 2]


@row("1.4 resume", "1.4 frame id")
def test_the_id_of_any_frame_resumes_after_it(api, topic, stream):
    api.write(topic, *range(6))
    path = api.watch(topic, limit=2)
    frames = stream(path).until("caught-up")
    for index, frame in enumerate(frames[:2]):
        again = stream(path, {"Last-Event-ID": frame.id}).next("record").data
        assert seqs(again) == seqs(frames[index + 1].data)


def _read_two(api, topic, stream) -> str:
    """A session whose first stream has read two records and is closed."""
    api.write(topic, 1, 2)
    path = api.watch(topic)
    watching = stream(path)
    watching.until("caught-up")
    watching.close()
    return path


@row("1.4 shared cursors")
def test_two_streams_of_one_session_share_the_records(api, topic, stream):
    api.make(topic)
    path = api.watch(topic)
    streams = [stream(path), stream(path)]
    for each in streams:
        each.next("caught-up")
    found: list[int] = []
    for number in range(20):
        api.write(topic, number)
    end = time.monotonic() + DEADLINE_S
    while len(found) < 20 and time.monotonic() < end:
        for each in streams:
            found += _soon(each)
    assert sorted(found) == list(range(1, 21)), "each record once, on one of the two"


def _soon(watching) -> list[int]:
    """The seqs of the next frame, if there is one soon."""
    try:
        frame = watching.next(deadline_s=0.005)
    except TimeoutError:
        return []
    return seqs(frame.data) if frame.event == "record" else []


@row("1.4 record")
def test_many_watchers_all_get_every_record_in_order(api, topic, stream):
    api.make(topic)
    streams = [stream(api.watch(topic)) for _ in range(10)]
    for number in range(30):
        api.write(topic, number)
    for each in streams:
        assert [record["data"] for record in each.records(30)] == list(range(30))


@row("1.4 record")
def test_a_reader_that_does_not_read_harms_nobody_and_misses_nothing(api, topic, stream):
    api.make(topic)
    slow, quick = stream(api.watch(topic)), stream(api.watch(topic))
    slow.next("caught-up")
    for number in range(60):
        api.write(topic, [number, "x" * 200_000])
    numbers = [record["data"][0] for record in quick.records(60)]
    assert numbers == list(range(60))
    numbers = [record["data"][0] for record in slow.records(60)]
    assert numbers == list(range(60)), "nothing is lost on a topic without caps"


@row("1.4 record", "1.1 priority")
@pytest.mark.parametrize("priority", [-1000, -1, 0, 1000, None])
def test_a_quiet_server_pushes_whatever_the_priority(api, topic, stream, priority):
    api.make(topic, priority=priority)
    watching = stream(api.watch(topic))
    watching.next("caught-up")
    api.write(topic, "x")
    assert payloads(watching.next("record").data) == ["x"]
    assert payloads(api.diff(topic)) == ["x"]
