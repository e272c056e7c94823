"""What keeps a replica fresh: a listing of the space, then a watch of its commits from there on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import msgspec

from penstock.client import calls
from penstock.client.errors import ClientError, NotFound, NotPenstock, TopicNotFound
from penstock.client.runtime.replica import Change, Version
from penstock.client.runtime.wire import EntityPage, change_of, entities_call
from penstock.client.shell.running import Runner
from penstock.client.shell.watching import WatchFlow
from penstock.client.watching import (
    Position,
    Records,
    Tombstone,
    TopicDeleted,
    WatchCore,
    WatchEvent,
    WatchOptions,
)
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected

PAGE_SIZE: Final = 1_000
_NO_END_MS: Final = 1e15
"""A replica is wanted for as long as its runtime lives."""

Listed = Callable[[Mapping[str, Version], int, int | None], None]
Advanced = Callable[[list[Change]], None]


class Feed:
    """Lists a space and follows it for ever; lists it again when it cannot follow any more.

    `listed` gets all entities as of a commit, `advanced` the commits after that. What goes wrong
    for a while is tried again; `troubled` hears of what is not likely to mend by itself.
    """

    def __init__(
        self,
        runner: Runner,
        space: str,
        *,
        listed: Listed,
        advanced: Advanced,
        troubled: Callable[[ClientError], None],
        random: Random,
    ) -> None:
        self._runner = runner
        self._space = space
        self._listed = listed
        self._advanced = advanced
        self._troubled = troubled
        reconnect = runner.settings.reconnect
        self._backoff = Backoff(reconnect.base_ms, reconnect.cap_ms, reconnect.jitter, _NO_END_MS)
        self._random = random
        self._failures = 0
        self._flow: WatchFlow | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self._follow(await self._list())
            except ClientError as error:
                await self._rest(error)

    def close(self) -> None:
        """Let go of the stream."""
        if self._flow is not None:
            self._flow.close()

    async def _rest(self, error: ClientError) -> None:
        self._failures += 1
        if isinstance(error, Rejected):
            self._troubled(error)
        delay_ms = self._backoff.next_ms(self._failures, elapsed_ms=0, random=self._random)
        await self._runner.transport.pause((delay_ms or 0) / 1_000)

    async def _list(self) -> Position | None:
        """Take all entities; where to follow from, or None if there is no such space yet."""
        try:
            epoch = (await self._runner.run(calls.get_topic(self._space, touch=False))).epoch
            page = await self._page(None)
        except (TopicNotFound, NotFound):
            self._listed({}, 0, None)
            return None
        versions = page.versions()
        while page.next is not None:
            page = await self._page(page.next)
            versions.update(page.versions())
        self._listed(versions, page.head, epoch)
        return Position(page.head, epoch)

    async def _page(self, after: str | None) -> EntityPage:
        return await self._runner.run(entities_call(self._space, after=after, limit=PAGE_SIZE))

    async def _follow(self, start: Position | None) -> None:
        """Hand on commits until they cannot be followed any more."""
        missing = start is None
        # A space that is not there yet comes with its first commit: its name is then a prefix.
        options = WatchOptions(
            include_meta=False, prefixes=(self._space,) if missing else (), lenient=missing
        )
        topics = {} if start is None else {self._space: start}
        core = WatchCore(topics, options, self._runner.settings.reconnect, self._random)
        self._flow = flow = WatchFlow(core, self._runner)
        try:
            while (event := await flow.next()) is not None:
                if event.topic == self._space and not self._take(event):
                    return
        except TopicNotFound:
            return  # it went between the listing and the watch
        finally:
            flow.close()

    def _take(self, event: WatchEvent) -> bool:
        """Take in what the watch says; False if the space must be listed again."""
        self._failures = 0
        match event:
            case Records(records=records):
                try:
                    changes = [change_of(record) for record in records]
                except msgspec.ValidationError as error:
                    raise NotPenstock(
                        f"expected commits in topic {self._space!r}, found another record: {error}"
                    ) from error
                self._advanced(changes)
            case Tombstone() | TopicDeleted():
                return False
        return True
