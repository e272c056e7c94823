"""Positions of topics for a coordinator, polled in a separate thread.

A topic server may be far away, slow or gone. The coordinator's loop only reads the last known
positions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from penstock.tables.core.frontier import Position
from penstock.tables.core.topics import TopicSource
from penstock.tables.engine import TopicPositions
from penstock.tables.worker.outcomes import detail_of

_PATIENCE_S: Final = 1.0
"""How long to wait on close for a request in flight."""


class TopicWatch:
    """Polls the positions of topics while there are any to follow."""

    def __init__(
        self,
        topics: TopicPositions | None,
        poll_ms: int,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._topics, self._pause_s, self._news = topics, poll_ms / 1_000, news
        self._sources: tuple[TopicSource, ...] = ()
        self._heard: Mapping[str, Position] = {}
        self._asked = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False
        self.trouble: str | None = None
        """Why the last poll failed, or None."""

    def follow(self, sources: tuple[TopicSource, ...]) -> None:
        """Poll these from now on."""
        if sources == self._sources or self._topics is None:
            return
        with self._asked:
            self._sources = sources
            self._heard = {}
            self._asked.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-topics", daemon=True)
            self._thread.start()

    def heard(self) -> Mapping[str, Position]:
        """The last known positions; topics without one are left out."""
        return self._heard

    def close(self) -> None:
        """Stop polling."""
        with self._asked:
            self._ended = True
            self._asked.notify()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        while not self._ended:
            self._ask()
            with self._asked:
                self._asked.wait_for(lambda: self._ended, self._pause_s)
        if self._topics is not None:
            self._topics.close()

    def _ask(self) -> None:
        sources = self._sources
        if self._topics is None or not sources:
            return
        try:
            heads = self._topics.heads(sources)
        except Exception as error:  # unreachable topics count as unmoved
            self.trouble = detail_of(error)
            return
        self.trouble = None
        with self._asked:
            if sources is not self._sources:
                return  # the sources have changed meanwhile
            before = self._heard
            self._heard = {name: head.position for name, head in heads.items()}
        if self._heard != before and not self._ended:
            self._news()
