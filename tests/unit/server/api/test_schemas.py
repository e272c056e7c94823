"""The shapes of the document say what the server takes and gives."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from penstock.server.api.app import ROUTES
from penstock.server.api.openapi import document

COMPONENTS = document(ROUTES, "1")["components"]
LEASE = "lease_0123456789abcdef"
SETTLE = {"node": "n", "seqs": [1]}


def fits(name: str, value: Any) -> bool:
    """Whether a value has a shape of the document."""
    shape = {"$ref": f"#/components/schemas/{name}", "components": COMPONENTS}
    return jsonschema_rs.validator_for(shape).is_valid(value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("Read", {"wait_ms": 30_000, "tag": "a*", "from_ts": 1}, True),
        ("Read", {"wait_ms": 30_001}, False),
        ("Read", {"tag": 1}, False),
        ("Read", {"from_ts": "yesterday"}, False),
        ("NewRecord", {"data": 1, "tag": "t" * 256, "node": "n" * 128}, True),
        ("NewRecord", {"data": 1, "tag": "t" * 257}, False),
        ("NewRecord", {"data": 1, "node": "n" * 129}, False),
        ("NewRecord", {"data": 1, "meta": {str(n): n for n in range(65)}}, False),
        (
            "Write",
            {"records": [{"data": 1}], "node": "n" * 128, "idempotency_key": "k" * 256},
            True,
        ),
        ("Write", {"records": [{"data": 1}], "idempotency_key": "k" * 257}, False),
        ("StoredRecord", {"$seq": 1, "$ts": 1, "meta": {str(n): n for n in range(67)}}, True),
        ("Claim", {"node": "n" * 128}, True),
        ("Claim", {"node": "n" * 129}, False),
        ("Ack", {**SETTLE, "node": "n" * 128, "lease_ids": [LEASE]}, True),
        ("Ack", {**SETTLE, "node": "n" * 129}, False),
        ("Nack", {**SETTLE, "lease_ids": [""]}, True),
        ("Extend", {**SETTLE, "lease_ms": 1, "lease_ids": ["lease_1F"]}, True),
        ("Extend", {**SETTLE, "lease_ms": 1, "lease_ids": ["lease_"]}, False),
        ("Extend", {**SETTLE, "lease_ms": 1, "lease_ids": ["lease_" + "0" * 65]}, False),
        ("Extend", {**SETTLE, "lease_ms": 1, "lease_ids": [LEASE] * 1_001}, False),
        ("Predicate", "", True),
        ("Predicate", "a**", False),
        ("Watch", {"prefixes": ["a" * 255]}, True),
        ("Watch", {"prefixes": ["a" * 256]}, False),
    ],
)
def test_the_document_has_the_limits_of_the_protocol(name, value, expected):
    assert fits(name, value) is expected
