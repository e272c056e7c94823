"""The heads of topics, for tables that read them: fetched over HTTP, one client per server.

Loaded by name (`penstock.client.heads:make`), because tables are in a layer below clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from penstock.client.blocking.client import Client
from penstock.client.head_follower import HeadFollower
from penstock.client.publishing import ChangeWriter
from penstock.client.settings import ClientSettings
from penstock.kernel.errors import Rejected
from penstock.protocol.errors import TopicNotFound
from penstock.tables.core.frontier import TopicPosition
from penstock.tables.core.topics import TopicSource
from penstock.tables.engine import TopicHead

NOWHERE: Final = TopicHead(TopicPosition(0, 0))
"""The head of a topic that does not exist."""

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


class TopicHeads:
    """Fetches the heads of topics from their servers. Thread-safe."""

    def __init__(self, api_key: str | None = None, timeout_s: float = 5.0) -> None:
        self._api_key, self._timeout_s = api_key, timeout_s
        self._clients: dict[str, Client] = {}
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
        for client in self._clients.values():
            client.close()

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
