"""Answers as compact JSON bytes; payloads of records are spliced in as they were written.

A write's answer is one formatting of bytes, not a dict that is encoded: it is the hot path.

>>> written(b"jobs", Numbers(3, 3, 3, 1), Flags(), Spent(0.25, 0.125, 0.0)).decode()[:70]
'{"topic":"jobs","first_seq":3,"last_seq":3,"seqs":[3],"head_seq":3,"co'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

encode: Final = msgspec.json.Encoder().encode
"""Compact JSON of plain values."""

_WRITTEN: Final = (
    b'{"topic":"%b","first_seq":%d,"last_seq":%d,"seqs":[%b],"head_seq":%d,"count":%d,'
    b'"created":%b,"deduped":%b,"performance":{"server_total_ms":%.3f%b}}'
)
_WRITTEN_SHORT: Final = _WRITTEN.replace(b'"seqs":[%b],', b"%b")
_NEW: Final = (
    b'{"topic":"%b","first_seq":%d,"last_seq":%d,"seqs":[%b],"head_seq":%d,"count":%d,'
    b'"created":false,"deduped":false,"performance":'
    b'{"server_total_ms":%b,"wal_append_ms":%b,"fsync_ms":%b}}'
)
_DIGITS: Final = tuple(b"%d" % number for number in range(1_000))
_THREE_DIGITS: Final = tuple(b"%03d" % number for number in range(1_000))
_BOOLS: Final = {True: b"true", False: b"false"}


class Numbers(NamedTuple):
    """Where the records of a write were placed."""

    first_seq: int
    last_seq: int
    head_seq: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name, unused here


class Flags(NamedTuple):
    """Optional facts in the answer to a write."""

    created: bool = False
    deduped: bool = False
    return_seqs: bool = True


class Spent(NamedTuple):
    """How long a write took, in total and in the log; the log's times are None if deduped."""

    total_ms: float
    append_ms: float | None = None
    fsync_ms: float | None = None


def written_new(
    topic: bytes, first_seq: int, last_seq: int, head_seq: int, total_ms: float, fsync_ms: float
) -> bytes:
    """The answer to the usual write: an existing topic, nothing deduped.

    Nearly all of its time is spent in the log, so one number serves for both.
    """
    total = b"%.3f" % total_ms
    fsync = b"%.3f" % fsync_ms if fsync_ms else b"0.000"
    seqs = b"%d" % first_seq if first_seq == last_seq else _listed(first_seq, last_seq)
    count = last_seq - first_seq + 1
    return _NEW % (topic, first_seq, last_seq, seqs, head_seq, count, total, total, fsync)


def written(topic: bytes, numbers: Numbers, flags: Flags, spent: Spent) -> bytes:
    """The answer to any write."""
    seqs = b""
    shape = _WRITTEN_SHORT
    if flags.return_seqs:
        seqs = _listed(numbers.first_seq, numbers.last_seq)
        shape = _WRITTEN
    logged = b""
    if not flags.deduped:
        logged = b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % (
            spent.append_ms or 0.0,
            spent.fsync_ms or 0.0,
        )
    return shape % (
        topic,
        numbers.first_seq,
        numbers.last_seq,
        seqs,
        numbers.head_seq,
        numbers.count,
        _BOOLS[flags.created],
        _BOOLS[flags.deduped],
        spent.total_ms,
        logged,
    )


def _listed(first: int, last: int) -> bytes:
    """Consecutive numbers, separated by commas.

    Within one thousand only the last digits differ; those are formatted once and cached.
    """
    parts = []
    while first <= last:
        thousand, begin = divmod(first, 1_000)
        end = min(last - first + begin, 999)
        before = b"%d" % thousand if thousand else b""
        digits = _THREE_DIGITS if thousand else _DIGITS
        parts.append(before + (b"," + before).join(digits[begin : end + 1]))
        first += end - begin + 1
    return b",".join(parts)


def data_body(fields: Mapping[str, Any], total_ms: float, **more: Any) -> bytes:
    """A data answer of plain values, closed by its performance."""
    performance = {"server_total_ms": round(total_ms, 3), **more}
    return encode({**fields, "performance": performance})


def spliced(fields: Mapping[str, Any], key: str, items: bytes) -> bytes:
    """A JSON object of plain values with a ready-made array body spliced in under one key.

    The key's position among the fields is where the array goes; its value there is ignored.
    """
    parts = []
    for name, value in fields.items():
        if name == key:
            parts.append(b'"%b":[%b]' % (name.encode(), items))
        else:
            parts.append(b'"%b":%b' % (name.encode(), encode(value)))
    return b"{%b}" % b",".join(parts)


def performance(total_ms: float, **more: Any) -> dict[str, Any]:
    """The performance block."""
    return {"server_total_ms": round(total_ms, 3), **more}
