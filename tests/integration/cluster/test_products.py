"""What is built on topics works against three nodes as against one, while the leader dies once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client, Runtime
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, Target
from penstock.metering.shapes import Steady
from penstock.spark.link import connect
from penstock.spark.topics.source import register
from tests.integration.client.runtime_served import increment
from tests.integration.cluster.load import settings
from tests.integration.cluster.processes import Process, Processes, cluster
from tests.integration.ingest.place import check_fleet, edge_at, run
from tests.integration.spark.one import one_spark
from tests.integration.spark.topics.test_stream import source
from tests.waiting import until, wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make

ANSWER_S = 90.0
"""How long an answer may take while nodes die and start again on a busy machine."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with cluster(tmp_path_factory.mktemp("three"), "a", "b", "c", partitions=1) as made:
        yield made


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with connect(one_spark().url) as session:
        register(session)
        yield session


def kill_leader(made: Processes) -> Process:
    leader = made.leader_of(0)
    leader.kill()
    return leader


@contextmanager
def without_leader(made: Processes) -> Iterator[None]:
    """The leader is killed; it starts again at the end."""
    leader = kill_leader(made)
    try:
        yield
    finally:
        leader.start()
        made.wait_settled(leader)


def test_commits_of_a_runtime_take_effect_once_while_the_leader_dies(three: Processes) -> None:
    place = settings(three.urls)
    with Runtime(place, "counters") as runtime:
        runtime.register("increment", increment)
        for handle in [runtime.send("increment") for _ in range(20)]:
            handle.result(ANSWER_S)
        under_way = [runtime.send("increment") for _ in range(20)]
        with without_leader(three):
            under_way += [runtime.send("increment") for _ in range(20)]
            for handle in under_way:
                handle.result(ANSWER_S)
    with Runtime(place, "counters") as other:
        assert other.get("count") == 60


def test_an_edge_loses_and_doubles_no_message_while_the_leader_dies(three: Processes) -> None:
    async def devices() -> None:
        fleet = Fleet(devices=4, meters=3, seed=7)
        async with edge_at(three.urls) as edge:
            generator = LoadGenerator(Target(*edge.address), fleet, Steady(50))
            load = asyncio.ensure_future(generator.run(seconds=6))
            await until(lambda: generator.state.acked > 20, "messages to be taken in")
            killed = await asyncio.to_thread(kill_leader, three)
            state = await load
            assert state.acked == state.sent
        await asyncio.to_thread(killed.start)
        await check_fleet(three.urls, fleet, state.sent_by_device)

    run(devices())
    three.wait_settled(three["a"])


def test_a_job_of_spark_copies_every_record_once_while_the_leader_dies(
    three: Processes, spark: Any, tmp_path: Path
) -> None:
    with Client(settings(three.urls)) as client:
        client.put_topic("from")
        client.put_topic("to")
        client.write("from", [{"n": n} for n in range(50)])
        query = (
            source(spark, three.urls, "from", max_rows="20")
            .selectExpr("data", "tag")
            .writeStream.format("penstock")
            .options(url=three.urls, topic="to")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            wait_for_copies(client, query, 50)
            client.write("from", [{"n": n} for n in range(50, 150)])
            with without_leader(three):
                client.write("from", [{"n": n} for n in range(150, 200)])
                wait_for_copies(client, query, 200)
        finally:
            query.stop()
        pages = client.read("to")
        found = Counter(record.data["n"] for page in pages for record in page.records)
        assert found == Counter(range(200))


def wait_for_copies(client: Client, query: Any, count: int) -> None:
    def copied() -> bool:
        assert query.isActive, query.exception()
        return client.get_topic("to").head_seq >= count

    wait_until(copied, f"{count} records to be copied", 2 * ANSWER_S)
