"""The configuration of a topic: defaults, clamps, refusals; a field is a key everywhere."""

from __future__ import annotations

from typing import Annotated, Any

import click
import msgspec
import pytest
from msgspec import Meta

from penstock.cli import topic
from penstock.client import calls
from penstock.protocol.answers import TopicPut
from penstock.protocol.config import (
    ConfigField,
    TopicConfig,
    check_change,
    config_fields,
    parse_config,
)
from penstock.protocol.errors import InvalidRequest, TopicExistsIncompatible
from penstock.server.api.app import ROUTES
from penstock.server.api.openapi import document


def merged(body: dict[str, Any], old: TopicConfig | None = None) -> TopicConfig:
    return (old or TopicConfig()).merged(parse_config(body))


def test_an_empty_request_gives_the_defaults_and_every_key_is_shown() -> None:
    assert msgspec.structs.asdict(merged({})) == {
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
    assert config.durable is (durability == "fsync")


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


def test_a_queue_sends_no_dead_letters_to_itself_though_a_log_may_name_itself() -> None:
    check_change("t", None, {"dead_letter": "t"})
    with pytest.raises(InvalidRequest):
        check_change("t", TopicConfig(type="queue"), {"dead_letter": "t"})


class NextConfig(TopicConfig, frozen=True, kw_only=True):
    """A configuration with one more field, as a change of the protocol would add it."""

    flavour: Annotated[
        str, Meta(description="How it tastes.", extra_json_schema={"enum": ["plain", "sweet"]})
    ] = "plain"


def test_a_field_is_one_line_validation_openapi_client_and_cli_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parse_config({"flavour": "sweet"}, NextConfig) == {"flavour": "sweet"}
    with pytest.raises(InvalidRequest, match="flavour must be one of plain, sweet, not 'hot'"):
        parse_config({"flavour": "hot"}, NextConfig)

    def next_fields() -> dict[str, ConfigField]:
        return config_fields(NextConfig)

    monkeypatch.setattr(topic, "config_fields", next_fields)
    command = topic.config_options(click.command("create")(lambda: None))
    option = next(each for each in command.params if each.name == "flavour")
    assert option.help == "How it tastes."
    assert list(option.type.choices) == ["plain", "sweet"]

    monkeypatch.setattr(calls, "config_fields", next_fields)
    body = calls.put_topic("t", {"flavour": "sweet"}).request.body
    assert body == b'{"flavour":"sweet"}'
    with pytest.raises(InvalidRequest, match="did you mean flavour"):
        calls.put_topic("t", {"flavor": "sweet"})


def test_every_key_is_an_option_of_the_cli_a_keyword_of_the_client_and_in_openapi() -> None:
    keys = set(config_fields())
    assert keys <= {option.name for option in topic.create.params}
    assert calls.known_options(dict.fromkeys(keys)) is not None
    shown = document(ROUTES, "0")["components"]["schemas"]["TopicConfig"]["properties"]
    assert set(shown) == keys
    assert all(shown[key]["description"] for key in keys)


def test_a_client_understands_a_server_that_knows_fewer_keys() -> None:
    answer = b'{"topic":"t","created":true,"config":{"type":"log","ttl_ms":7}}'
    put = msgspec.json.decode(answer, type=TopicPut)
    assert (put.config.ttl_ms, put.config.lease_ms, put.config.durability) == (7, 30_000, "disk")


def test_a_client_understands_a_server_that_knows_more() -> None:
    answer = b'{"topic":"t","created":true,"config":{"type":"ring","durability":"raid","new":1}}'
    assert msgspec.json.decode(answer, type=TopicPut).config.type == "ring"
