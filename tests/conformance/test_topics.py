"""1.2 Topics: create, show, list, delete."""

from __future__ import annotations

import base64
import functools
import json
import random
import socket

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import (
    DEADLINE_S,
    Answer,
    Api,
    at,
    at_once,
    done,
    records,
    router_at,
    seqs,
)

CROWD = 1_003


@row("1.2 PUT")
def test_put_is_201_for_a_new_topic_and_200_for_a_known_one(api, topic):
    first = expect.success(api.put(at(topic), {"ttl_ms": 60_000}), expect.PUT_TOPIC, 201)
    assert first["created"] is True
    second = expect.success(api.put(at(topic), {"ttl_ms": 60_000}), expect.PUT_TOPIC, 200)
    assert second["created"] is False
    assert second["config"] == first["config"]


@row("1.2 PUT merges")
def test_put_changes_only_the_keys_it_names(api, topic):
    api.make(topic, ttl_ms=60_000, cap_records=7, durability="fsync")
    config = api.make(topic, cap_records=8)["config"]
    wanted = {"ttl_ms": 60_000, "cap_records": 8, "durability": "fsync", "durable": True}
    assert config == {**expect.CONFIG_DEFAULTS, **wanted}


@row("1.2 PUT merges")
def test_an_empty_put_changes_nothing(api, topic):
    before = api.make(topic, priority=3, discard="reject")["config"]
    body = expect.success(api.put(at(topic), {}), expect.PUT_TOPIC)
    assert (body["created"], body["config"]) == (False, before)
    assert done(api.put(at(topic)))["config"] == before


@row("1.2 PUT merges")
def test_a_refused_put_changes_nothing_at_all(api, topic):
    before = api.make(topic, ttl_ms=60_000)["config"]
    expect.refusal(api.put(at(topic), {"cap_records": 1, "discard": 3}), 400, "invalid_request")
    assert api.state(topic)["config"] == before


@row("1.2 GET")
def test_the_state_of_a_new_topic(api, topic):
    api.make(topic)
    body = expect.success(api.get(at(topic), touch="false"), expect.STATE)
    performance = body.pop("performance")
    assert performance
    assert expect.told(body) == {
        "topic": topic,
        "type": "log",
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
        "config": expect.CONFIG_DEFAULTS,
        "effective_priority": 0,
        "last_write_ts": None,
        "last_read_ts": None,
    }


@row("1.2 GET")
def test_the_state_of_a_written_topic(api, topic):
    done(api.post(at(topic), {"records": [{"data": "abc", "meta": {"a": 1}}, {"data": 7}]}))
    state = expect.success(api.get(at(topic)), expect.STATE)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (2, 1, 3)
    assert state["count"] == 2
    assert state["bytes"] == len('"abc"') + len('{"a":1}') + len("7")
    assert expect.recent_ms(state["last_write_ts"])
    assert state["last_write_ts"] >= api.diff(topic)["records"][0]["$ts"]


@row("1.2 GET")
def test_an_absent_topic_is_404(api, topic):
    expect.refusal(api.get(at(topic)), 404, "topic_not_found", {"topic": topic})


@row("1.2 GET queue")
def test_only_a_queue_shows_its_queue(api, topic, name):
    log = name()
    api.make(log)
    assert "queue" not in api.state(log)
    api.make(topic, type="queue")
    api.write(topic, 1, 2, 3)
    api.claim(topic)
    state = expect.success(api.get(at(topic)), expect.STATE | {"queue"})
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 2, "in_flight": 1, "dead_lettered": 0}


@row("1.2 GET touch")
def test_showing_a_topic_counts_as_reading_it(api, topic):
    api.make(topic)
    assert expect.recent_ms(done(api.get(at(topic)))["last_read_ts"])


@row("1.2 GET touch")
def test_showing_a_topic_without_touching_it_does_not(api, topic):
    api.make(topic)
    for text in ("false", "0"):
        assert done(api.get(at(topic), touch=text))["last_read_ts"] is None
    touched = done(api.get(at(topic), touch="maybe"))["last_read_ts"]
    assert expect.recent_ms(touched), "what is no boolean is the default, true"
    assert api.state(topic)["last_read_ts"] == touched


@row("1.2 GET touch")
def test_reading_records_counts_as_reading(api, topic):
    api.make(topic)
    api.diff(topic)
    assert expect.recent_ms(api.state(topic)["last_read_ts"])


@row("1.2 effective priority")
def test_a_topic_that_was_just_read_has_about_500(api, topic):
    api.make(topic)
    assert api.state(topic)["effective_priority"] == 0
    api.diff(topic)
    assert 250 <= api.state(topic)["effective_priority"] <= 500


@row("1.2 effective priority")
def test_without_auto_priority_reading_does_not_matter(api, topic):
    api.make(topic, auto_priority=False)
    api.diff(topic)
    assert api.state(topic)["effective_priority"] == 0
    api.make(topic, priority=900)
    assert api.state(topic)["effective_priority"] == 900


@row("1.2 list")
def test_the_list_is_sorted_by_name_and_filtered_by_prefix(api, topic):
    for suffix in ("b", "a", "B", "a.b", "a-b"):
        api.make(f"{topic}:{suffix}")
    api.make(f"{topic}x")
    body = expect.success(api.get("/v0/topics", prefix=f"{topic}:"), {"topics", "performance"})
    found = [row["topic"] for row in body["topics"]]
    assert found == sorted(f"{topic}:{suffix}" for suffix in ("b", "a", "B", "a.b", "a-b"))
    assert "next_cursor" not in body


@row("1.2 list")
def test_a_row_of_the_list(api, topic):
    api.make(topic, durability="fsync", priority=12, cap_records=2)
    api.write(topic, 1, 2, 3)
    [listed] = done(api.get("/v0/topics", prefix=topic))["topics"]
    expect.keys(listed, expect.LIST_ROW)
    assert listed.pop("type", "log") == "log"
    assert expect.told(listed) == {
        "topic": topic,
        "head_seq": 3,
        "earliest_seq": 2,
        "count": 2,
        "bytes": 2,
        "durable": True,
        "effective_priority": 12,
    }


@row("1.2 list")
def test_a_prefix_that_nothing_has_gives_an_empty_list(api, topic):
    body = done(api.get("/v0/topics", prefix=topic))
    assert body["topics"] == []
    assert "next_cursor" not in body


@row("1.2 list pages")
def test_a_list_is_read_page_by_page(api, topic):
    names = [f"{topic}:{number}" for number in range(5)]
    for each in names:
        api.make(each)
    found, cursors, query = [], [], {}
    for _ in range(4):
        body = done(api.get("/v0/topics", prefix=topic, page_size=2, **query))
        found += [listed["topic"] for listed in body["topics"]]
        if "next_cursor" not in body:
            break
        cursors.append(body["next_cursor"])
        query = {"cursor": body["next_cursor"]}
    assert found == names
    assert [json.loads(base64.b64decode(cursor)) for cursor in cursors] == [
        {"after": names[1]},
        {"after": names[3]},
    ]


@row("1.2 list pages")
def test_the_cursor_is_standard_base64_of_compact_json(api, topic):
    for suffix in "ab":
        api.make(f"{topic}:{suffix}")
    cursor = done(api.get("/v0/topics", prefix=topic, page_size=1))["next_cursor"]
    assert cursor == base64.b64encode(b'{"after":"%b:a"}' % topic.encode()).decode()


@row("1.2 list pages")
def test_a_last_page_that_is_full_has_no_cursor(api, topic):
    for suffix in "abcd":
        api.make(f"{topic}:{suffix}")
    first = done(api.get("/v0/topics", prefix=topic, page_size=2))
    last = done(api.get("/v0/topics", prefix=topic, page_size=2, cursor=first["next_cursor"]))
    assert len(last["topics"]) == 2
    assert "next_cursor" not in last


@row("1.2 list pages")
def test_a_cursor_may_name_a_topic_that_is_gone(api, topic):
    for suffix in "abc":
        api.make(f"{topic}:{suffix}")
    cursor = done(api.get("/v0/topics", prefix=topic, page_size=1))["next_cursor"]
    api.delete(at(f"{topic}:a"))
    rest = done(api.get("/v0/topics", prefix=topic, cursor=cursor))["topics"]
    assert [listed["topic"] for listed in rest] == [f"{topic}:b", f"{topic}:c"]


NESTED = b"[" * 2_000 + b"]" * 2_000


@row("1.2 list pages", "1.3 list")
@pytest.mark.parametrize("path", ["/v0/topics", "/v0/routers"])
@pytest.mark.parametrize(
    "cursor",
    ["!", "AAAA", *(base64.b64encode(raw).decode() for raw in (b"[]", b"{}", NESTED))],
    ids=["no base64", "no JSON", "an array", "no name", "nested"],
)
def test_a_corrupt_cursor_is_400(api, path, cursor):
    expect.refusal(api.get(path, cursor=cursor), 400, "invalid_request")


@pytest.fixture(scope="module")
def crowded(launch) -> Api:
    """A server with more topics than a page or the metrics show."""
    api = Api(launch().address)
    body = '{"records":[{"data":0}]}'
    head = "POST /v0/topics/crowd-%04d HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with socket.create_connection(api.address, timeout=6 * DEADLINE_S) as raw:
        for start in range(0, CROWD, 100):
            count = min(100, CROWD - start)
            raw.sendall("".join(head % n for n in range(start, start + count)).encode())
            received = b""
            while received.count(b"HTTP/1.1 201 ") < count:
                chunk = raw.recv(65536)
                assert chunk, received
                received += chunk
    return api


@row("1.2 list pages", "1.0 query numbers")
@pytest.mark.parametrize(
    ("page_size", "shown"),
    [(None, 100), ("x", 100), ("0", 1), ("1", 1), ("1000", 1000), ("1001", 1000), ("5000", 1000)],
)
def test_a_page_has_100_topics_and_at_most_1000(crowded, page_size, shown):
    query = {} if page_size is None else {"page_size": page_size}
    body = done(crowded.get("/v0/topics", **query))
    assert len(body["topics"]) == shown
    assert "next_cursor" in body


@row("1.7 metrics topics")
def test_the_metrics_show_at_most_1000_topics_and_say_so(crowded):
    text = crowded.get("/v0/metrics", topics="true").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("topics_topic_head_seq{")]
    assert len(lines) == 1000
    [truncated] = [
        line for line in text.splitlines() if line.startswith("topics_topic_metrics_truncated")
    ]
    assert float(truncated.split()[-1]) > 0
    assert f"topics_topics {CROWD}" in text
    few = crowded.get("/v0/metrics", topics="true", prefix="crowd-00").body.decode()
    assert few.count("topics_topic_head_seq{") == 100
    assert "topics_topic_metrics_truncated 0" in few


@row("1.2 list touch")
def test_listing_does_not_touch_unless_asked(api, topic):
    api.make(topic)
    done(api.get("/v0/topics", prefix=topic))
    assert api.state(topic)["last_read_ts"] is None
    done(api.get("/v0/topics", prefix=topic, touch="true"))
    assert expect.recent_ms(api.state(topic)["last_read_ts"])


@row("1.2 DELETE")
def test_a_deleted_topic_is_gone(api, topic):
    api.write(topic, 1)
    body = expect.success(api.delete(at(topic)), expect.DELETE_TOPIC)
    assert (body["topic"], body["deleted"], body["routers_removed"]) == (topic, True, [])
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")
    expect.refusal(api.post(at(topic, "diff")), 404, "topic_not_found")
    assert done(api.get("/v0/topics", prefix=topic))["topics"] == []


@row("1.2 DELETE")
def test_deleting_what_is_not_there_is_no_error(api, topic):
    for query in ({}, {"if_empty": "true"}):
        body = expect.success(api.delete(at(topic), **query), expect.DELETE_TOPIC)
        assert (body["deleted"], body["routers_removed"]) == (False, [])


@row("1.2 DELETE")
def test_the_routers_of_a_deleted_topic_go_with_it(api, topic, name):
    source, dest = name(), name()
    api.route(topic + ":2", topic, dest)
    api.route(topic + ":1", source, topic)
    body = done(api.delete(at(topic)))
    assert body["routers_removed"] == [topic + ":1", topic + ":2"]
    assert done(api.get("/v0/routers", prefix=topic))["routers"] == []
    assert api.get(at(source)).status == api.get(at(dest)).status == 200


@row("1.2 DELETE")
def test_a_topic_of_the_same_name_starts_anew(api, topic):
    api.make(topic, ttl_ms=60_000)
    api.write(topic, "old", "old")
    api.delete(at(topic))
    assert api.write(topic, "new")["created"] is True
    found = api.diff(topic)
    assert (seqs(found), found["records"][0]["data"]) == ([1], "new")
    assert api.state(topic)["config"] == expect.CONFIG_DEFAULTS


@row("1.2 DELETE if_empty")
def test_a_topic_with_records_is_not_deleted_if_only_an_empty_one_should_be(api, topic):
    api.write(topic, 1, 2)
    answer = api.delete(at(topic), if_empty="true")
    expect.refusal(answer, 409, "topic_not_empty", {"topic": topic, "count": 2})
    done(api.post(at(topic, "delete"), {"before_seq": 3}))
    assert done(api.delete(at(topic), if_empty="1"))["deleted"] is True


@row("1.2 DELETE if_empty")
def test_if_empty_is_false_by_default_and_for_anything_that_is_no_boolean(api, topic):
    done(api.post(at(topic), records(1)))
    assert done(api.delete(at(topic), if_empty="perhaps"))["deleted"] is True


@row("1.2 PUT")
def test_a_topic_that_many_create_at_once_is_created_once(api, topic):
    answers = at_once([lambda: api.put(at(topic))] * 8)
    assert sorted(answer.status for answer in answers) == [200] * 7 + [201]


@row("1.2 DELETE")
def test_a_topic_that_many_delete_at_once_is_deleted_once(api, topic):
    api.write(topic, 1)
    answers = at_once([lambda: done(api.delete(at(topic)))] * 8)
    assert sum(answer["deleted"] for answer in answers) == 1


@row("1.0 error body", "1.2 DELETE", "2 seq")
@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_calls_at_the_same_time_is_answered_in_the_protocol(api, topic, seed):
    names = [f"{topic}:{letter}" for letter in "ab"]

    def calls(number: int) -> list[Answer]:
        chance = random.Random(f"{seed} {number}")
        return [_any_call(api, chance, names, topic) for _ in range(60)]

    for answers in at_once([functools.partial(calls, number) for number in range(4)]):
        for answer in answers:
            assert answer.status < 500, str(answer)
            if answer.status >= 400:
                expect.envelope(answer.json)
    for name in names:
        api.delete(at(name))
        assert api.write(name, "after")["first_seq"] == 1


def _any_call(api: Api, chance: random.Random, names: list[str], router: str) -> Answer:
    """One call out of many on a few topics."""
    name, other = chance.sample(names, 2)
    seq = chance.randrange(1, 9)
    settle = {"node": "n", "seqs": [seq]}
    return chance.choice(
        [
            lambda: api.put(at(name), {"type": chance.choice(["log", "queue"])}),
            lambda: api.put(at(name), {"cap_records": chance.randrange(4), "ttl_ms": 5}),
            lambda: api.post(at(name), records(1, 2, idempotency_key=f"k{seq}")),
            lambda: api.post(at(name), records(*range(seq))),
            lambda: api.post(at(name), records(1, create=False)),
            lambda: api.post(at(name, "diff"), {"from_seq": seq, "wait_ms": 5}),
            lambda: api.post(at(name, "delete"), {"before_seq": seq}),
            lambda: api.post(at(name, "claim"), {"node": "n", "max": 3}),
            lambda: api.post(at(name, "ack"), settle),
            lambda: api.post(at(name, "nack"), {**settle, "delay_ms": 1}),
            lambda: api.put(router_at(router), {"source": name, "dest": other}),
            lambda: api.get(router_at(router)),
            lambda: api.delete(router_at(router)),
            lambda: api.get(at(name)),
            lambda: api.get("/v0/topics", prefix=router),
            lambda: api.post("/v0/watch", {"topics": {name: {}}}),
            lambda: api.delete(at(name)),
        ]
    )()
