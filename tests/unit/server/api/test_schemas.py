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
        ("DiffBody", {"wait_ms": 30_000, "tag": "a*", "from_ts": 1}, True),
        ("DiffBody", {"wait_ms": 30_001}, False),
        ("DiffBody", {"tag": 1}, False),
        ("DiffBody", {"from_ts": "yesterday"}, False),
        ("Record", {"data": 1, "tag": "t" * 256, "node": "n" * 128}, True),
        ("Record", {"data": 1, "tag": "t" * 257}, False),
        ("Record", {"data": 1, "node": "n" * 129}, False),
        ("Record", {"data": 1, "meta": {str(n): n for n in range(65)}}, False),
        (
            "AppendBody",
            {"records": [{"data": 1}], "node": "n" * 128, "idempotency_key": "k" * 256},
            True,
        ),
        ("AppendBody", {"records": [{"data": 1}], "idempotency_key": "k" * 257}, False),
        ("StoredRecord", {"$seq": 1, "$ts": 1, "meta": {str(n): n for n in range(67)}}, True),
        ("ClaimBody", {"node": "n" * 128}, True),
        ("ClaimBody", {"node": "n" * 129}, False),
        ("AckBody", {**SETTLE, "node": "n" * 128, "lease_ids": [LEASE]}, True),
        ("AckBody", {**SETTLE, "node": "n" * 129}, False),
        ("NackBody", {**SETTLE, "lease_ids": [""]}, True),
        ("ExtendBody", {**SETTLE, "lease_ms": 1, "lease_ids": ["lease_1F"]}, True),
        ("ExtendBody", {**SETTLE, "lease_ms": 1, "lease_ids": ["lease_"]}, False),
        ("ExtendBody", {**SETTLE, "lease_ms": 1, "lease_ids": ["lease_" + "0" * 65]}, False),
        ("ExtendBody", {**SETTLE, "lease_ms": 1, "lease_ids": [LEASE] * 1_001}, False),
        ("Predicate", "", True),
        ("Predicate", "a**", False),
        ("WatchBody", {"prefixes": ["a" * 255]}, True),
        ("WatchBody", {"prefixes": ["a" * 256]}, False),
    ],
)
def test_the_document_has_the_limits_of_the_protocol(name, value, expected):
    assert fits(name, value) is expected
