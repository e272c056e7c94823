"""Keeps replicas fresh: a listing of the space, then a watch of its later commits.

Runtimes of one client and one space share a feed: the commits arrive over one stream and are
decoded once, however many runtimes there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import msgspec

from penstock.client import calls, space_calls
from penstock.client.aio.runner import AsyncRunner
from penstock.client.aio.watch import AsyncWatchFlow
from penstock.client.errors import NotPenstock
from penstock.client.runtime.replica import Change, EntityVersion, Replica
from penstock.client.transports.aio import AsyncTransport
from penstock.client.watching import Position, WatchCore, WatchOptions
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected
from penstock.protocol.answers import EntityPage, StoredRecord
from penstock.protocol.commits import CommitWrite
from penstock.protocol.errors import CallError, NotFound, TopicNotFound
from penstock.protocol.events import Records, Tombstone, TopicDeleted, WatchEvent

PAGE_SIZE: Final = 1_000
HEARTBEAT_MS: Final = 5_000
"""Short enough to detect a dead stream well within the time that an event has to converge."""
_NO_END_MS: Final = 1e15
"""A replica is needed for as long as its runtime exists."""


class FeedConsumer(Protocol):
    """A consumer of a feed: the driver of a runtime."""

    def listed(self, versions: Mapping[str, EntityVersion], head: int, epoch: int | None) -> None:
        """All entities as of a commit."""
        ...

    def advanced(self, changes: Sequence[Change]) -> None:
        """The commits after that."""
        ...

    def troubled(self, error: CallError) -> None:
        """Something is wrong that may persist; the feed keeps retrying."""
        ...


class Feed:
    """Lists a space and follows it while a runtime uses it; lists it again after a failure."""

    def __init__(self, runner: AsyncRunner, space: str, random: Random) -> None:
        self._runner = runner
        self._space = space
        self._random = random
        self._replica = Replica()
        self._consumers: dict[FeedConsumer, None] = {}
        self._trouble: CallError | None = None
        self._task: asyncio.Task[None] | None = None
        self._flow: AsyncWatchFlow[WatchEvent] | None = None
        self._failures = 0
        reconnect = runner.settings.reconnect
        self._backoff = Backoff(reconnect.base_ms, reconnect.cap_ms, reconnect.jitter, _NO_END_MS)

    def join(self, consumer: FeedConsumer) -> None:
        """Add a consumer. It gets the current state at once if that is known, else once listed."""
        if self._task is not None and self._task.done():  # its loop ended first
            self._consumers.clear()
            self._task, self._replica = None, Replica()
        self._consumers[consumer] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._replica.live:
            consumer.listed(self._replica.versions(), self._replica.seq, self._replica.epoch)
        elif self._trouble is not None:
            consumer.troubled(self._trouble)

    async def leave(self, consumer: FeedConsumer) -> None:
        """Remove a consumer; the last one ends the stream."""
        self._consumers.pop(consumer, None)
        if self._consumers or self._task is None:
            return
        task, self._task = self._task, None
        self._replica = Replica()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if self._flow is not None:
            self._flow.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._follow(await self._list())
            except CallError as error:
                await self._rest(error)
            except Exception as error:  # our bug: report it, and read the state again
                broken = NotPenstock(f"space {self._space!r} cannot be followed: {error!r}")
                broken.__cause__ = error
                await self._rest(broken)

    async def _rest(self, error: CallError) -> None:
        self._failures += 1
        if isinstance(error, Rejected):
            self._trouble = error
            for consumer in list(self._consumers):
                consumer.troubled(error)
        delay_ms = self._backoff.next_ms(self._failures, elapsed_ms=0, random=self._random)
        await self._runner.transport.pause((delay_ms or 0) / 1_000)

    async def _list(self) -> Position | None:
        """Read all entities; returns where to follow from, or None without a space."""
        try:
            epoch = (await self._runner.run(calls.get_topic(self._space, touch=False))).epoch
            page = await self._page(None)
        except (TopicNotFound, NotFound):
            self._listed({}, 0, None)
            return None
        versions = _versions(page)
        while page.next is not None:
            page = await self._page(page.next)
            versions.update(_versions(page))
        self._listed(versions, page.head, epoch)
        return Position(page.head, epoch)

    async def _page(self, after: str | None) -> EntityPage:
        call = space_calls.list_entities(self._space, after=after, limit=PAGE_SIZE)
        return await self._runner.run(call)

    def _listed(self, versions: dict[str, EntityVersion], head: int, epoch: int | None) -> None:
        self._trouble = None
        self._replica.reset(versions, head, epoch)
        for consumer in list(self._consumers):
            consumer.listed(versions, head, epoch)

    async def _follow(self, start: Position | None) -> None:
        """Pass on commits until following fails."""
        missing = start is None
        # A space that does not exist yet is created by its first commit: watch its name as a
        # prefix.
        options = WatchOptions(
            include_meta=False,
            heartbeat_ms=HEARTBEAT_MS,
            prefixes=(self._space,) if missing else (),
            lenient=missing,
        )
        topics = {} if start is None else {self._space: start}
        core = WatchCore(topics, options, self._runner.settings.reconnect, self._random)
        self._flow = flow = AsyncWatchFlow(core, self._runner)
        try:
            while (event := await flow.next()) is not None:
                if event.topic == self._space and not self._take(event):
                    return
        except TopicNotFound:
            return  # it was deleted between the listing and the watch
        finally:
            flow.close()

    def _take(self, event: WatchEvent) -> bool:
        """Process an event of the watch; False if the space must be listed again."""
        self._failures = 0
        match event:
            case Records(records=records):
                try:
                    changes = [change_of(record) for record in records]
                except msgspec.ValidationError as error:
                    raise NotPenstock(
                        f"topic {self._space!r} has a record that is not a commit: {error}"
                    ) from error
                if not self._replica.continues(changes):
                    return False  # records of the space were deleted before they were read
                for change in changes:
                    self._replica.apply(change)
                for consumer in list(self._consumers):
                    consumer.advanced(changes)
            case Tombstone() | TopicDeleted():
                return False
        return True


class _Recorded(msgspec.Struct, frozen=True):
    session: str
    local_seq: int
    writes: tuple[CommitWrite, ...]


def change_of(record: StoredRecord) -> Change:
    """A record of a space's topic, decoded as a commit."""
    recorded = record.data_as(_Recorded)
    return Change(record.seq, recorded.session, recorded.local_seq, recorded.writes)


def _versions(page: EntityPage) -> dict[str, EntityVersion]:
    return {each.entity: EntityVersion(each.doc, each.seq) for each in page.entities}


_FEEDS: Final[WeakKeyDictionary[AsyncTransport, dict[tuple[str, int], Feed]]] = WeakKeyDictionary()


def feed_of(runner: AsyncRunner, space: str) -> Feed:
    """The feed of a space, shared by runtimes with the same client on the same loop."""
    feeds = _FEEDS.setdefault(runner.transport, {})
    place = (space, id(asyncio.get_running_loop()))
    feed = feeds.get(place)
    if feed is None:
        feed = feeds[place] = Feed(runner, space, Random())
    return feed
