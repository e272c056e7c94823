"""Server-sent events, byte for byte: frames of a watch and of a queue's worker.

>>> event_id({"b": 7, "a": 12})
b'eyJhIjoxMiwiYiI6N30'
>>> frame(b"1", b"job", b'{"a":1}')
b'id: 1\\nevent: job\\ndata: {"a":1}\\n\\n'
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.protocol import events
from penstock.protocol.errors import RecordsUnreadable
from penstock.server.api.answers import encode
from penstock.topics.core.read import Diff, Tombstone

CONTENT_TYPE: Final = b"text/event-stream"
HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
RETRY: Final = b"retry: 2000\n\n"
HEARTBEAT: Final = b": hb\n\n"
LEFT_OUT_NAMES_MAX: Final = 16
"""So many topics that found no room are named; of more it is said how many."""
SHUTDOWN_CODE: Final = "server_shutting_down"
SHUTDOWN_TEXT: Final = "the server is shutting down; connect again"

LIVES: Final = "$epochs"
"""A key of an event's id that is no topic's name."""

_sorted_encode: Final = msgspec.json.Encoder(order="sorted").encode


def event_id(cursors: Mapping[str, int], lives: Mapping[str, int] | None = None) -> bytes:
    """The place of a whole session: the last seq examined of every topic, as one word.

    Of topics that were made anew during the session, it also tells which life that seq is of.
    """
    place: dict[str, Any] = dict(cursors)
    if lives:
        place[LIVES] = dict(lives)
    return urlsafe_b64encode(_sorted_encode(place)).rstrip(b"=")


def parse_event_id(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """The places in a `Last-Event-ID`, and the lives it tells of; none if it cannot be read."""
    try:
        value = msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        return {}, {}
    if not isinstance(value, dict):
        return {}, {}
    lives = value.pop(LIVES, None)
    return _numbers(value), _numbers(lives if isinstance(lives, dict) else {})


def _numbers(value: dict[str, Any]) -> dict[str, int]:
    return {name: seq for name, seq in value.items() if type(seq) is int and seq >= 0}


def frame(event_id: bytes, event: bytes, data: bytes) -> bytes:
    """One event. A line break inside a payload begins another data line, which readers join."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id, event, data)


def record_data(topic: str, records: bytes, from_seq: int, diff: Diff) -> bytes:
    """What a `record` event tells: the records of a page, joined, after a cursor."""
    return b'{"topic":"%b","from_seq":%d,"head_seq":%d,"records":[%b],"to_seq":%d,"epoch":%d}' % (
        topic.encode(),
        from_seq,
        diff.head_seq,
        records,
        diff.next_from_seq,
        diff.epoch,
    )


def caught_up_data(topic: str, diff: Diff) -> bytes:
    """What a `caught-up` event tells."""
    return b'{"topic":"%b","head_seq":%d,"epoch":%d}' % (topic.encode(), diff.head_seq, diff.epoch)


def tombstone_data(
    topic: str, tombstone: Tombstone, epoch: int, reason: str | None = None
) -> bytes:
    """What a `tombstone` event tells; `reason` replaces the topic's own."""
    return encode(
        events.Tombstone(
            topic=topic,
            reason=reason or tombstone.reason,
            gap_from=tombstone.gap_from,
            gap_to=tombstone.gap_to,
            earliest_seq=tombstone.earliest_seq,
            head_seq=tombstone.head_seq,
            epoch=epoch,
        )
    )


def deleted_data(topic: str) -> bytes:
    """What a `topic-deleted` event tells."""
    return encode(events.TopicDeleted(topic=topic))


def left_out_data(topics: Sequence[str], topics_max: int) -> bytes:
    """What a `left-out` event tells: topics of a prefix that are too many to be pushed."""
    text = f"expected at most {topics_max} topics; others are pushed when there is room"
    named = list(topics[:LEFT_OUT_NAMES_MAX])
    return encode(events.LeftOut(topics=named, count=len(topics), message=text))


def unreadable_data(topic: str, error: Exception, reason: str) -> bytes:
    """What the last event of a watch tells when records cannot be read."""
    text = f"topic {topic} cannot be read: {reason}"
    if isinstance(error, RecordsUnreadable):
        return encode({"code": error.code, "message": text, "topic": topic, **error.detail})
    return encode({"code": "internal", "message": text})


def shutdown_data() -> bytes:
    """What the last event of a watch tells when the server ends."""
    return encode({"code": SHUTDOWN_CODE, "message": SHUTDOWN_TEXT})


def work_error(code: int | str, text: str, topic: str) -> bytes:
    """The last event of a worker's stream; it has no id, so that no job seems done."""
    data = encode({"code": code, "error": text, "topic": topic})
    return b"event: error\ndata: %b\n\n" % data
