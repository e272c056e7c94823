"""What answers look like: exact key sets, the error envelope, and the few added fields."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from tests.conformance.wire import Answer, blanks_outside_strings

PERFORMANCE_KEYS = {
    "server_total_ms",
    "wal_append_ms",
    "fsync_ms",
    "records_scanned",
    "cold_segments_read",
    "throttle_wait_ms",
}
RETRY_STATUSES = {429, 503}
UNKNOWN_CODES = {"internal", "outcome_unknown", "part_silent"}
"""Errors of requests that may have taken effect; all others say nothing about their outcome."""
UNCHECKED: Any = object()
NOTHING: AbstractSet[str] = frozenset()

CONFIG_DEFAULTS: dict[str, Any] = {
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

# Fields that a server may add to what the contract names. Every other key set is exact, so that
# an addition is a decision that is written down here.
ADDED = {"epoch"}
FLOW = {
    "type",
    "durability",
    "in_per_s",
    "out_per_s",
    "watchers",
    "watchers_behind",
    "band",
    "reason",
    "ready",
    "in_flight",
}
"""The same, for topics only."""

PUT_TOPIC = {"topic", "created", "config", "performance"}
STATE = {
    "topic",
    "type",
    "head_seq",
    "earliest_seq",
    "next_seq",
    "count",
    "bytes",
    "config",
    "effective_priority",
    "last_write_ts",
    "last_read_ts",
    "performance",
}
LIST_ROW = {
    "topic",
    "head_seq",
    "earliest_seq",
    "count",
    "bytes",
    "durable",
    "effective_priority",
}
DELETE_TOPIC = {"topic", "deleted", "routers_removed", "performance"}
WRITE = {
    "topic",
    "first_seq",
    "last_seq",
    "seqs",
    "head_seq",
    "count",
    "created",
    "deduped",
    "performance",
}
DIFF = {
    "topic",
    "records",
    "next_from_seq",
    "head_seq",
    "earliest_seq",
    "caught_up",
    "tombstone",
    "lag",
    "performance",
}
TOMBSTONE = {"gap_from", "gap_to", "reason", "missed_estimate", "earliest_seq", "head_seq"}
DELETE_RECORDS = {"topic", "deleted", "earliest_seq", "head_seq", "count", "bytes", "performance"}
PUT_ROUTER = {
    "router",
    "created",
    "source",
    "dest",
    "preserve_node",
    "preserve_tag",
    "filter",
    "allow_cycle",
    "guarantee",
    "performance",
}
GET_ROUTER = (PUT_ROUTER - {"created"}) | {"forwarded_total"}
ROUTER_ROW = {"router", "source", "dest", "guarantee", "forwarded_total"}
DELETE_ROUTER = {"router", "deleted", "performance"}
WATCH = {"wid", "stream_url", "session_ttl_ms", "topics", "performance"}
WATCH_TOPIC = {"from_seq", "head_seq", "earliest_seq"}
CLAIM = {"topic", "claimed", "count", "ready", "performance"}
CLAIMED = {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}


def keys(found: dict[str, Any], wanted: set[str], optional: AbstractSet[str] = NOTHING) -> None:
    """Check that an object has exactly these keys."""
    have = set(found)
    assert wanted <= have, f"missing {sorted(wanted - have)} in {found}"
    extra = have - wanted - optional - ADDED
    if "effective_priority" in wanted:  # a topic
        extra -= FLOW
    assert not extra, f"not in the contract: {sorted(extra)} in {found}"


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What was told, without the fields that a server may add."""
    added = ADDED | (FLOW - {"type"} if "effective_priority" in found else NOTHING)
    return {key: value for key, value in found.items() if key not in added}


def success(
    answer: Answer,
    wanted: set[str],
    status: int = 200,
    optional: AbstractSet[str] = NOTHING,
) -> Any:
    """Check a success: status, type, exact keys, performance. Gives the JSON."""
    assert answer.status == status, str(answer)
    assert answer.headers["Content-Type"].startswith("application/json"), answer.headers
    body = answer.json
    keys(body, wanted, optional)
    if "performance" in wanted:
        performance(body)
    return body


def performance(body: dict[str, Any]) -> dict[str, Any]:
    """Check the performance block that every data response has."""
    block = body["performance"]
    assert isinstance(block, dict), body
    assert "server_total_ms" in block, block
    assert set(block) <= PERFORMANCE_KEYS, block
    for key, value in block.items():
        assert type(value) in (int, float), (key, value)
        assert value >= 0, (key, value)
    return block


def refusal(answer: Answer, status: int, code: str, detail: Any = UNCHECKED) -> Any:
    """Check an error: status, envelope with exactly its keys, Retry-After. Gives the detail.

    `detail=None` wants none; leaving it out leaves it unchecked.
    """
    assert answer.status == status, str(answer)
    assert answer.headers["Content-Type"].startswith("application/json"), answer.headers
    assert not blanks_outside_strings(answer.body), answer.body
    body = answer.json
    error = envelope(body)
    assert error["code"] == code, body
    if detail is not UNCHECKED:
        assert error.get("detail") == detail, body
    if status in RETRY_STATUSES:
        assert int(answer.headers["Retry-After"]) >= 1
    return error.get("detail")


def envelope(body: Any) -> dict[str, Any]:
    """Check the error envelope and give what is inside."""
    assert set(body) == {"error"}, body
    error = body["error"]
    assert set(error) <= {"code", "message", "detail", "outcome"}, body
    is_unknown = error["code"] in UNKNOWN_CODES
    assert error.get("outcome") == ("unknown" if is_unknown else None), body
    assert isinstance(error["message"], str), body
    assert error["message"], body
    assert isinstance(error.get("detail", {}), dict), body
    return dict(error)


def whole(value: Any) -> bool:
    """Whether a value is a whole number (and no boolean)."""
    return type(value) is int


def recent_ms(value: Any) -> bool:
    """Whether a value is a time in ms since the epoch, as opposed to seconds or microseconds."""
    return whole(value) and 1_500_000_000_000 < value < 10_000_000_000_000
