"""1.1 The topic config object."""

from __future__ import annotations

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import at, done, records


@row("1.1 defaults", "1.2 PUT")
def test_a_new_topic_echoes_all_seventeen_defaults(api, topic):
    body = expect.success(api.put(at(topic), {}), expect.PUT_TOPIC, 201)
    assert body["config"] == expect.CONFIG_DEFAULTS
    assert len(body["config"]) == 17
    assert (body["topic"], body["created"]) == (topic, True)
    assert api.state(topic)["config"] == expect.CONFIG_DEFAULTS


@row("1.1 values")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("type", "queue"),
        ("type", "log"),
        ("ttl_ms", 3_600_000),
        ("ttl_ms", 2**53),
        ("cap_records", 10),
        ("cap_bytes", 10_000),
        ("discard", "reject"),
        ("priority", 700),
        ("priority", -700),
        ("auto_priority", False),
        ("auto_create", False),
        ("idempotency_window_ms", 5),
        ("idempotency_window_ms", 0),
        ("dedupe_node", False),
        ("lease_ms", 100),
        ("lease_ms", 86_400_000),
        ("claim_jitter_ms", 5_000),
        ("max_deliveries", 3),
        ("dead_letter", "graveyard"),
        ("leases_durable", True),
    ],
)
def test_a_key_keeps_what_it_is_given_and_leaves_the_others(api, topic, key, value):
    body = done(api.put(at(topic), {key: value}))
    assert body["config"] == {**expect.CONFIG_DEFAULTS, key: value}
    assert api.state(topic)["config"] == body["config"]


@row("1.1 types")
@pytest.mark.parametrize(
    "bad",
    [
        {"type": "stack"},
        {"type": 1},
        {"ttl_ms": -1},
        {"ttl_ms": 1.5},
        {"ttl_ms": "5"},
        {"ttl_ms": True},
        {"ttl_ms": 2**64},
        {"cap_records": -1},
        {"cap_records": []},
        {"cap_bytes": "1"},
        {"discard": "new"},
        {"durable": "yes"},
        {"durable": 1},
        {"durability": "diamond"},
        {"priority": "high"},
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"priority": 0.5},
        {"auto_priority": 0},
        {"auto_create": "no"},
        {"idempotency_window_ms": -5},
        {"dedupe_node": "NoneType"},
        {"lease_ms": "long"},
        {"lease_ms": -1},
        {"claim_jitter_ms": -1},
        {"max_deliveries": 1.5},
        {"dead_letter": 5},
        {"leases_durable": "true"},
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_400_and_creates_nothing(api, topic, bad):
    expect.refusal(api.put(at(topic), bad), 400, "invalid_request")
    expect.refusal(api.get(at(topic)), 404, "topic_not_found", {"topic": topic})


@row("1.1 type immutable")
@pytest.mark.parametrize(("old", "new"), [("log", "queue"), ("queue", "log")])
def test_the_type_of_a_topic_cannot_change(api, topic, old, new):
    api.make(topic, type=old)
    detail = {"topic": topic, "existing_type": old, "requested_type": new}
    answer = api.put(at(topic), {"type": new, "ttl_ms": 5})
    expect.refusal(answer, 409, "topic_exists_incompatible", detail)
    assert api.state(topic)["config"]["ttl_ms"] == 0
    assert api.make(topic, type=old)["created"] is False


@row("1.1 durable alias")
@pytest.mark.parametrize(
    ("given", "durable", "durability"),
    [
        ({}, False, "disk"),
        ({"durable": True}, True, "fsync"),
        ({"durable": False}, False, "disk"),
        ({"durability": "fsync"}, True, "fsync"),
        ({"durability": "memory"}, False, "memory"),
        ({"durability": "ephemeral"}, False, "ephemeral"),
        ({"durable": True, "durability": "memory"}, False, "memory"),
        ({"durable": False, "durability": "fsync"}, True, "fsync"),
    ],
)
def test_durable_is_a_short_word_for_a_class(api, topic, given, durable, durability):
    config = api.make(topic, **given)["config"]
    assert (config["durable"], config["durability"]) == (durable, durability)


@row("1.1 priority", "1.2 effective priority")
@pytest.mark.parametrize(
    ("priority", "effective"),
    [(700, 700), (5000, 1000), (-5000, -1000), (2**31 - 1, 1000), (-(2**31), -1000), (0, 0)],
)
def test_a_priority_is_stored_raw_and_clamped_when_effective(api, topic, priority, effective):
    api.make(topic, priority=priority)
    state = api.state(topic)
    assert state["config"]["priority"] == priority
    assert state["effective_priority"] == effective


@row("1.1 priority", "1.2 PUT merges")
def test_a_priority_can_be_taken_back_with_null(api, topic):
    api.make(topic, priority=7)
    assert api.make(topic, priority=None)["config"]["priority"] is None


@row("1.1 auto_create")
def test_an_inline_config_may_say_that_the_write_creates_nothing(api, topic):
    answer = api.post(at(topic), records(1, config={"auto_create": False}))
    expect.refusal(answer, 404, "topic_not_found", {"topic": topic})


@row("1.1 auto_create")
def test_the_stored_auto_create_stops_no_write(api, topic):
    api.make(topic, auto_create=False)
    assert api.write(topic, 1)["created"] is False


@row("1.1 lease_ms")
@pytest.mark.parametrize(("given", "stored"), [(0, 100), (99, 100), (10**12, 86_400_000)])
def test_a_lease_is_stored_clamped(api, topic, given, stored):
    assert api.make(topic, lease_ms=given)["config"]["lease_ms"] == stored
    assert api.state(topic)["config"]["lease_ms"] == stored


@row("1.1 claim_jitter_ms")
@pytest.mark.parametrize(("given", "stored"), [(5001, 5000), (10**12, 5000), (1, 1)])
def test_a_jitter_is_stored_clamped(api, topic, given, stored):
    assert api.make(topic, claim_jitter_ms=given)["config"]["claim_jitter_ms"] == stored


@row("1.1 dead_letter")
@pytest.mark.parametrize("bad", ["_x", "a b", "", "a>b"])
def test_a_dead_letter_must_be_a_valid_name(api, topic, bad):
    answer = api.put(at(topic), {"type": "queue", "dead_letter": bad})
    expect.refusal(answer, 400, "invalid_request", {"dead_letter": bad})
    expect.refusal(api.get(at(topic)), 404, "topic_not_found")


@row("1.1 dead_letter")
def test_a_queue_cannot_bury_in_itself(api, topic):
    answer = api.put(at(topic), {"type": "queue", "dead_letter": topic})
    expect.refusal(answer, 400, "invalid_request", {"dead_letter": topic})
    api.make(topic, type="queue")
    expect.refusal(api.put(at(topic), {"dead_letter": topic}), 400, "invalid_request")
    assert api.state(topic)["config"]["dead_letter"] is None


@row("1.1 dead_letter")
def test_a_log_may_name_itself_for_it_never_buries(api, topic):
    assert api.make(topic, dead_letter=topic)["config"]["dead_letter"] == topic
    assert api.make(topic, dead_letter=None)["config"]["dead_letter"] is None
