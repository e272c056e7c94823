"""Tariffs that change while readings are priced, with a real server and a real Spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from socket import socket
from typing import Any

import pytest

from penstock.client import Client
from penstock.lake.catalog import Catalog
from penstock.metering.pipeline import metering
from penstock.metering.pipeline import parse as metering_parse
from penstock.metering.tariff_space import TariffSpace
from penstock.protocol.commits import Commit, CommitWrite
from penstock.spark.link import SparkLink
from penstock.spark.pipeline.replay import replay
from penstock.spark.pipeline.runner import PipelineRunner, RunnerOptions
from tests.conformance.servers import ServerProcess
from tests.integration.lake.duck import Duck
from tests.integration.spark.pipeline.fleet import (
    OLD,
    STORED,
    UNKNOWN,
    Fleet,
    Prices,
    check_charges,
    fill_tariffs,
    space_of,
)
from tests.integration.spark.pipeline.test_metering import DEADLINE_S, Running, until
from tests.integration.spark.topics.place import url_of

ROUNDS = 6


def free_port() -> int:
    """A port that a server can have again after it was killed."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def flat(price: str) -> dict[str, Any]:
    return {"kind": "flat", "valid_from": OLD.isoformat(), "price_per_kwh": price}


def test_every_charge_is_right_by_the_tariffs_it_names_while_they_change(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, duck: Duck
) -> None:
    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(21))
    options = RunnerOptions(wait_ms=100, linger_ms=0)
    pipeline = metering(url, topic, tariffs=space_of(topic))
    runner = PipelineRunner(pipeline, lake, url, link=link, options=options)
    running = Running(runner)
    over = threading.Event()
    changes: list[int] = []

    def change() -> None:
        with TariffSpace(url, space_of(topic)) as there:
            while not over.is_set():
                price = f"{Decimal(len(changes) + 1).scaleb(-3)}"
                changes.append(there.add("flat", [flat(price)]).seq or 0)
                over.wait(0.01)

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    for _ in range(ROUNDS):
        head = fleet.send(40, unknown=0.1)
        until(lambda head=head: runner.stored_seq == head or running.is_over, "a batch")
        assert not running.is_over, running.error
    over.set()
    changing.join()
    told = changes[-1]
    head = fleet.send(10)
    until(lambda: runner.stored_seq == head or running.is_over, "the last batch")
    runner.stop()
    running.join()
    assert running.error is None
    fleet.check(lake, duck)
    seqs = {row["tariffs_seq"] for row in duck.rows(STORED)}
    assert len(seqs) > ROUNDS // 2  # one for each batch, and there was more than one
    assert max(seqs) == told  # what was answered before a batch counts for it
    assert runner.basis is not None
    assert (runner.basis.space, runner.basis.seq) == (space_of(topic), told)


def test_what_nobody_could_price_is_priced_with_the_fixed_tariff_when_it_is_tried_again(
    spark: Any, link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, duck: Duck
) -> None:
    fill_tariffs(url, topic)
    space = space_of(topic)
    good = client.get_entity(space, "tariff:hours")
    broken = {"versions": [{**good.doc["versions"][0], "kind": "hourly"}]}
    by_hand = Commit(
        session="by-hand", local_seq=1, writes=(CommitWrite("tariff:hours", set=broken),)
    )
    client.commit(space, by_hand)
    fleet = Fleet(client, topic, Random(22))
    pipeline = metering(url, topic, tariffs=space)
    cursor = PipelineRunner(pipeline, lake, url, link=link).run(fleet.send(60, bad=0))
    assert cursor.basis is not None
    before = cursor.basis.seq
    letters = lake.scan("dead_letters").to_pylist()
    words = {row["reason"].partition(":")[0] for row in letters}
    assert words == {"bad_tariff", "unknown_meter"}
    assert any(
        "tariff:hours: version 1: expected kind flat, time_of_use or seasonal, found 'hourly'"
        in row["reason"]
        for row in letters
    )
    priced = {row["tariffs_seq"] for row in duck.rows(STORED)}
    assert priced == {before}
    fixed = Commit(
        session="by-hand", local_seq=2, writes=(CommitWrite("tariff:hours", set=good.doc),)
    )
    client.commit(space, fixed)
    with TariffSpace(url, space) as there:
        now = there.assign("flat", map(str, UNKNOWN), OLD.isoformat()).seq
    done = replay(spark, lake, pipeline)
    assert (done.letters, done.rows, done.dead) == (len(letters), len(letters), 0)
    charges = duck.rows(STORED)
    assert {row["tariffs_seq"] for row in charges} == {before, now}
    check_charges(charges, Prices(client, topic))
    fleet.check(lake, duck, meters={str(m) for m in range(2_000)})


@pytest.mark.slow
def test_while_the_server_is_away_nothing_is_priced_with_what_may_have_changed(
    link: SparkLink, lake: Catalog, duck: Duck, tmp_path: Path
) -> None:
    server = ServerProcess(tmp_path, PORT=free_port()).start()
    topic, url = "raw", url_of(server)
    begun, gate = threading.Event(), threading.Event()

    def parse(raw: Any) -> Any:
        begun.set()
        assert gate.wait(DEADLINE_S)
        return metering_parse(raw)

    try:
        with Client(url) as client:
            client.put_topic(topic)
            fill_tariffs(url, topic)
            fleet = Fleet(client, topic, Random(23))
            pipeline = replace(metering(url, topic, tariffs=space_of(topic)), parse=parse)
            runner = PipelineRunner(pipeline, lake, url, link=link)
            gate.set()
            first = runner.run(fleet.send(30))
            gate.clear()
            begun.clear()
            head = fleet.send(30)
            running = Running(runner, head)
            until(begun.is_set, "a batch on its way to be priced")
            with TariffSpace(url, space_of(topic)) as there:
                told = there.add("flat", [flat("0.777")]).seq
            server.kill()
            gate.set()
            until(lambda: (runner.trouble or "").startswith("evaluate:"), "a word about it")
            assert "no answer from" in (runner.trouble or "")
            assert runner.stored_seq == first.seq
            server.start()
            running.join()
            assert running.error is None
            assert first.basis is not None
            assert {row["tariffs_seq"] for row in duck.rows(STORED)} == {first.basis.seq, told}
            fleet.check(lake, duck)
    finally:
        gate.set()
        server.close()
