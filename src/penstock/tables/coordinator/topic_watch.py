"""News of topics for a coordinator: asked for in a thread of its own.

A topic server may be far away, slow or gone. The coordinator's loop only looks at what was last
heard.
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
"""How long an answer that is under way is waited for in the end."""


class TopicWatch:
    """Asks where topics stand, again and again, as long as there are any to ask for."""

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
        """Why topics could not be asked just now, if they could not."""

    def follow(self, sources: tuple[TopicSource, ...]) -> None:
        """Ask for these from now on."""
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
        """Where topics were last seen; those that nobody could tell of are left out."""
        return self._heard

    def close(self) -> None:
        """Ask no more."""
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
        except Exception as error:  # topics that are away have not moved
            self.trouble = detail_of(error)
            return
        self.trouble = None
        with self._asked:
            if sources is not self._sources:
                return  # it is news of other sources by now
            before = self._heard
            self._heard = {name: head.position for name, head in heads.items()}
        if self._heard != before and not self._ended:
            self._news()
