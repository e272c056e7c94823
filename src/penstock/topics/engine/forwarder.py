"""Runs routers: in each turn of their source, and before each read of their destination.

Whether a router is allowed depends on all others, and on the topics at its ends, which may be on
two partitions. So the commands that create and remove routers wait for each other; the rest of the
node does not.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError
from penstock.protocol.errors import RouterNotFound, TopicNotFound
from penstock.protocol.values import check_topic_name
from penstock.protocol.watchers import ReaderState
from penstock.topics.core.cold_row import ColdBlock, NotLoaded
from penstock.topics.core.partition import DecidedChange
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import Router, RouterConfig, RouterStep
from penstock.topics.engine.turns import SLICE_MS
from penstock.topics.engine.writers import (
    LogFailed,
    LogFull,
    LogUncertain,
    PartitionWriter,
    Steps,
    Writers,
)
from penstock.topics.persist.cold import ColdCache

STEPS_MAX: Final = 8
"""How many routers of a source take a step in one turn, fewer if they exceed the time of a turn:
each may copy a thousand records.
"""
_AGAIN_S: Final = 1.0
"""How long a router waits after the log refused its copies, or for records to expire."""


class RouterPlace(NamedTuple):
    """The last seq of its source that a router has processed, and what it waits for."""

    router: str
    dest: str
    seq: int
    state: ReaderState
    reason: str


class Forwarder:
    """Advances routers, each with at most one step in flight."""

    def __init__(
        self,
        registry: Registry,
        writers: Writers,
        mark: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._writers = writers
        self._mark = mark
        self._clock = clock
        self._due: dict[str, OrderedDict[str, None]] = {}  # source -> routers to take a step
        self._heads: dict[str, int] = {}  # source -> its head when all of its routers were due
        self._moving: set[str] = set()
        self._held: set[str] = set()  # routers whose destination is full
        self._loading: dict[str, ColdBlock] = {}  # routers whose next records are read from disk
        self._asking_again: set[str] = set()  # held ones that retry after records expire
        self.cold: ColdCache | None = None

    def turn(self, source: str) -> None:
        """Let the next few due routers of a source take one step each."""
        if source not in self._registry.routers.by_source:
            self._due.pop(source, None)
            self._heads.pop(source, None)
            return
        due, steps = self._due_of(source), 0
        until_ns = self._clock.monotonic_ns() + SLICE_MS * 1_000_000
        while due and steps < STEPS_MAX and self._clock.monotonic_ns() < until_ns:
            name, _ = due.popitem(last=False)
            router = self._registry.routers.find(name)
            if router is not None and name not in self._moving and self._is_behind(router):
                self._step(router)
                steps += 1
        if due:
            self._mark(source)

    def ask(self, config: RouterConfig) -> None:
        """Queue a step of a router that may be able to continue, after those already due."""
        self._due.setdefault(config.source, OrderedDict())[config.name] = None
        self._mark(config.source)

    def made_room(self, dest: str) -> None:
        """Let routers held by a full topic continue: records have left it."""
        for router in self._registry.routers.feeders_of(dest):
            if router.config.name in self._held:
                self.ask(router.config)

    def owes(self, dest: str) -> bool:
        """Whether a router that is run here has something for a topic that is not there yet."""
        routers = self._registry.routers
        if not routers.feeders_of(dest):
            return False
        return any(map(self._is_behind, self._upstream(dest)))

    async def drain(self, dest: str, *, strict: bool = False) -> bool:
        """Bring every router that leads to a topic to the current head of its source.

        Returns False if one of them cannot continue because its destination is full, its source
        cannot be read or the log refuses writes; readers then get what is committed. `strict` is
        for writers: a refusing log raises `LogFailed`.
        """
        whole = True
        for router in reversed(self._upstream(dest)):
            try:
                whole = await self._bring_up(router) and whole
            except (LogFailed, LogUncertain) as error:
                if strict:  # it was about the router's step: nothing of the command was written
                    kind = LogFull if isinstance(error, LogFull) else LogFailed
                    raise kind(error.message) from error
                whole = False
        return whole

    async def settled(self, topic: str) -> None:
        """Wait until routers have delivered to a topic and its writer is not held exclusively."""
        if self.owes(topic):
            await self.drain(topic, strict=True)
        writer = self._writers.of(topic)
        while writer.is_held:
            await writer.settled()

    def view(self, source: str) -> list[dict[str, Any]]:
        """How far each router of a topic is behind, and why, for people."""
        topic = self._registry.topics.get(source)
        head_seq = topic.head_seq if topic else 0
        return [
            {
                "router": place.router,
                "dest": place.dest,
                "behind": max(0, head_seq - place.seq),
                "reason": place.reason,
            }
            for place in self.places(source)
        ]

    def places(self, source: str) -> Iterator[RouterPlace]:
        """How far each router of a topic has come, and what it waits for."""
        topic = self._registry.topics.get(source)
        head_seq = topic.head_seq if topic else 0
        for router in self._registry.routers.fed_by(source):
            config = router.config
            state, reason = self._standing(router, head_seq)
            yield RouterPlace(config.name, config.dest, router.source_seq, state, reason)

    def stopped(self, most: int) -> list[tuple[RouterConfig, str]]:
        """Routers whose destination takes no more, each with the reason."""
        found = []
        for name in islice(self._held, most):
            router = self._registry.routers.find(name)
            if router is None:
                continue
            topic = self._registry.topics.get(router.config.source)
            if topic is not None and router.source_seq < topic.head_seq:
                found.append((router.config, self._reason(router, topic.head_seq)))
        return found

    def _reason(self, router: Router, head_seq: int) -> str:
        return self._standing(router, head_seq)[1]

    def _standing(self, router: Router, head_seq: int) -> tuple[ReaderState, str]:
        name = router.config.name
        if router.source_seq >= head_seq:
            return "ok", "up to date"
        block = self._loading.get(name)
        if block is not None:
            error = self.cold.failure(block) if self.cold is not None else None
            found = "are read from disk" if error is None else f"cannot be read: {error}"
            return "loading", f"its next records {found}"
        if name in self._held:
            return "held", f"topic {router.config.dest!r} is full and rejects more"
        is_moving = name in self._moving
        return "waiting", "copies are on their way" if is_moving else "waits for a turn"

    def _upstream(self, dest: str) -> list[Router]:
        """The routers that lead to a topic, nearest first."""
        found: dict[str, Router] = {}
        ends = [dest]
        while ends:
            for router in self._registry.routers.feeders_of(ends.pop()):
                if router.config.name not in found:
                    found[router.config.name] = router
                    ends.append(router.config.source)
        return [each for each in found.values() if self._writers.of(each.config.dest).leads]

    def _due_of(self, source: str) -> OrderedDict[str, None]:
        """The routers due for a step, in order: all of them once the source has grown.

        Otherwise a held router would keep its source marked forever.
        """
        due = self._due.setdefault(source, OrderedDict())
        topic = self._registry.topics.get(source)
        if topic is not None and self._heads.get(source) != topic.head_seq:
            self._heads[source] = topic.head_seq
            for router in self._registry.routers.fed_by(source):
                due.setdefault(router.config.name)
        return due

    def _is_behind(self, router: Router) -> bool:
        source = self._registry.topics.get(router.config.source)
        return source is not None and router.source_seq < source.head_seq

    def _step(self, router: Router) -> None:
        """Take one step in the turn of the source, where this node leads the destination."""
        writer = self._writers.of(router.config.dest)
        if not writer.leads:
            return
        if writer.is_held:
            writer.later(partial(self.ask, router.config))
            return
        try:
            step = self._decide(writer, router.config.name)
        except NotLoaded as missing:
            assert self.cold is not None, "a node with cold records has a cache for them"
            self._loading[router.config.name] = missing.block
            self.cold.soon(missing.block, partial(self.ask, router.config))
            return
        if step is None or step.entry is None:
            return
        self._submit(writer, router, step, lambda _outcome: None)

    async def _bring_up(self, router: Router) -> bool:
        """Advance a router to the current head of its source. Returns False if it is held."""
        source, name = self._registry.topics.get(router.config.source), router.config.name
        goal_seq = source.head_seq if source else 0
        while (found := self._registry.routers.find(name)) and found.source_seq < goal_seq:
            if not await self._advance(found):
                return False
        return True

    async def _advance(self, router: Router) -> bool:
        """Take one step for a reader, or wait for the step in flight. Returns False if held."""
        writer = self._writers.of(router.config.dest)
        name = router.config.name
        if name in self._moving or writer.is_held:
            await writer.settled()
            return True
        try:
            step = self._decide(writer, name)
        except NotLoaded as missing:
            return await self._loaded(router, missing.block)
        if step is None or step.entry is None:
            return False
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._submit(writer, router, step, partial(_answer, future))
        outcome = await future
        if isinstance(outcome, Exception):
            raise outcome
        return True

    async def _loaded(self, router: Router, block: ColdBlock) -> bool:
        """Load a block of a source. Returns False if it cannot be read: later turns retry."""
        assert self.cold is not None, "a node with cold records has a cache for them"
        try:
            if self.cold.failure(block) is None:
                await self.cold.load(block)
                return True
        except PenstockError:
            pass  # the reader of the block logs it
        self._loading[router.config.name] = block
        return False

    def _submit(
        self,
        writer: PartitionWriter,
        router: Router,
        step: RouterStep,
        then: Callable[[object], None],
    ) -> None:
        assert step.entry is not None
        self._moving.add(router.config.name)
        change = writer.partition.change_of(step.entry)
        moved = partial(self._moved, router, then)
        writer.submit(change, moved, sync=writer.is_synced(change))

    def _moved(self, router: Router, then: Callable[[object], None], outcome: object) -> None:
        """Finish a step. Records that arrived in the source meanwhile had their turn during it."""
        self._moving.discard(router.config.name)
        if isinstance(outcome, Exception):
            asyncio.get_running_loop().call_later(_AGAIN_S, self.ask, router.config)
        else:
            found = self._registry.routers.find(router.config.name)
            if found is not None and self._is_behind(found):
                self.ask(found.config)
        then(outcome)

    def _decide(self, writer: PartitionWriter, name: str) -> RouterStep | None:
        self._loading.pop(name, None)
        try:
            step = writer.partition.decide_step(name, self._clock.now_ms())
        except (TopicNotFound, RouterNotFound):
            return None
        if step.held:
            self._held.add(name)
            self._ask_again(name)
        else:
            self._held.discard(name)
        return step

    def _ask_again(self, name: str) -> None:
        """Retry where records expire: there may be room again without any other event."""
        config = self._registry.routers.get(name).config
        if name in self._asking_again or not self._registry.topics[config.dest].config.ttl_ms:
            return
        self._asking_again.add(name)

        def again() -> None:
            self._asking_again.discard(name)
            self.ask(config)

        asyncio.get_running_loop().call_later(_AGAIN_S, again)


def _answer(future: asyncio.Future[object], outcome: object) -> None:
    if not future.done():
        future.set_result(outcome)


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
        writer = self._writers.of(config.dest)
        with Steps() as steps:
            if config.source not in topics:
                await self._put_topic(config.source, {})
                steps.done += 1
            async with writer.exclusive() as partition:
                created = self._routers.find(config.name) is None
                change = partition.decide_router(
                    config, self._clock.now_ms(), create_dest=create_dest
                )
                await writer.commit(change, sync=True)
        self._forwarder.ask(config)  # the source may have grown since the decision
        return created, config

    async def _drop_topic(self, name: str, *, if_empty: bool) -> tuple[bool, list[str]]:
        writer, now_ms = self._writers.of(name), self._clock.now_ms
        async with writer.exclusive() as partition:  # an empty topic stays empty until the end
            partition.check_drop(name, now_ms(), if_empty=if_empty)
            with Steps() as steps:
                removed = await self._remove_out_of(name, writer, steps)
                into = [router.config.name for router in self._routers.feeders_of(name)]
                change = partition.decide_drop(name, now_ms(), if_empty=if_empty)
                if change.entries:
                    await writer.commit(change, sync=True)
        return bool(change.entries), sorted([*removed, *(into if change.entries else ())])

    async def _remove_out_of(self, source: str, held: PartitionWriter, steps: Steps) -> list[str]:
        """Remove the routers that copy from a topic whose own writer is held."""
        names: dict[PartitionWriter, list[str]] = {}
        for router in self._routers.fed_by(source):
            names.setdefault(self._writers.of(router.config.dest), []).append(router.config.name)
        for writer, here in names.items():
            if writer is held:
                await _remove_on(writer, here)
            else:
                await self._remove_far(writer, here)
            steps.done += 1
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
    await writer.commit(DecidedChange(entries, entries), sync=True)
