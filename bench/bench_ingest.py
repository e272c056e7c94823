"""Ingest: its Spark stages against one fused job, and all of it from sockets to snapshots"""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from bench import servers
from bench.ingest_load import DEVICES, METER_COUNT, READINGS
from bench.load import free_port
from bench.report import Report
from bench.table_shop import bench_spark
from penstock.client import Client, Record
from penstock.lake.catalog import Catalog, open_catalog
from penstock.metering.pipeline import metering
from penstock.metering.readings import READING_DTYPE, pack_rows, unpack
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariff_space import TariffSpace
from penstock.spark.lake.writing import write_table
from penstock.spark.link import SparkLink
from penstock.spark.options import SparkOptions
from penstock.spark.pipeline.definition import Pipeline, parsed_frame, raw_frame
from penstock.spark.pipeline.fetch import messages_of
from penstock.spark.pipeline.runner import PipelineRunner, RunnerOptions
from penstock.spark.pipeline.stages import SHARE
from penstock.spark.topics.http import TopicAddress
from penstock.spark.topics.pages import SeqRange
from penstock.spark.topics.source import fetch

MESSAGES = 2_000
BATCHES = (250, 700, 2_000)
ROUNDS = 3
DELAY_S = 3.0
LOAD = 0.5
"""The share of what was reached that a steady load has."""
TINY = {"MESSAGES": 160, "BATCHES": (80,), "ROUNDS": 1, "DELAY_S": 0.5}
FUSED = "one fused job"
NUMBERS = count()
BEGIN = "2026-01-01"


def run(report: Report) -> None:
    with (
        servers.penstock() as port,
        bench_spark(cores=2) as (embedded, home),
        Client(f"http://127.0.0.1:{port}") as client,
    ):
        url = f"http://127.0.0.1:{port}"
        client.put_topic("raw")
        fill(client, "raw", MESSAGES)
        link = SparkLink(SparkOptions(remote=embedded.url))
        load_tariffs(url)
        with open_catalog(f"sqlite:{home}/lake.sqlite") as lake:
            stages_against_fused(report, lake, url, link)
            end_to_end(report, lake, url, link)
        link.close()


def stages_against_fused(report: Report, lake: Catalog, url: str, link: SparkLink) -> None:
    rows = MESSAGES * READINGS
    best: dict[str, float] = {}
    for _ in range(ROUNDS):  # they take turns, as the machine is shared
        keep(best, FUSED, fused(lake, url, link))
        for batch in BATCHES:
            keep(best, f"three stages, batches of {batch:,} messages",
                 staged(lake, url, link, batch))  # fmt: skip
    report.row(FUSED, rows / best[FUSED], "readings/s")
    reached = max(best[FUSED] / taken for name, taken in best.items() if name != FUSED)
    for name, taken in best.items():
        if name != FUSED:
            ratio = best[FUSED] / taken
            is_best = ratio == reached
            goal = {"goal": "at least 0.7×", "met": ratio >= 0.7} if is_best else {}
            report.row(name, rows / taken, "readings/s", ratio=ratio, against=FUSED, **goal)


def fused(lake: Catalog, url: str, link: SparkLink) -> float:
    """Parse, evaluate and write as a single job over all the rows, without a cursor or stages."""
    pipeline = metering(url, "raw")
    spark = link.session()
    begun = time.perf_counter()
    messages = messages_of(fetch(TopicAddress(url, "raw"), SeqRange(0, MESSAGES)))
    parsed = parsed_frame(pipeline, raw_frame(spark, pipeline, messages))
    evaluate = pipeline.pinned().evaluate
    made = evaluate(parsed.where("_reason IS NULL")).drop("_seq", "_row", "_reason")
    transaction = lake.begin()
    name = f"fused_{next(NUMBERS)}"
    schema = lake.schema("main")
    written = write_table(
        lake.storage, lambda found: transaction.create_table(schema, name, found), made,
        rows_expected=1 << 40,
    )  # fmt: skip
    assert written.rows == MESSAGES * READINGS
    transaction.add_files(written.table, written.files)
    lake.commit(transaction)
    return time.perf_counter() - begun


def staged(lake: Catalog, url: str, link: SparkLink, batch: int) -> float:
    runner = runner_of(lake, "raw", url, link, batch)
    link.session()
    begun = time.perf_counter()
    cursor = runner.run(MESSAGES)
    taken = time.perf_counter() - begun
    assert cursor.rows_stored == MESSAGES * READINGS
    return taken


def end_to_end(report: Report, lake: Catalog, url: str, link: SparkLink) -> None:
    """From devices on sockets to snapshots of the lake: how many readings, and how late."""
    for batch in BATCHES:
        name = f"from sockets to snapshots, batches up to {batch:,} messages"
        with edge(url) as (port, topic):
            runner = runner_of(lake, topic, url, link, batch)
            with running(runner):
                taken_s = flood(port, runner)
                report.row(name, MESSAGES * READINGS / taken_s, "readings/s")
                rate = LOAD * MESSAGES / taken_s
                delays_ms = sorted(steady(port, topic, url, runner, rate))
        name = f"{rate * READINGS:,.0f} readings/s, batches up to {batch:,} messages"
        for share in (0.50, 0.99):
            delay_ms = delays_ms[int(share * (len(delays_ms) - 1))]
            report.row(f"{name}: delay p{share * 100:.0f}", delay_ms, "ms")


@contextmanager
def edge(url: str) -> Iterator[tuple[int, str]]:
    """An edge with a topic of its own: its port and the topic."""
    port, topic = free_port(), f"raw{next(NUMBERS)}"
    arguments = [sys.executable, "-m", "penstock", "ingest", "edge", "--port", str(port),
                 "--status-port", "0", "--url", url]  # fmt: skip
    with servers.process(arguments, port=port, env={"PENSTOCK_INGEST_RAW_TOPIC": topic}):
        yield port, topic


@contextmanager
def running(runner: PipelineRunner) -> Iterator[None]:
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        runner.stop()
        thread.join()


def flood(port: int, runner: PipelineRunner) -> float:
    """As fast as it goes; the seconds until all of it is in the lake."""
    stored = runner.stored_seq
    begun = time.perf_counter()
    load(port, MESSAGES, 0).wait()
    wait_for(lambda: runner.stored_seq >= stored + MESSAGES)
    return time.perf_counter() - begun


def steady(
    port: int, topic: str, url: str, runner: PipelineRunner, per_second: float
) -> Iterator[float]:
    """At a rate that it can keep up with: of each message, how long until it was in the lake."""
    before = runner.stored_seq
    count = max(1, int(per_second * DELAY_S) // DEVICES) * DEVICES
    stored: list[tuple[int, float]] = []

    def is_done() -> bool:
        stored.append((runner.stored_seq, time.time() * 1_000))
        return stored[-1][0] >= before + count

    sending = load(port, count, per_second)
    wait_for(is_done)
    sending.wait()
    records = fetch(TopicAddress(url, topic), SeqRange(before, before + count))
    sent_ms = [
        unpack(base64.b64decode(text[1:-1])).rows["time_ms"][0]
        for text in records.column("data").to_pylist()
    ]
    moments = iter(stored)
    reached, at_ms = next(moments)
    for seq, when_ms in zip(records.column("seq").to_pylist(), sent_ms, strict=True):
        while reached < seq:
            reached, at_ms = next(moments)
        yield at_ms - float(when_ms)


def load(port: int, count: int, per_second: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.ingest_load", str(port), str(count), str(per_second)]
    return subprocess.Popen(command)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("expected every message in the lake within two minutes")
        time.sleep(0.002)


def runner_of(lake: Catalog, topic: str, url: str, link: SparkLink, batch: int) -> PipelineRunner:
    pipeline: Pipeline = metering(url, topic, name=f"bench{next(NUMBERS)}")
    options = RunnerOptions(wait_ms=200, linger_ms=20)
    runner = PipelineRunner(pipeline, lake, url, link=link, options=options)
    for stage in runner.stages:
        stage.resize(int(batch / SHARE) + 1)
    return runner


def keep(best: dict[str, float], name: str, taken: float) -> None:
    best[name] = min(best.get(name, taken), taken)


def fill(client: Client, topic: str, total: int) -> None:
    for start in range(0, total, 500):
        client.write(topic, messages(min(500, total - start)), return_seqs=False)


def messages(total: int) -> list[Record]:
    random = np.random.default_rng(7)
    made = []
    for _ in range(total):
        rows = np.empty(READINGS, READING_DTYPE)
        rows["meter"] = random.integers(0, METER_COUNT, READINGS)
        rows["time_ms"] = 1_767_225_600_000 + random.integers(0, 86_400_000 * 30, READINGS)
        rows["energy"] = random.integers(0, 10**6, READINGS)
        rows["quality"] = 0
        number = next(NUMBERS)
        payload = base64.b64encode(pack_rows(rows)).decode()
        made.append(Record(payload, node=f"d{number % 500}", tag=str(number)))
    return made


def load_tariffs(url: str) -> None:
    night = {"hours": "22-6", "price_per_kwh": "0.18"}
    tariffs: dict[str, Any] = {
        "flat": {"kind": "flat", "price_per_kwh": "0.3"},
        "hours": {"kind": "time_of_use", "bands": [night], "otherwise": "0.35"},
    }
    made = {name: {"versions": [{"valid_from": BEGIN, **each}]} for name, each in tariffs.items()}
    rows = [Row(str(n), ("flat", "hours")[n % 2], BEGIN) for n in range(METER_COUNT)]
    with TariffSpace(url) as there:
        there.load(Sheet(made, rows))
