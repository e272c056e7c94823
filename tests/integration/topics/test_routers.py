"""Routers over restarts, over removal, and between topics that memory alone keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.kernel.ids import partition_of
from penstock.topics.routers import RouterConfig
from penstock.topics.shell.engine import Engine
from tests.integration.topics.node import PARTITIONS, drained, node, on_a_loop, until, write


def name_on(partition: int, prefix: str) -> str:
    """A topic's name that lives on a partition."""
    names = (f"{prefix}{number}" for number in range(1_000))
    return next(name for name in names if partition_of(name, PARTITIONS) == partition)


@on_a_loop
async def test_a_source_that_memory_lost_takes_nothing_from_its_destination(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        await engine.put_topic("source", {"durability": "ephemeral"})
        await engine.put_topic("dest", {"durability": "fsync"})
        await engine.put_router(RouterConfig("r", "source", "dest"))
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
        await engine.put_router(RouterConfig("one", "a", "middle", guarantee="exactly_once"))
        await engine.put_router(RouterConfig("two", "middle", "z", guarantee="exactly_once"))
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
async def test_a_router_made_again_from_another_source_forwards_from_the_start(
    tmp_path: Path,
) -> None:
    sources = [name_on(number, "source") for number in (0, 1)]
    async with node(tmp_path) as engine:
        for source in sources:
            await engine.put_topic(source, {})
        assert len({engine.topic(source).epoch for source in sources}) == 2
        await engine.put_router(RouterConfig("r", sources[0], "dest"))
        await write(engine, sources[0], 0, 50)
        assert len(await drained(engine, "dest")) == 50
        await engine.remove_router("r")
        await engine.put_router(RouterConfig("r", sources[1], "dest"))
        await write(engine, sources[1], 50, 3)
        assert await drained(engine, "dest") == [*range(53)]
    async with node(tmp_path) as engine:
        assert await drained(engine, "dest") == [*range(53)]
        assert (await engine.show_router("r")).source_seq == 3


@on_a_loop
async def test_epochs_go_on_after_a_restart_though_the_last_topic_is_gone(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        for name in ("a", "b", "c"):
            await engine.put_topic(name, {})
        last = max(engine.topic(name).epoch for name in "abc")
        await engine.drop_topic("c")
    async with node(tmp_path) as engine:
        await engine.put_topic("d", {})
        assert engine.topic("d").epoch > last


@on_a_loop
async def test_a_cycle_with_a_cap_comes_to_rest(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        await engine.put_topic("a", {"cap_records": 5})
        await engine.put_router(RouterConfig("ab", "a", "b", allow_cycle=True))
        await engine.put_router(RouterConfig("ba", "b", "a", allow_cycle=True))
        await write(engine, "a", 0, 8)
        await until(lambda: is_at_rest(engine))
        await engine.show_router("ab")
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
        putting = engine.put_router(RouterConfig("r", source, dest))
        await asyncio.gather(putting, engine.drop_topic(source))
        routers = [router.config.name for router in engine.registry.routers]
        assert bool(routers) == (source in engine.registry.topics)
        await engine.put_router(RouterConfig("r", source, dest))
        await write(engine, source, 0, 3)
        assert await drained(engine, dest) == [0, 1, 2]
