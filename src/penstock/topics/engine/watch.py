"""Watchers of a topic: woken in its turn, with pages that are encoded once for all of them.

A listener is called with the topic's name in every turn of the topic, also when it is deleted; it
reads from its own cursor. Registering and reading happen on one thread without a break, so no
wake-up is missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.cold_row import ColdBlock, NotLoaded
from penstock.topics.core.read import DiffPage, ReadRequest, read
from penstock.topics.core.record import Found, records_json
from penstock.topics.core.topic import Topic
from penstock.topics.persist.cold import ColdCache

Listener = Callable[[str], None]
_LOGGER: Final = logging.getLogger("penstock.topics")


class PageShape(NamedTuple):
    """The fields a watcher wants: watchers with the same shape and cursor share encoded bytes."""

    request: ReadRequest = ReadRequest()
    include_data: bool = True

    @classmethod
    def of(cls, request: ReadRequest, *, include_data: bool = True) -> PageShape:
        """The shape of a request, whatever its cursor."""
        return cls(request._replace(from_seq=0, epoch=None, wait_ms=0), include_data)


class Behind(NamedTuple):
    """How many watchers of a topic are not caught up, by what they wait for."""

    turns: int = 0
    """Their turn, in a round in progress."""
    readers: int = 0
    """Their clients to read what was sent."""
    loads: int = 0
    """Records being read from disk."""

    def plus(self, other: Behind) -> Behind:
        """The sum of both."""
        return Behind(*map(sum, zip(self, other, strict=True)))


class SharedPage:
    """The current page for a cursor: the diff, its records as JSON, and a cache of encoded frames.

    `waits`: its records are being loaded. There is nothing to report yet, not even an empty page;
    the topic gets a turn when they are loaded.
    """

    __slots__ = ("diff", "frames", "records", "waits")

    def __init__(self, diff: DiffPage, records: bytes, *, waits: bool = False) -> None:
        self.waits = waits
        self.diff = diff
        self.records = records
        self.frames: dict[object, bytes] = {}


class Watchers:
    """Listeners by topic, and the pages of the topic that is being served."""

    def __init__(self, limits: TopicLimits) -> None:
        self._limits = limits
        self.by_topic: dict[str, dict[Listener, None]] = {}
        self.pushed = 0  # records ever pushed to watchers and workers
        self.slow = 0  # connections that do not read what they were sent
        self._created: dict[Listener, None] = {}
        self._pages: dict[tuple[int, int | None, PageShape], SharedPage] = {}
        self._pages_of: tuple[Topic, int, int, int, int, TopicConfig] | None = None
        self.cold: ColdCache | None = None
        self.mark: Callable[[str], None] = self.wake

    def listen(self, topic: str, listener: Listener) -> None:
        """Call a listener in every turn of a topic."""
        self.by_topic.setdefault(topic, {})[listener] = None

    def leave(self, topic: str, listener: Listener) -> None:
        """Stop calling a listener."""
        listeners = self.by_topic.get(topic)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self.by_topic[topic]

    async def wait(self, topic: str, span_s: float) -> bool:
        """Wait for the next turn of a topic; False on timeout."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_topic: str) -> None:
            if not future.done():
                future.set_result(None)

        self.listen(topic, wake)
        try:
            await asyncio.wait_for(future, span_s)
        except TimeoutError:
            return False
        finally:
            self.leave(topic, wake)
        return True

    def listen_created(self, listener: Listener) -> None:
        """Call a listener with the name of every new topic."""
        self._created[listener] = None

    def leave_created(self, listener: Listener) -> None:
        """Stop calling a listener."""
        self._created.pop(listener, None)

    def count(self, topic: str) -> int:
        """How many listeners a topic has."""
        return sum(
            getattr(getattr(listener, "__self__", None), "audience", 1)
            for listener in self.by_topic.get(topic, ())
        )

    def behind(self, topic: str) -> Behind:
        """The listeners that are not caught up, as far as they know themselves."""
        behind = Behind()
        for listener in self.by_topic.get(topic, ()):
            ask = getattr(getattr(listener, "__self__", None), "behind", None)
            if ask is not None:
                behind = behind.plus(ask(topic))
        return behind

    def push(
        self, topic: Topic, found: Found, watchers: int, now_ms: int, since_ms: int = 0
    ) -> None:
        """Count records that were pushed, once for each watcher, and how late the first one came.

        What was written before `since_ms`, when the watcher came, was not late for it.
        """
        records = watchers * len(found.records)
        if records:
            self.pushed += records
            topic.out_records += records
            topic.last_out_ms = now_ms
            if topic.push_ms is not None and found.times[0] >= since_ms:
                topic.push_ms.record(now_ms - found.times[0])

    def has(self, topic: str) -> bool:
        """Whether a topic has listeners."""
        return topic in self.by_topic

    def wake(self, topic: str) -> None:
        """Call the listeners of a topic in its turn."""
        listeners = self.by_topic.get(topic)
        if listeners:
            _tell(listeners, topic)
        self.forget_pages()

    def created(self, topic: str) -> None:
        """Announce a new topic."""
        _tell(self._created, topic)

    def page(
        self, topic: Topic, from_seq: int, epoch: int | None, shape: PageShape, now_ms: int
    ) -> SharedPage:
        """The current page for a cursor; shared until the topic changes.

        A failed read from disk is raised once to each waiter.
        """
        aged_seq = topic.aged_seq(now_ms)
        state = (topic, topic.head_seq, topic.removals, topic.count, aged_seq, topic.config)
        if self._pages_of != state:
            self._pages_of = state
            self._pages.clear()
        key = (from_seq, epoch, shape)
        page = self._pages.get(key)
        if page is None:
            request = shape.request._replace(from_seq=from_seq, epoch=epoch)
            try:
                diff = self._read(topic, request, now_ms)
            except NotLoaded as missing:
                return self._wait(topic, from_seq, epoch, missing.block, now_ms)
            page = SharedPage(diff, encode_records(diff, shape))
            self._pages[key] = page
        return page

    def _read(self, topic: Topic, request: ReadRequest, now_ms: int) -> DiffPage:
        """A page; with several blocks of cold records it ends before the first that is not loaded.

        A reader that needed all of them at once might exceed the memory for loaded blocks.
        """
        try:
            return read(topic, request, now_ms, self._limits)
        except NotLoaded as missing:
            diff = read(topic, request, now_ms, self._limits, missing.block.first_seq - 1)
            if not diff.records_scanned and diff.tombstone is None:
                raise
            return diff

    def _wait(
        self, topic: Topic, from_seq: int, epoch: int | None, block: ColdBlock, now_ms: int
    ) -> SharedPage:
        """Load a block, and give the topic a turn when it is loaded."""
        assert self.cold is not None, "a node with cold records has a cache for them"
        error = self.cold.failure(block)
        if error is not None:
            raise error
        mark = partial(self.mark, topic.name)
        self.cold.soon(block, mark, failed=mark)
        epoch = topic.told_epoch if epoch is None else epoch
        diff = DiffPage(
            Found((), (), ()),
            from_seq,
            topic.head_seq,
            topic.at(now_ms).earliest_seq,
            None,
            epoch,
            0,
        )
        return SharedPage(diff, b"", waits=True)

    def forget_pages(self) -> None:
        """Free the pages kept for the topic that was served."""
        self._pages.clear()
        self._pages_of = None


def _tell(listeners: Iterable[Listener], topic: str) -> None:
    """Call listeners, which may come or go meanwhile; one that fails does not stop the others."""
    for listener in tuple(listeners):
        try:
            listener(topic)
        except Exception:
            _LOGGER.exception("a listener of topic %r failed", topic)


def encode_records(diff: DiffPage, shape: PageShape) -> bytes:
    """The records of a diff as the inside of a JSON array."""
    request = shape.request
    return records_json(
        diff.found,
        include_tags=request.include_tags,
        include_meta=request.include_meta,
        include_data=shape.include_data,
    )
