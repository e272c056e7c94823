"""Dead letters: what a record's meta says of its job's death, and how it becomes a job again.

>>> letter = dead_letter(make_record(b"1"), Death("q", 7, 3, reason_text(3)))
>>> death_of(letter)
Death(queue='q', src_seq=7, deliveries=3, reason='the lease ended 3 times', redrives=0)
>>> bytes(redriven(letter).meta)
b'{"$redrives":"1"}'
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from penstock.topics.core.record import (
    RawRecord,
    make_record,  # noqa: F401  (the example above)
    splice_meta,
    without_members,
)

_PREFIX: Final = "$dead_letter_"
_REDRIVES: Final = "$redrives"

Failure = str | int
"""How the last delivery of a job ended: the reason that its worker gave, or how many leases in a
row have ended."""


def lease_ended(before: Failure | None) -> int:
    """The failure of a job after the end of another lease."""
    return before + 1 if isinstance(before, int) else 1


def reason_text(failure: Failure | None) -> str | None:
    """A failure in words; None if no reason is known."""
    if isinstance(failure, int):
        return "the lease ended once" if failure == 1 else f"the lease ended {failure} times"
    return failure or None


class Death(NamedTuple):
    """What a dead letter says of its job: which it was, and why it was given up.

    `redrives` counts how often it was moved out of a dead letter topic before it died this time.
    """

    queue: str
    src_seq: int | None
    deliveries: int | None
    reason: str | None = None
    redrives: int = 0


def dead_letter(record: RawRecord, death: Death) -> RawRecord:
    """A job as a dead letter: unchanged, with its origin added to its meta.

    The origin replaces that of an earlier dead letter; its redrives stay.
    """
    old = None if record.meta is None else without_members(bytes(record.meta), _PREFIX)
    members = (
        f'"{_PREFIX}from":"{death.queue}",'
        f'"{_PREFIX}deliveries":"{death.deliveries}",'
        f'"{_PREFIX}src_seq":"{death.src_seq}"'
    ).encode()
    if death.reason is not None:
        members += b',"%breason":%b' % (_PREFIX.encode(), _encode(death.reason))
    return replace(record, meta=Raw(splice_meta(old, members)))


def death_of(record: RawRecord) -> Death | None:
    """What a record says of its death; None if it is not a dead letter."""
    if record.meta is None or _PREFIX.encode() not in bytes(record.meta):
        return None
    try:
        meta = _decode(bytes(record.meta))
    except (msgspec.DecodeError, RecursionError):
        return None
    queue, reason = meta.get(_PREFIX + "from"), meta.get(_PREFIX + "reason")
    if not isinstance(queue, str):
        return None
    return Death(
        queue,
        _number(meta.get(_PREFIX + "src_seq")),
        _number(meta.get(_PREFIX + "deliveries")),
        reason if isinstance(reason, str) and reason else None,
        _number(meta.get(_REDRIVES)) or 0,
    )


def redriven(record: RawRecord) -> RawRecord:
    """A dead letter as a job again: without its origin, and marked so that a second death shows."""
    meta = b"{}" if record.meta is None else bytes(record.meta)
    redrives = (_number(_decode(meta).get(_REDRIVES)) or 0) + 1
    kept = without_members(without_members(meta, _PREFIX), _REDRIVES)
    return replace(record, meta=Raw(splice_meta(kept, f'"{_REDRIVES}":"{redrives}"'.encode())))


def _number(text: object) -> int | None:
    """A number as meta has it, which anyone may have written."""
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 20:
        return int(text)
    return None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
