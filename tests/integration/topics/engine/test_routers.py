"""Routers over restarts, over removal, and between topics that memory alone keeps."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.errors import IsASpace, TopicNotEmpty, TopicNotFound
from penstock.topics.core.batch import parse_write
from penstock.topics.core.registry import partition_of
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.forwarder import STEPS_MAX
from tests.integration.topics.node import PARTITIONS, drained, node, on_a_loop, write
from tests.waiting import until


def name_on(partition: int, prefix: str) -> str:
    """A topic's name that lives on a partition."""
    names = (f"{prefix}{number}" for number in range(1_000))
    return next(name for name in names if partition_of(name, PARTITIONS) == partition)


@on_a_loop
async def test_a_source_that_memory_lost_takes_nothing_from_its_destination(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        await engine.put_topic("source", {"durability": "ephemeral"})
        await engine.put_topic("dest", {"durability": "fsync"})
        await engine.routers.put(RouterConfig("r", "source", "dest"))
        await write(engine, "dest", 100)
        await write(engine, "source", 0, 5)
        assert await drained(engine, "dest") == [100, 0, 1, 2, 3, 4]
    async with node(tmp_path) as engine:
        assert await drained(engine, "dest") == [100, 0, 1, 2, 3, 4]
        await write(engine, "source", 5)
        assert await drained(engine, "dest") == [100, 0, 1, 2, 3, 4, 5]


@on_a_loop
async def test_copies_that_went_through_memory_do_not_come_again(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        for name, durability in (("a", "fsync"), ("middle", "ephemeral"), ("z", "fsync")):
            await engine.put_topic(name, {"durability": durability})
        await engine.routers.put(RouterConfig("one", "a", "middle", guarantee="exactly_once"))
        await engine.routers.put(RouterConfig("two", "middle", "z", guarantee="exactly_once"))
        await write(engine, "a", 0, 5)
        assert await drained(engine, "z") == [0, 1, 2, 3, 4]
    for end_well in (True, False, True):
        async with node(tmp_path, end_well=end_well) as engine:
            assert await drained(engine, "middle") == []
            assert await drained(engine, "z") == [0, 1, 2, 3, 4]
    async with node(tmp_path) as engine:
        await write(engine, "a", 5)
        assert await drained(engine, "z") == [0, 1, 2, 3, 4, 5]


@on_a_loop
async def test_what_a_router_has_forwarded_is_counted_also_where_memory_alone_keeps_it(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as engine:
        await engine.put_topic("dest", {"durability": "ephemeral"})
        await engine.routers.put(RouterConfig("r", "source", "dest"))
        await write(engine, "source", 0, 5)
        assert (await engine.routers.show("r")).forwarded_total == 5
    for end_well in (False, True):
        async with node(tmp_path, end_well=end_well) as engine:
            assert (await engine.routers.show("r")).forwarded_total == 5
    async with node(tmp_path) as engine:
        await write(engine, "source", 5)
        assert (await engine.routers.show("r")).forwarded_total == 6


@on_a_loop
async def test_a_router_that_is_refused_leaves_no_topic_behind(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        await engine.put_topic("space", {"type": "space"})
        with pytest.raises(IsASpace):
            await engine.routers.put(RouterConfig("r", "source", "space"))
        with pytest.raises(TopicNotFound):
            await engine.routers.put(RouterConfig("r", "source", "dest"), create_dest=False)
        assert list(engine.registry.topics) == ["space"]


@on_a_loop
async def test_a_router_made_again_from_another_source_forwards_from_the_start(
    tmp_path: Path,
) -> None:
    sources = [name_on(number, "source") for number in (0, 1)]
    async with node(tmp_path) as engine:
        for source in sources:
            await engine.put_topic(source, {})
        assert len({engine.topic(source).epoch for source in sources}) == 2
        await engine.routers.put(RouterConfig("r", sources[0], "dest"))
        await write(engine, sources[0], 0, 50)
        assert len(await drained(engine, "dest")) == 50
        await engine.routers.remove("r")
        await engine.routers.put(RouterConfig("r", sources[1], "dest"))
        await write(engine, sources[1], 50, 3)
        assert await drained(engine, "dest") == [*range(53)]
    async with node(tmp_path) as engine:
        assert await drained(engine, "dest") == [*range(53)]
        assert (await engine.routers.show("r")).source_seq == 3


@on_a_loop
async def test_epochs_go_on_after_a_restart_though_the_last_topic_is_gone(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        for name in ("a", "b", "c"):
            await engine.put_topic(name, {})
        epochs = [engine.topic(name).epoch for name in "abc"]
        assert len(set(epochs)) == 3, "whether they share a partition or not"
        await engine.routers.drop_topic("c")
    async with node(tmp_path) as engine:
        await engine.put_topic("c", {})
        assert engine.topic("c").epoch > epochs[2]


@on_a_loop
async def test_a_cycle_with_a_cap_comes_to_rest(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        await engine.put_topic("a", {"cap_records": 5})
        await engine.routers.put(RouterConfig("ab", "a", "b", allow_cycle=True))
        await engine.routers.put(RouterConfig("ba", "b", "a", allow_cycle=True))
        await write(engine, "a", 0, 8)
        await until(lambda: is_at_rest(engine))
        await engine.routers.show("ab")
        assert is_at_rest(engine)
        assert engine.topic("b").count > 0


def is_at_rest(engine: Engine) -> bool:
    """Whether no router has anything to do."""
    return not any(engine.forwarder.owes(name) for name in ("a", "b"))


@on_a_loop
async def test_a_router_and_the_end_of_its_source_take_turns(tmp_path: Path) -> None:
    source, dest = name_on(0, "source"), name_on(1, "dest")
    async with node(tmp_path) as engine:
        await engine.put_topic(source, {})
        await engine.put_topic(dest, {})
        putting = engine.routers.put(RouterConfig("r", source, dest))
        await asyncio.gather(putting, engine.routers.drop_topic(source))
        routers = [router.config.name for router in engine.registry.routers]
        assert bool(routers) == (source in engine.registry.topics)
        await engine.routers.put(RouterConfig("r", source, dest))
        await write(engine, source, 0, 3)
        assert await drained(engine, dest) == [0, 1, 2]


@on_a_loop
async def test_a_router_removed_twice_and_put_elsewhere_between_is_there_after_a_restart(
    tmp_path: Path,
) -> None:
    first, second = name_on(1, "first"), name_on(2, "second")
    async with node(tmp_path) as engine:
        await engine.routers.put(RouterConfig("r", "source", first))
        writer = engine.writer(first)
        await writer.hold()
        removing = asyncio.create_task(engine.routers.remove("r"))
        holding = asyncio.create_task(writer.hold())
        again = asyncio.create_task(engine.routers.remove("r"))
        await asyncio.sleep(0)  # all three are in line
        writer.release()
        assert await removing
        await holding
        await engine.routers.put(RouterConfig("r", "source", second))
        writer.release()
        await again
        live = [router.config.dest for router in engine.registry.routers]
    async with node(tmp_path) as engine:
        assert [router.config.dest for router in engine.registry.routers] == live


@pytest.mark.parametrize("partition", [0, 1], ids=["beside it", "elsewhere"])
@on_a_loop
async def test_a_topic_that_is_dropped_if_empty_keeps_its_routers_or_loses_its_life(
    tmp_path: Path, partition: int
) -> None:
    source, dest = name_on(0, "source"), name_on(partition, "dest")
    async with node(tmp_path) as engine:
        await engine.routers.put(RouterConfig("r", source, dest))
        writing = asyncio.create_task(write(engine, source, 1))
        await asyncio.sleep(0)
        with pytest.raises(TopicNotEmpty):
            await engine.routers.drop_topic(source, if_empty=True)
        await writing
        assert await drained(engine, dest) == [1]
        await engine.delete(source, before_seq=2)
        dropping = asyncio.create_task(engine.routers.drop_topic(source, if_empty=True))
        await asyncio.sleep(0)
        assert (await write(engine, source, 2)).created, "it waits until the topic is gone"
        assert await dropping == (True, ["r"])
    async with node(tmp_path) as engine:
        assert list(engine.registry.routers) == []
        assert await drained(engine, source) == [2]


@on_a_loop
async def test_the_routers_of_a_source_take_their_steps_in_several_turns(tmp_path: Path) -> None:
    routers = [f"r{number:02}" for number in range(2 * STEPS_MAX + 1)]
    async with node(tmp_path) as engine:
        for name in routers:
            await engine.routers.put(RouterConfig(name, "source", f"to-{name}"))
        began: list[list[str]] = []

        def take_turns(_written: Any) -> None:
            for _ in range(4):
                engine.forwarder.turn("source")
                began.append(on_their_way(engine))

        engine.write("source", parse_write(b'{"records":[{"data":1}]}'), take_turns)
        await until(lambda: all(engine.topic(f"to-{name}").head_seq for name in routers))
        assert began[0], "a turn takes steps, fewer where it runs out of time"
        for before, after in pairwise([[], *began]):
            assert after == routers[: len(after)]
            assert len(before) <= len(after) <= len(before) + STEPS_MAX


def on_their_way(engine: Engine) -> list[str]:
    views = engine.forwarder.view("source")
    return [each["router"] for each in views if each["reason"] == "copies are on their way"]


@on_a_loop
async def test_a_new_router_begins_with_what_came_while_it_was_logged(tmp_path: Path) -> None:
    source, old, new = (name_on(number, "topic") for number in range(3))
    async with node(tmp_path) as engine:
        await engine.routers.put(RouterConfig("old", source, old))
        await engine.put_topic(new, {})
        held, log, number = [], engine.journal.append, engine.writer(new).number

        def append(partition: int, *args: Any, sync: bool) -> None:
            if partition == number:
                held.append(partial(log, partition, *args, sync=sync))
            else:
                log(partition, *args, sync=sync)

        with pytest.MonkeyPatch.context() as slow:
            slow.setattr(engine.journal, "append", append)
            putting = asyncio.create_task(engine.routers.put(RouterConfig("new", source, new)))
            await until(lambda: held)
            await write(engine, source, 1)
            await until(lambda: engine.topic(old).head_seq)
        held.pop()()
        await putting
        await until(lambda: engine.topic(new).head_seq)
