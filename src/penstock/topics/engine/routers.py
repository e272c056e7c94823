"""Router commands: create, show and remove, one change at a time over all partitions.

Whether a router is allowed depends on all others, and on the topics at its ends, which may be on
two partitions. So these commands wait for each other; the rest of the node does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.kernel.clock import Clock
from penstock.protocol.values import check_topic_name
from penstock.topics.core.partition import Change
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import Router, RouterConfig
from penstock.topics.engine.forwarder import Forwarder
from penstock.topics.engine.placement import Writers
from penstock.topics.engine.writers import PartitionWriter


class RouterCommands:
    """Runs router commands, and topic commands that may remove routers."""

    def __init__(
        self,
        registry: Registry,
        writers: Writers,
        forwarder: Forwarder,
        clock: Clock,
        put_topic: Callable[[str, dict[str, Any]], Awaitable[object]],
    ) -> None:
        self._registry = registry
        self._routers = registry.routers
        self._writers = writers
        self._forwarder = forwarder
        self._clock = clock
        self._put_topic = put_topic
        self._alone = asyncio.Lock()

    async def put(
        self, config: RouterConfig, *, create_dest: bool = True
    ) -> tuple[bool, RouterConfig]:
        """Create a router with its missing topics, or change an existing one."""
        async with self._alone:  # each check counts on all routers accepted before
            return await self._put(config, create_dest=create_dest)

    async def show(self, name: str) -> Router:
        """A router, once it has reached the head of its source."""
        router = self._routers.get(name)
        await self._forwarder.drain(router.config.dest)
        return self._routers.get(name)

    async def remove(self, name: str) -> bool:
        """Remove a router; False if it does not exist."""
        async with self._alone:  # else it could be recreated meanwhile on another writer
            router = self._routers.find(name)
            if router is None:
                return False
            await self._remove_far(self._writers.of(router.config.dest), [name])
            return True

    async def drop_topic(self, name: str, *, if_empty: bool = False) -> tuple[bool, list[str]]:
        """Remove a topic and all its routers; return whether it existed, and the routers."""
        async with self._alone:
            return await self._drop_topic(name, if_empty=if_empty)

    async def _put(self, config: RouterConfig, *, create_dest: bool) -> tuple[bool, RouterConfig]:
        topics = self._registry.topics
        self._writers.of(config.dest).partition.check_router(config, create_dest=create_dest)
        for end in (config.source, config.dest):
            check_topic_name(end)
        missing = {config.source, config.dest} - topics.keys()
        if missing:
            self._registry.check_topics(len(missing))
        if config.source not in topics:
            await self._put_topic(config.source, {})
        writer = self._writers.of(config.dest)
        async with writer.exclusive() as partition:
            created = self._routers.find(config.name) is None
            change = partition.decide_router(config, self._clock.now_ms(), create_dest=create_dest)
            await writer.commit(change, sync=True)
        self._forwarder.ask(config)  # the source may have grown since the decision
        return created, config

    async def _drop_topic(self, name: str, *, if_empty: bool) -> tuple[bool, list[str]]:
        writer, now_ms = self._writers.of(name), self._clock.now_ms
        async with writer.exclusive() as partition:  # an empty topic stays empty until the end
            partition.check_drop(name, now_ms(), if_empty=if_empty)
            removed = await self._remove_out_of(name, writer)
            into = [router.config.name for router in self._routers.feeders_of(name)]
            change = partition.decide_drop(name, now_ms(), if_empty=if_empty)
            if change.entries:
                await writer.commit(change, sync=True)
        return bool(change.entries), sorted([*removed, *(into if change.entries else ())])

    async def _remove_out_of(self, source: str, held: PartitionWriter) -> list[str]:
        """Remove the routers that copy from a topic whose own writer is held."""
        names: dict[PartitionWriter, list[str]] = {}
        for router in self._routers.fed_by(source):
            names.setdefault(self._writers.of(router.config.dest), []).append(router.config.name)
        for writer, here in names.items():
            if writer is held:
                await _remove_on(writer, here)
            else:
                await self._remove_far(writer, here)
        return [name for here in names.values() for name in here]

    async def _remove_far(self, writer: PartitionWriter, names: list[str]) -> None:
        """Remove routers of a writer that is not held yet, though another one may be.

        Only the command that holds `_alone` waits for a second writer, so there is no deadlock.
        """
        async with writer.exclusive():
            await _remove_on(writer, names)


async def _remove_on(writer: PartitionWriter, names: list[str]) -> None:
    """Remove routers of a held writer, all or none."""
    changes = [writer.partition.decide_router_removal(name) for name in names]
    entries = tuple(entry for change in changes for entry in change.entries)
    await writer.commit(Change(entries, entries), sync=True)
