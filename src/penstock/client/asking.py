"""What both faces of the client make of their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.client import calls
from penstock.client.calls import Call
from penstock.client.errors import NotPenstock
from penstock.client.watching import Position
from penstock.protocol.answers import Diff, RouterPage, TopicPage
from penstock.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

AUTO_KEY: Final = "<generated>"
"""As an idempotency key: the client makes one, so that the write can be sent again safely."""


def starts_of(
    topics: str | Iterable[str] | Mapping[str, int | Position], *, tail: bool
) -> dict[str, Position]:
    """Where a watch begins in each topic."""
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Mapping):
        return {name: Position(tail=tail) for name in topics}
    if tail:
        raise InvalidRequest("expected either tail or seqs to begin after, found both")
    return {
        name: place if isinstance(place, Position) else Position(place)
        for name, place in topics.items()
    }


def after_topics(page: TopicPage, prefix: str, page_size: int) -> Call[TopicPage] | None:
    """The call for the next page of topics."""
    if page.next_cursor is None:
        return None
    return calls.list_topics(prefix, page_size=page_size, cursor=page.next_cursor)


def after_routers(page: RouterPage, prefix: str, **fields: Any) -> Call[RouterPage] | None:
    """The call for the next page of routers."""
    if page.next_cursor is None:
        return None
    return calls.list_routers(prefix, cursor=page.next_cursor, **fields)


def after_diff(page: Diff, **fields: Any) -> Call[Diff] | None:
    """The call for the next page of records, until the reader has caught up."""
    if page.caught_up:
        return None
    return calls.diff(page.topic, from_seq=page.next_from_seq, epoch=page.epoch, **fields)


def arrow_table(body: bytes) -> pa.Table:
    """An Arrow stream as a table. What a page says beside its records is its schema's metadata.

    The table's columns are the body itself: nothing is copied.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            return reader.read_all()
    except pa.ArrowInvalid as error:
        raise NotPenstock(f"expected an Arrow stream, found {body[:40]!r}") from error
