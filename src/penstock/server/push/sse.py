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
from typing import Any, Final, NamedTuple

import msgspec

from penstock.protocol import events
from penstock.protocol.errors import RecordsUnreadable
from penstock.server.api.answers import encode
from penstock.topics.core.read import DiffPage, LostSeqs

CONTENT_TYPE: Final = b"text/event-stream"
HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
RETRY: Final = b"retry: 2000\n\n"
HEARTBEAT: Final = b": hb\n\n"
LEFT_OUT_NAMES_MAX: Final = 16
"""How many topics without room are named; beyond that they are only counted."""


class Farewell(NamedTuple):
    """Why the server ends a stream: the last thing that it says."""

    code: str
    text: str


SHUTDOWN: Final = Farewell("server_shutting_down", "the server is shutting down; connect again")
MOVED: Final = Farewell("not_leader", "another node leads what this needs now; connect again")
SIGNED_OUT: Final = Farewell("unauthorized", "the session has ended: sign in again")

LIVES: Final = "$epochs"
"""A key of an event's id that cannot be a topic's name."""

_sorted_encode: Final = msgspec.json.Encoder(order="sorted").encode


def event_id(cursors: Mapping[str, int], lives: Mapping[str, int] | None = None) -> bytes:
    """The position of a whole session: the last seq examined of every topic, as one word.

    For topics that were recreated during the session, it also has the epoch of that seq.
    """
    place: dict[str, Any] = dict(cursors)
    if lives:
        place[LIVES] = dict(lives)
    return urlsafe_b64encode(_sorted_encode(place)).rstrip(b"=")


def parse_event_id(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """The positions and epochs in a `Last-Event-ID`; empty if it cannot be parsed."""
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


def record_data(topic: str, records: bytes, from_seq: int, diff: DiffPage) -> bytes:
    """The data of a `record` event: the records of a page, joined, after a cursor."""
    return b'{"topic":"%b","from_seq":%d,"head_seq":%d,"records":[%b],"to_seq":%d,"epoch":%d}' % (
        topic.encode(),
        from_seq,
        diff.head_seq,
        records,
        diff.next_from_seq,
        diff.epoch,
    )


def caught_up_data(topic: str, diff: DiffPage) -> bytes:
    """The data of a `caught-up` event."""
    return b'{"topic":"%b","head_seq":%d,"epoch":%d}' % (topic.encode(), diff.head_seq, diff.epoch)


def tombstone_data(topic: str, tombstone: LostSeqs, epoch: int, reason: str | None = None) -> bytes:
    """The data of a `tombstone` event; `reason` overrides the topic's own."""
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
    """The data of a `topic-deleted` event."""
    return encode(events.TopicDeleted(topic=topic))


def left_out_data(topics: Sequence[str], topics_max: int) -> bytes:
    """The data of a `left-out` event: topics of a prefix that exceed the limit."""
    text = f"a watch has at most {topics_max} topics; others are pushed when there is room"
    named = list(topics[:LEFT_OUT_NAMES_MAX])
    return encode(events.LeftOut(topics=named, count=len(topics), message=text))


def unreadable_data(topic: str, error: Exception, reason: str) -> bytes:
    """The data of a watch's last event when records cannot be read."""
    text = f"topic {topic} cannot be read: {reason}"
    if isinstance(error, RecordsUnreadable):
        return encode({"code": error.code, "message": text, "topic": topic, **error.detail})
    return encode({"code": "internal", "message": text})


def farewell_data(farewell: Farewell) -> bytes:
    """The data of a watch's last event when the server ends it."""
    return encode({"code": farewell.code, "message": farewell.text})


def work_error(code: int | str, text: str, topic: str) -> bytes:
    """The last event of a worker's stream; it has no id, so that no job seems done."""
    data = encode({"code": code, "error": text, "topic": topic})
    return b"event: error\ndata: %b\n\n" % data
