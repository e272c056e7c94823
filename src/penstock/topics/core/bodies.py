"""The JSON schemas of a write, which the decoder reads directly into records.

They are separate from `batch.py` because they cannot be compiled: the decoder needs their
annotations.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from penstock.topics.core.record import Record, Routed


class WriteBody(Struct, forbid_unknown_fields=True):
    """A write with only the known fields."""

    records: list[Record]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class PlainRecord(Struct, gc=False, forbid_unknown_fields=True):
    """A record with data only."""

    data: Raw


class PlainBody(Struct, forbid_unknown_fields=True):
    """A write of such records, the most common kind: decodes faster than the general one."""

    records: list[PlainRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class LooseRecord(Record, gc=False, forbid_unknown_fields=False):
    """A record with unknown fields, which are ignored."""


class LooseBody(Struct, kw_only=True):
    """A write with unknown fields, which are ignored."""

    records: list[LooseRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class RoutedBody(Struct):
    """Records that came through routers, as stored in the log."""

    records: list[Routed]
