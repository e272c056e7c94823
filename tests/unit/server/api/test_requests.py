"""Bodies as the handlers use them: with the server's defaults and limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.protocol.decoding import decode
from penstock.protocol.errors import BatchTooLarge, InvalidRequest
from penstock.protocol.limits import TopicLimits
from penstock.protocol.requests import AckBody, ClaimBody, DiffBody, RouterBody
from penstock.server.api.queues import claim_request, settlement
from penstock.server.api.routers import router_config
from penstock.server.api.topics import read_request
from penstock.topics.core.leases import ClaimRequest, Settle, lease_token

LIMITS = TopicLimits()


def decoded(kind: Any, body: dict[str, Any]) -> Any:
    return decode(kind, msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("body", "limit", "batch_bytes", "wait_ms"),
    [
        ({}, 256, 1_048_576, 0),
        ({"limit": 0, "max_batch_bytes": 0}, 256, 1_048_576, 0),
        ({"limit": 5_000, "max_batch_bytes": 2**40, "wait_ms": 90_000}, 1_000, 8_388_608, 30_000),
        ({"limit": 7, "max_batch_bytes": 7, "wait_ms": 7, "unheard_of": 1}, 7, 7, 7),
    ],
)
def test_a_read_is_completed_and_clamped(
    body: dict[str, Any], limit: int, batch_bytes: int, wait_ms: int
) -> None:
    found = read_request(decoded(DiffBody, body), LIMITS)
    assert (found.limit, found.batch_bytes_max, found.wait_ms) == (limit, batch_bytes, wait_ms)


def test_a_read_may_name_one_node_or_several() -> None:
    assert read_request(DiffBody(), LIMITS).nodes == frozenset()
    assert read_request(decoded(DiffBody, {"node": "a"}), LIMITS).nodes == {"a"}
    assert read_request(decoded(DiffBody, {"node": ["a", "b"]}), LIMITS).nodes == {"a", "b"}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"node": "n"}, ClaimRequest("n", 1, 0)),
        ({"node": "n", "max": 0, "lease_ms": 1}, ClaimRequest("n", 1, 100)),
        ({"node": "n", "max": 9_999, "lease_ms": 2**40}, ClaimRequest("n", 1_000, 86_400_000)),
    ],
)
def test_a_claim_is_completed_and_clamped(body: dict[str, Any], wanted: ClaimRequest) -> None:
    assert claim_request(decoded(ClaimBody, body), LIMITS) == wanted


@pytest.mark.parametrize(
    "body",
    [{}, {"node": ""}, {"node": 5}, {"node": "x" * 129}, {"node": "n", "max": "1"}],
)
def test_a_claim_needs_a_node_and_right_types(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        claim_request(decoded(ClaimBody, body), LIMITS)


def test_settling_pairs_seqs_with_tokens() -> None:
    body = {"node": "n", "seqs": [1, 2], "lease_ids": [lease_token(7), ""]}
    assert settlement(decoded(AckBody, body), LIMITS) == Settle("n", (1, 2), (7, None))
    plain = settlement(decoded(AckBody, {"node": "n", "seqs": [4]}), LIMITS)
    assert list(plain.fenced()) == [(4, None)]


def test_settling_too_many_seqs_says_how_many_are_allowed() -> None:
    with pytest.raises(BatchTooLarge) as refused:
        settlement(decoded(AckBody, {"node": "n", "seqs": [1] * 1_001}), LIMITS)
    assert refused.value.detail == {"seqs": 1_001, "max": 1_000}


@pytest.mark.parametrize(
    "body",
    [
        {"node": "n"},
        {"node": "n", "seqs": 5},
        {"node": "n", "seqs": ["1"]},
        {"seqs": [1]},
        {"node": "", "seqs": [1]},
        {"node": "n", "seqs": [1], "lease_ids": []},
        {"node": "n", "seqs": [1], "lease_ids": ["bad"]},
    ],
)
def test_settling_needs_node_seqs_and_as_many_tokens(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        settlement(decoded(AckBody, body), LIMITS)


def test_a_router_is_completed_and_shown_without_create_dest() -> None:
    body = {"source": "a", "dest": "b", "filter": "x*", "create_dest": True}
    assert router_config("a>b", decoded(RouterBody, body)).echo() == {
        "router": "a>b",
        "source": "a",
        "dest": "b",
        "preserve_node": True,
        "preserve_tag": True,
        "filter": ["tag", "Glob", "x*"],
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a"},
        {"source": "a", "dest": "a"},
        {"source": "a", "dest": "no spaces"},
        {"source": "a", "dest": "b", "filter": "a*b"},
        {"source": "a", "dest": "b", "guarantee": "twice"},
        {"source": "a", "dest": "b", "preserve_tag": "yes"},
    ],
)
def test_a_wrong_router_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        router_config("r", decoded(RouterBody, body))
    with pytest.raises(InvalidRequest):
        router_config("bad name", decoded(RouterBody, {"source": "a", "dest": "b"}))
