"""Requests and answers about spaces: commits, entities, pages of entities.

>>> parse_after("120:meter-7")
(120, 'meter-7')
>>> accepted(7, 1_000, False, 1, 0.25).decode()[:48]
'{"seq":7,"ts":1000,"replayed":false,"epoch":1,"p'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from penstock.commits.model import Commit, parse_commit
from penstock.commits.space import writes_of
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.limits import PAGE_SIZE, PAGE_SIZE_MAX
from penstock.server.api.answers import encode
from penstock.server.api.queries import Query
from penstock.topics.core.record import DEPTH_MAX, check_depth

_ACCEPTED: Final = (
    b'{"seq":%d,"ts":%d,"replayed":%b,"epoch":%d,"performance":{"server_total_ms":%.3f}}'
)
_ROW: Final = b'{"entity":"%b","seq":%d,"doc":%b}'
_ENTITY: Final = (
    b'{"entity":"%b","seq":%d,"doc":%b,"head":%d,"performance":{"server_total_ms":%.3f}}'
)
_LIST: Final = b'{"entities":[%b],"head":%d,"next":%b,"performance":{"server_total_ms":%.3f}}'
_SMALL_BYTES: Final = 2 * DEPTH_MAX  # JSON up to this length cannot be nested too deeply


class Row(NamedTuple):
    """An entity in an answer."""

    entity: str
    seq: int
    document: bytes


def read_commit(body: bytes) -> Commit:
    """The commit in a body, or `InvalidRequest`."""
    if len(body) > _SMALL_BYTES:
        check_depth(body)
    return parse_commit(body)


def accepted(seq: int, ts_ms: int, replayed: bool, epoch: int, total_ms: float) -> bytes:
    """The answer to a commit that took effect, now or at an earlier try."""
    return _ACCEPTED % (seq, ts_ms, b"true" if replayed else b"false", epoch, total_ms)


def entity_body(row: Row, head_seq: int, total_ms: float) -> bytes:
    """The answer with one entity."""
    return _ENTITY % (row.entity.encode(), row.seq, row.document, head_seq, total_ms)


def list_body(rows: Iterable[Row], head_seq: int, after: str | None, total_ms: float) -> bytes:
    """The answer with a page of entities."""
    parts = [_ROW % (row.entity.encode(), row.seq, row.document) for row in rows]
    cursor = b"null" if after is None else encode(f"{head_seq}:{after}")
    return _LIST % (b",".join(parts), head_seq, cursor, total_ms)


def history_row(entity: str, seq: int, ts_ms: int, commit: Commit) -> dict[str, Any]:
    """A commit in the history of an entity, with its effect on that entity."""
    row: dict[str, Any] = {
        "seq": seq,
        "ts": ts_ms,
        "session": commit.session,
        "local_seq": commit.local_seq,
    }
    if commit.event_id is not None:
        row["event_id"] = commit.event_id
    row["writes"] = [msgspec.to_builtins(write) for write in writes_of(commit, entity)]
    return row


def number(query: Query, name: str) -> int | None:
    """A whole number of the query, or None if absent; anything else is refused.

    A misread seq must not count as absent: the answer would show another state.
    """
    text = query.text(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequest(f"expected {name} to be a whole number from 0 on, found {text!r}")
    return int(text)


def page_limit(query: Query) -> int:
    """How many rows a page has."""
    limit = number(query, "limit")
    if limit is None:
        return PAGE_SIZE
    if not 1 <= limit <= PAGE_SIZE_MAX:
        raise InvalidRequest(f"expected limit to be 1 to {PAGE_SIZE_MAX}, found {limit}")
    return limit


def parse_after(cursor: str) -> tuple[int, str]:
    """The seq and the id in the cursor of a page."""
    seq, colon, entity = cursor.partition(":")
    if not colon or not entity or not (seq.isascii() and seq.isdigit() and len(seq) < 20):
        raise InvalidRequest(f"expected after to be next of an earlier page, found {cursor!r}")
    return int(seq), entity
