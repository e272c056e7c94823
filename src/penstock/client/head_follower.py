"""Learns from topic servers that topics have moved, by requests that wait for the next record.

One thread with an event loop has one such request open for each topic. It only says that something
moved: to learn where to, ask for the heads. So a server that cannot be reached, or a topic
that does not exist yet, costs nothing but the time until the next regular look.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from penstock.client.aio.client import AsyncClient
from penstock.client.settings import ClientSettings
from penstock.protocol.errors import CallError
from penstock.tables.core.frontier import TopicPosition
from penstock.tables.core.topics import TopicSource

TOPICS_MAX: Final = 64
"""Topics beyond this limit are not followed, only looked at from time to time."""
WAIT_MS: Final = 20_000
GAP_S: Final = 0.01
"""The least time between two requests for one topic, however often it is written to."""
AGAIN_S: Final = 1.0


class HeadFollower:
    """Follows topics from a thread of its own. `moved` and `close` are for one other thread."""

    def __init__(self, api_key: str | None, timeout_s: float) -> None:
        self._api_key, self._timeout_s = api_key, timeout_s
        self._news = threading.Condition()
        self._moved = False
        self._tasks: dict[TopicSource, asyncio.Task[None]] = {}
        self._clients: dict[str, AsyncClient] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="penstock-heads", daemon=True
        )
        self._thread.start()

    def moved(self, known: Mapping[TopicSource, TopicPosition], timeout_s: float) -> bool:
        """Wait until one of the topics has left its known position; False if none did."""
        wanted = dict(list(known.items())[:TOPICS_MAX])
        self._loop.call_soon_threadsafe(self._follow, wanted)
        with self._news:
            found = self._news.wait_for(lambda: self._moved, timeout_s)
            self._moved = False
            return found

    def close(self) -> None:
        """End all requests."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _follow(self, wanted: Mapping[TopicSource, TopicPosition]) -> None:
        for source in [source for source in self._tasks if source not in wanted]:
            self._tasks.pop(source).cancel()
        for source, at in wanted.items():
            task = self._tasks.get(source)
            if task is None or task.done():
                self._tasks[source] = asyncio.ensure_future(self._until_moved(source, at))

    async def _until_moved(self, source: TopicSource, at: TopicPosition) -> None:
        """Wait for records of a topic again and again."""
        client = self._client(source.url)
        while True:
            try:
                page = await client.diff(
                    source.topic, from_seq=at.seq, epoch=at.epoch or None, limit=1,
                    include_meta=False, wait_ms=WAIT_MS, batch_bytes_max=1,
                )  # fmt: skip
            except CallError:
                await asyncio.sleep(AGAIN_S)
                continue
            now = TopicPosition(page.epoch or 0, page.head_seq)
            if now != at:
                at = now
                with self._news:
                    self._moved = True
                    self._news.notify()
            await asyncio.sleep(GAP_S)

    def _client(self, url: str) -> AsyncClient:
        found = self._clients.get(url)
        if found is None:
            settings = ClientSettings(url, self._api_key, timeout_s=self._timeout_s)
            found = self._clients[url] = AsyncClient(settings)
        return found

    async def _end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with suppress(asyncio.CancelledError):
                await task
        for client in self._clients.values():
            await client.aclose()
