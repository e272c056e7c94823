"""Writes the changes of tables to topics, for a coordinator: over HTTP, one client per server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.client.blocking.client import Client
from penstock.client.settings import ClientSettings
from penstock.protocol.errors import PublishRefused, ServerUnavailable, TopicNotFound
from penstock.protocol.requests import Record
from penstock.tables.core.frontier import TopicPosition
from penstock.tables.engine import TopicHead

PAGE_RECORDS: Final = 1_000


class ChangeWriter:
    """Writes to the topics of any number of servers. For one thread."""

    def __init__(self, api_key: str | None = None, timeout_s: float = 5.0) -> None:
        self._api_key, self._timeout_s = api_key, timeout_s
        self._clients: dict[str, Client] = {}

    def head(self, url: str, topic: str) -> TopicHead:
        """Where a topic ends; raises `PublishRefused` if it cannot take changes."""
        try:
            state = self._client(url).get_topic(topic, touch=False)
        except TopicNotFound:
            raise PublishRefused(
                f"there is no topic {topic!r} on {url}: create it, such as with "
                f"`penstock topic create {topic}`",
                topic=topic,
            ) from None
        except ServerUnavailable as error:
            raise PublishRefused(
                f"the topic server at {url} cannot be asked about {topic!r}: {error.message}",
                topic=topic,
            ) from error
        if state.type != "log":
            raise PublishRefused(
                f"topic {topic!r} is a {state.type}, and changes need a log: choose another topic",
                topic=topic,
            )
        if state.epoch is None:
            raise PublishRefused(f"the server at {url} does not report epochs: upgrade it")
        return TopicHead(TopicPosition(state.epoch, state.head_seq), state.earliest_seq)

    def held(
        self, url: str, topic: str, after: TopicPosition, uuid: str, snapshot: int
    ) -> tuple[TopicPosition, int]:
        """How many parts of a table's snapshot stand behind a position, and where they end."""
        at, last, parts = after.seq, after.seq, 0
        while True:
            page = self._client(url).diff(topic, from_seq=at, limit=PAGE_RECORDS)
            for record in page.records:
                part = _part(record.meta, uuid, snapshot)
                if part is not None:
                    last, parts = record.seq, max(parts, part + 1)
            at = page.next_from_seq
            if page.caught_up:
                return TopicPosition(after.epoch, last), parts

    def write(self, url: str, topic: str, records: Sequence[Record], key: str) -> int:
        """Append records, all or none, once for each idempotency key; returns the last seq."""
        written = self._client(url).write(
            topic, records, idempotency_key=key, create=False, return_seqs=False
        )
        return written.last_seq

    def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            client.close()

    def _client(self, url: str) -> Client:
        found = self._clients.get(url)
        if found is None:
            connect_s = min(2.0, self._timeout_s)
            settings = ClientSettings(
                url, self._api_key, connect_timeout_s=connect_s, timeout_s=self._timeout_s
            )
            found = self._clients.setdefault(url, Client(settings))
        return found


def _part(meta: Any, uuid: str, snapshot: int) -> int | None:
    """The number of the part that a record belongs to, if it is of this table and snapshot."""
    if not isinstance(meta, dict) or (meta.get("uuid"), meta.get("snapshot")) != (uuid, snapshot):
        return None
    part = meta.get("part")
    return part if isinstance(part, int) else None
