"""Who comes second is told: writes of dead edges, lost answers, restarts, checkpoints."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from random import Random

import pytest

from penstock.client import AsyncClient, ClientSettings
from penstock.client.raw_topic import ServerTopic
from penstock.ingest.appender import RECOVERED_MAX
from penstock.ingest.device import Device
from penstock.ingest.edge import Edge
from penstock.ingest.engine_topic import EngineTopic
from penstock.ingest.frames import encode_hello, encode_message
from penstock.ingest.raw_topic import (
    KEY_WINDOW_MS,
    Landed,
    TopicNames,
    decode_checkpoint,
    encode_batch,
)
from penstock.ingest.reassemble import EdgeDevice, Message
from penstock.kernel.errors import Unavailable
from penstock.log.stores import open_store
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, Target
from penstock.metering.shapes import Steady
from penstock.protocol.limits import TopicLimits
from penstock.testing import ManualClock, seeded, seeds
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from tests.integration.ingest.place import (
    EdgeProcess,
    check_fleet,
    edge_at,
    raw_messages,
    run,
    server_topic,
    until,
)


class Wire:
    """The way to a topic, on which a write may be lost, or its answer."""

    def __init__(self, topic: ServerTopic, random: Random) -> None:
        self._topic = topic
        self._random = random

    def __getattr__(self, name: str):
        return getattr(self._topic, name)

    async def append(self, body: bytes, key: str) -> Landed:
        chance = self._random.random()
        if chance < 0.2:
            raise Unavailable("the request was lost")
        landed = await self._topic.append(body, key)
        if chance < 0.4:
            raise Unavailable("the answer was lost")
        return landed


@pytest.mark.parametrize("seed", seeds(2))
def test_lost_requests_and_lost_answers_double_nothing(shared_url, raw, seed):
    async def lossy(random: Random) -> None:
        fleet = Fleet(devices=4, meters=3, seed=seed)
        topic = Wire(server_topic(shared_url, raw), random)
        async with edge_at(shared_url, topic=topic) as edge:
            state = await LoadGenerator(Target(*edge.address), fleet, Steady(150)).run(seconds=1.0)
            assert edge.numbers().retries > 0
        await check_fleet(shared_url, fleet, state.sent_by_device, raw)

    with seeded(seed) as random:
        run(lossy(random))


@pytest.mark.parametrize("the_dead_lands_first", [True, False])
def test_a_write_of_a_dead_edge_that_lands_late_doubles_nothing(
    shared_url, raw, the_dead_lands_first
):
    """The edge dies while its write is on the way; the next one has the same message."""

    async def zombie() -> None:
        wire = server_topic(shared_url, raw)
        messages = [Message(EdgeDevice("a"), number, b"%d" % number) for number in (1, 2)]
        on_the_way = encode_batch(messages, key="after-0")
        async with edge_at(shared_url, raw) as living:
            if the_dead_lands_first:
                assert not (await wire.append(on_the_way, "after-0")).deduped
            async with Device(*living.address, "a") as device:
                for number in (1, 2, 3):
                    await device.send(b"%d" % number)
                await device.flush()
            if not the_dead_lands_first:
                assert (await wire.append(on_the_way, "after-0")).deduped
        await wire.close()
        found = await raw_messages(shared_url, raw)
        assert sorted((number, payload) for _, number, payload in found) == [
            (1, b"1"), (2, b"2"), (3, b"3"),
        ]  # fmt: skip

    run(zombie())


def test_two_edges_of_one_topic_double_nothing(shared_url, raw):
    """A device that wanders between edges, its acknowledgements lost: each knows of the other."""

    async def wandering() -> None:
        async with edge_at(shared_url, raw) as one, edge_at(shared_url, raw) as two:
            for number in range(1, 6):
                for edge in (one, two):
                    _, writer = await asyncio.open_connection(*edge.address)
                    writer.write(encode_hello("a", b"") + encode_message(number, b"%d" % number))
                    acked = edge.core.counters.messages_acked + edge.core.counters.messages_again
                    await until(
                        lambda edge=edge, acked=acked: edge.core.counters.messages_acked
                        + edge.core.counters.messages_again > acked,
                        "an acknowledgement",
                    )  # fmt: skip
                    writer.close()
                    await writer.wait_closed()
        found = await raw_messages(shared_url, raw)
        assert [payload for _, _, payload in found] == [b"1", b"2", b"3", b"4", b"5"]

    run(wandering())


def test_an_edge_starts_from_its_checkpoint_and_what_came_after_it(shared_url, raw):
    async def restart() -> None:
        async with edge_at(shared_url, raw) as edge, Device(*edge.address, "a") as device:
            for number in range(300):
                await device.send(b"%d" % number)
            await device.flush()
        topic = server_topic(shared_url, raw)
        assert len(await topic.load()) == 1
        await topic.append(
            b'{"idempotency_key":"after-300","records":[{"data":"eA==","tag":"301","node":"a"}]}',
            "after-300",
        )
        await topic.close()
        async with edge_at(shared_url, raw) as edge:
            assert edge.core.devices["a"].seen.top == 301
            assert edge._appender.head_seq == 301
            async with Device(*edge.address, "a") as device:
                assert await device.send(b"next") == 302
                await device.flush()

    run(restart())


def test_the_topic_may_be_in_the_same_process(tmp_path):
    async def embedded() -> None:
        fleet = Fleet(devices=3, meters=10)
        acked = 0
        for _life in range(2):
            store = open_store("segment", tmp_path / "log")
            engine = Engine(store)
            await engine.open()
            topic = EngineTopic(engine)
            async with edge_at("", topic=topic) as edge:
                state = await LoadGenerator(Target(*edge.address), fleet, Steady(300)).run(
                    seconds=0.5
                )
                assert state.acked == state.sent > 0
                acked += state.acked
                page = await topic.identities(0)
                assert len(page.identities) == len(set(page.identities)) == acked
                tops = [edge.core.devices[fleet.name(n)].seen.top for n in range(3)]
                assert sum(tops) == acked
            await engine.close()
            store.close()

    run(embedded())


def test_an_edge_that_dies_soon_after_its_start_leaves_less_to_read_to_the_next(tmp_path):
    async def crash_loop() -> None:
        store = open_store("memory", tmp_path)
        engine = Engine(store)
        await engine.open()
        topic = EngineTopic(engine)
        await topic.open()
        device = EdgeDevice("a")
        for start in range(0, 2 * RECOVERED_MAX, 500):
            messages = [Message(device, start + n + 1, b"x") for n in range(500)]
            await topic.append(encode_batch(messages, key=f"after-{start}"), f"after-{start}")
        dying = Edge(topic)
        await dying.start(port=0)  # and no stop: whatever it saved, it has saved now
        saved = decode_checkpoint(await topic.load())
        assert (saved.seq, saved.seen["a"].top) == (2 * RECOVERED_MAX, 2 * RECOVERED_MAX)
        await dying.stop()
        await engine.close()
        store.close()

    run(crash_loop())


class Deaf:
    """A topic that lands a write, says nothing, and is away until it is told to come back."""

    def __init__(self, topic: EngineTopic) -> None:
        self._topic = topic
        self.is_away = False

    def __getattr__(self, name: str):
        return getattr(self._topic, name)

    async def append(self, body: bytes, key: str) -> Landed:
        if not self.is_away:
            self.is_away = True
            await self._topic.append(body, key)
        raise Unavailable("nobody is there")

    async def identities(self, from_seq: int):
        if self.is_away:
            raise Unavailable("nobody is there")
        return await self._topic.identities(from_seq)


def test_a_topic_that_was_away_until_it_forgot_the_key_is_read_before_it_is_written(tmp_path):
    async def long_silence() -> None:
        clock = ManualClock()
        store = open_store("memory", tmp_path)
        engine = Engine(store, clock=clock)
        await engine.open()
        topic = EngineTopic(engine)
        deaf = Deaf(topic)
        async with edge_at("", topic=deaf, clock=clock) as edge:
            async with Device(*edge.address, "a") as device:
                await device.send(b"once")
                await until(lambda: edge.numbers().retries > 0, "a try that failed")
                clock.advance(2 * KEY_WINDOW_MS)
                deaf.append = topic.append
                deaf.is_away = False
                await device.flush()
                await device.send(b"next")
                await device.flush()
            assert (await topic.identities(0)).identities == [("a", 1), ("a", 2)]
        await engine.close()
        store.close()

    run(long_silence())


def test_a_topic_that_is_deleted_under_an_edge_is_made_again_as_it_has_to_be(tmp_path):
    async def deleted() -> None:
        store = open_store("memory", tmp_path)
        engine = Engine(store)
        await engine.open()
        topic = EngineTopic(engine)
        async with edge_at("", topic=topic) as edge, Device(*edge.address, "a") as device:
            for _life in range(3):
                for _message in range(4):  # each time as many: the same seqs come again
                    await device.send(b"x")
                    await device.flush()
                assert engine.topic("ingest.raw").config.durability == "fsync"
                assert engine.topic("ingest.raw").head_seq == 4
                await engine.routers.drop_topic("ingest.raw")
        await engine.close()
        store.close()

    run(deleted())


def test_a_message_that_the_topic_never_takes_is_told_and_the_others_go_on(tmp_path):
    async def too_large() -> None:
        store = open_store("memory", tmp_path)
        engine = Engine(store, EngineOptions(limits=TopicLimits(record_bytes_max=2_000)))
        await engine.open()
        topic = EngineTopic(engine)
        async with edge_at("", topic=topic) as edge:
            async with Device(*edge.address, "a") as device, Device(*edge.address, "b") as other:
                for size in (10, 5_000, 20, 9_000, 30):
                    await device.send(bytes(size))
                    await other.send(bytes(10))
                await device.flush()
                await other.flush()
                assert [number for number, _ in device.core.refused] == [2, 4]
                assert (device.core.acked, other.core.acked) == (3, 5)
                assert other.connects == 1
            page = await topic.identities(0)
            assert sorted(page.identities) == [
                ("a", 1), ("a", 3), ("a", 5), *(("b", number) for number in range(1, 6)),
            ]  # fmt: skip
        await engine.close()
        store.close()

    run(too_large())


def test_the_commands_take_in_a_load_and_tell_how_it_is_going(server, url, tmp_path):
    async def commands() -> None:
        tokens = tmp_path / "tokens"
        tokens.write_text("* fleet\n")
        edge = EdgeProcess(tmp_path, url, TOKENS_FILE=tokens)
        try:
            await edge.start()
            load = penstock(
                "load", f"127.0.0.1:{edge.port}", "--token", "fleet", "--seconds", "1",
                "--devices", "3", "--json",
            )  # fmt: skip
            done = json.loads(load)
            assert done["sent"] == done["acked"] > 0
            found = json.loads(penstock("status", "--url", edge.status_url))
            assert [stage["name"] for stage in found["stages"]] == ["accept", "reassemble"]
            assert found["edge"]["messages_acked_total"] == done["acked"]
        finally:
            edge.close()
        assert "the edge ends" in edge.log
        assert edge.process.returncode == 0
        async with AsyncClient(ClientSettings(url)) as client:
            assert (await client.get_topic(TopicNames().raw)).count == done["sent"]

    run(commands())


def penstock(*arguments: str) -> str:
    others = {key: text for key, text in os.environ.items() if not key.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "ingest", *arguments],
        capture_output=True, text=True, env=others, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
