"""The shapes of a write's JSON, which the decoder reads straight into records.

They stand apart from `batch.py` because the compiled build cannot take them: the decoder needs
their annotations.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from penstock.topics.core.record import Record, Routed


class WriteBody(Struct, forbid_unknown_fields=True):
    """A write with the fields it may have and no others."""

    records: list[Record]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class PlainRecord(Struct, gc=False, forbid_unknown_fields=True):
    """A record of data alone."""

    data: Raw


class PlainBody(Struct, forbid_unknown_fields=True):
    """A write of such records, which are most: read in less time than those of any fields."""

    records: list[PlainRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class LooseRecord(Record, gc=False, forbid_unknown_fields=False):
    """A record that may have fields beside its own, which nobody reads."""


class LooseBody(Struct, kw_only=True):
    """A write with any fields beside its own."""

    records: list[LooseRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class RoutedBody(Struct):
    """Records that came through routers, as the log has them."""

    records: list[Routed]
