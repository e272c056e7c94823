"""The seventeen keys: defaults, merging, clamps, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.errors import InvalidRequest, TopicExistsIncompatible
from penstock.topics.config import TopicConfig, check_change, parse_config


def merged(body: dict[str, Any], old: TopicConfig | None = None) -> TopicConfig:
    return (old or TopicConfig()).merged(parse_config(body))


def test_an_empty_request_gives_the_defaults_and_every_key_is_shown() -> None:
    assert merged({}).echo() == {
        "type": "log",
        "ttl_ms": 0,
        "cap_records": 0,
        "cap_bytes": 0,
        "discard": "old",
        "durable": False,
        "durability": "disk",
        "priority": None,
        "auto_priority": True,
        "auto_create": True,
        "idempotency_window_ms": 120_000,
        "dedupe_node": True,
        "lease_ms": 30_000,
        "claim_jitter_ms": 0,
        "max_deliveries": 0,
        "dead_letter": None,
        "leases_durable": False,
    }


def test_only_the_named_keys_change() -> None:
    old = merged({"ttl_ms": 5, "cap_records": 7, "priority": -3})
    new = merged({"cap_records": 0, "priority": None, "unheard_of": 1}, old)
    assert (new.ttl_ms, new.cap_records, new.priority) == (5, 0, None)
    assert merged({}, new) == new


@pytest.mark.parametrize(
    ("body", "durability"),
    [
        ({"durable": True}, "fsync"),
        ({"durable": False}, "disk"),
        ({"durable": True, "durability": "memory"}, "memory"),
        ({"durability": "ephemeral", "durable": False}, "ephemeral"),
        ({}, "memory"),
    ],
)
def test_an_explicit_durability_wins_over_its_alias(body: dict[str, Any], durability: str) -> None:
    config = merged(body, merged({"durability": "memory"}))
    assert config.durability == durability
    assert config.echo()["durable"] is (durability == "fsync")


def test_leases_and_jitter_are_stored_clamped_and_priority_raw() -> None:
    low = merged({"lease_ms": 0, "claim_jitter_ms": 9_999, "priority": 2_000_000})
    assert (low.lease_ms, low.claim_jitter_ms, low.priority) == (100, 5_000, 2_000_000)
    assert merged({"lease_ms": 2**64 - 1}).lease_ms == 86_400_000


@pytest.mark.parametrize(
    "body",
    [
        {"type": "stack"},
        {"ttl_ms": -1},
        {"ttl_ms": 2**64},
        {"ttl_ms": True},
        {"ttl_ms": 1.0},
        {"ttl_ms": None},
        {"discard": "new"},
        {"durable": 1},
        {"durability": "raid"},
        {"priority": 2**31},
        {"priority": "high"},
        {"dead_letter": 5},
    ],
)
def test_a_wrong_value_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        parse_config(body)


def test_a_bad_name_for_dead_letters_is_named_in_the_refusal() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_config({"dead_letter": "no spaces"})
    assert refused.value.detail == {"dead_letter": "no spaces"}


def test_the_type_of_a_topic_stays_what_it_was() -> None:
    check_change("t", TopicConfig(), {"type": "log"})
    with pytest.raises(TopicExistsIncompatible) as refused:
        check_change("t", TopicConfig(), {"type": "queue"})
    assert refused.value.detail == {
        "topic": "t",
        "existing_type": "log",
        "requested_type": "queue",
    }


def test_a_queue_does_not_bury_in_itself_though_a_log_may_name_itself() -> None:
    check_change("t", None, {"dead_letter": "t"})
    with pytest.raises(InvalidRequest):
        check_change("t", TopicConfig(type="queue"), {"dead_letter": "t"})
