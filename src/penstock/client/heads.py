"""Topics for tables: the heads of those that they read, and a writer of their changes, over HTTP.

Loaded by name (`penstock.client.heads:make`), because tables are in a layer below clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from penstock.client.blocking.client import Client
from penstock.client.head_follower import HeadFollower
from penstock.client.settings import ClientSettings
from penstock.kernel.errors import Rejected
from penstock.protocol.errors import PublishRefused, ServerUnavailable, TopicNotFound
from penstock.protocol.requests import Record
from penstock.tables.core.frontier import TopicPosition
from penstock.tables.core.topics import TopicSource
from penstock.tables.engine import TopicHead

NOWHERE: Final = TopicHead(TopicPosition(0, 0))
"""The head of a topic that does not exist."""
PAGE_RECORDS: Final = 1_000

_OPTIONS: Final = {"api_key", "timeout_s"}


def make(options: Mapping[str, Any]) -> TopicHeads:
    """Create a `TopicHeads`; options are `api_key` and `timeout_s`."""
    strangers = sorted(set(options) - _OPTIONS)
    if strangers:
        raise Rejected(f"unknown options {', '.join(strangers)}: use {', '.join(sorted(_OPTIONS))}")
    return TopicHeads(**options)


def make_writer(options: Mapping[str, Any]) -> ChangeWriter:
    """Create a writer of changes, with the same options."""
    return ChangeWriter(**options)


class _Servers:
    """One client for each topic server that tables name."""

    def __init__(self, api_key: str | None = None, timeout_s: float = 5.0) -> None:
        self._api_key, self._timeout_s = api_key, timeout_s
        self._clients: dict[str, Client] = {}

    def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            client.close()

    def _client(self, url: str) -> Client:
        found = self._clients.get(url)
        if found is None:
            settings = ClientSettings(
                url,
                self._api_key,
                connect_timeout_s=min(2.0, self._timeout_s),
                timeout_s=self._timeout_s,
            )
            found = self._clients.setdefault(url, Client(settings))
        return found


class TopicHeads(_Servers):
    """Fetches the heads of topics from their servers. Thread-safe."""

    def __init__(self, api_key: str | None = None, timeout_s: float = 5.0) -> None:
        super().__init__(api_key, timeout_s)
        self._known: dict[TopicSource, TopicPosition] = {}
        self._follower: HeadFollower | None = None

    def heads(self, sources: Collection[TopicSource]) -> Mapping[str, TopicHead]:
        """The head of each source, by its name; one that does not exist is at epoch 0, seq 0."""
        found = {source.name: self._head(source) for source in sources}
        self._known = {source: found[source.name].position for source in sources}
        return found

    def moved(self, sources: Collection[TopicSource], timeout_s: float) -> bool:
        """Wait until a source may have moved since its head was last asked for; False if not."""
        if self._follower is None:
            self._follower = HeadFollower(self._api_key, self._timeout_s)
        known = {source: self._known.get(source, NOWHERE.position) for source in sources}
        return self._follower.moved(known, timeout_s)

    def close(self) -> None:
        """Close every connection."""
        if self._follower is not None:
            self._follower.close()
        super().close()

    def _head(self, source: TopicSource) -> TopicHead:
        try:
            state = self._client(source.url).get_topic(source.topic, touch=False)
        except TopicNotFound:
            return NOWHERE
        if state.epoch is None:
            raise Rejected(
                f"the topic server at {source.url} does not report epochs, which tables need: "
                "upgrade it"
            )
        # An empty topic reports where its next record would be: nothing of it is missing.
        earliest_seq = state.earliest_seq if state.count or state.head_seq else 0
        return TopicHead(TopicPosition(state.epoch, state.head_seq), earliest_seq)


class ChangeWriter(_Servers):
    """Writes the changes of tables to topics. For one thread."""

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


def _part(meta: Any, uuid: str, snapshot: int) -> int | None:
    """The number of the part that a record belongs to, if it is of this table and snapshot."""
    if not isinstance(meta, dict) or (meta.get("uuid"), meta.get("snapshot")) != (uuid, snapshot):
        return None
    part = meta.get("part")
    return part if isinstance(part, int) else None
