"""The Spark stages of ingest: against one fused job, and from raw topic to committed snapshot"""

from __future__ import annotations

import base64
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench import servers
from bench.report import Report
from penstock.client import Client, Record
from penstock.ingest.readings import READING_DTYPE, pack_rows
from penstock.lake.shell import Catalog, open_catalog
from penstock.spark.embedded import start_spark
from penstock.spark.ingest.metering import create_tariff_tables, metering
from penstock.spark.ingest.pipeline import Pipeline, parsed_frame, raw_frame
from penstock.spark.ingest.runner import PipelineRunner, RunnerOptions, _messages
from penstock.spark.ingest.sparks import Sparks
from penstock.spark.ingest.stage import SHARE
from penstock.spark.ingest.tariffs import METERS, TARIFFS, Band, band_row
from penstock.spark.options import SparkOptions
from penstock.spark.topic_http import TopicAddress
from penstock.spark.topic_pages import SeqRange
from penstock.spark.topic_source import fetch
from penstock.spark.writing import write_table

READINGS = 50
METER_COUNT = 2_000
MESSAGES = 4_000
BATCHES = (400, 1_300, 4_000)
ROUNDS = 2
DELAY_S = 6.0
FUSED = "one fused job"
NUMBERS = count()
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def run(report: Report) -> None:
    with (
        servers.penstock() as port,
        tempfile.TemporaryDirectory() as place,
        start_spark(SparkOptions(cores=2)) as embedded,
        Client(f"http://127.0.0.1:{port}") as client,
    ):
        url = f"http://127.0.0.1:{port}"
        client.put_topic("raw")
        fill(client, "raw", MESSAGES)
        sparks = Sparks(SparkOptions(remote=embedded.url))
        with lake_of(Path(place)) as lake:
            stages_against_fused(report, lake, url, sparks)
            delays(report, lake, url, client, sparks)
        sparks.close()


def stages_against_fused(report: Report, lake: Catalog, url: str, sparks: Sparks) -> None:
    rows = MESSAGES * READINGS
    best: dict[str, float] = {}
    for _ in range(ROUNDS):  # they take turns, as the machine is shared
        keep(best, FUSED, fused(lake, url, sparks))
        for batch in BATCHES:
            keep(best, f"three stages, batches of {batch:,} messages",
                 staged(lake, url, sparks, batch))  # fmt: skip
    report.row(FUSED, rows / best[FUSED], "readings/s")
    reached = max(best[FUSED] / taken for name, taken in best.items() if name != FUSED)
    for name, taken in best.items():
        if name != FUSED:
            ratio = best[FUSED] / taken
            is_best = ratio == reached
            goal = {"goal": "at least 0.7×", "met": ratio >= 0.7} if is_best else {}
            report.row(name, rows / taken, "readings/s", ratio=ratio, against=FUSED, **goal)


def fused(lake: Catalog, url: str, sparks: Sparks) -> float:
    """Parse, evaluate and write as a single job over all the rows, without a cursor or stages."""
    pipeline = metering(lake, "raw")
    spark = sparks.session()
    begun = time.perf_counter()
    messages = _messages(fetch(TopicAddress(url, "raw"), SeqRange(0, MESSAGES)))
    parsed = parsed_frame(pipeline, raw_frame(spark, pipeline, messages))
    made = pipeline.evaluate(parsed.where("_reason IS NULL")).drop("_seq", "_row", "_reason")
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


def staged(lake: Catalog, url: str, sparks: Sparks, batch: int) -> float:
    runner = runner_of(lake, "raw", url, sparks, batch)
    sparks.session()
    begun = time.perf_counter()
    cursor = runner.run(MESSAGES)
    taken = time.perf_counter() - begun
    assert cursor.rows_stored == MESSAGES * READINGS
    return taken


def delays(report: Report, lake: Catalog, url: str, client: Client, sparks: Sparks) -> None:
    """Messages at a steady rate: how long from the append to the commit that has them."""
    for batch, rate in ((358, 200), (1_433, 1_000)):
        topic = f"steady{batch}"
        client.put_topic(topic)
        runner = runner_of(lake, topic, url, sparks, batch)
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        found = sorted(one_run(client, topic, runner, rate))
        runner.stop()
        thread.join()
        name = f"{rate:,} messages/s of {READINGS} readings, batches up to {batch:,} messages"
        for share in (0.50, 0.99):
            delay_ms = 1_000 * found[int(share * (len(found) - 1))]
            report.row(f"{name}: delay p{share * 100:.0f}", delay_ms, "ms")


def one_run(client: Client, topic: str, runner: PipelineRunner, rate: int) -> Iterator[float]:
    appended: list[tuple[int, float]] = []
    stored: list[tuple[int, float]] = []
    begun = time.perf_counter()
    portion = max(1, rate // 20)
    records = messages(portion)
    while time.perf_counter() - begun < DELAY_S or stored[-1][0] < appended[-1][0]:
        now = time.perf_counter()
        if now - begun < DELAY_S and len(appended) * portion < rate * (now - begun):
            appended.append((client.write(topic, records, return_seqs=False).last_seq, now))
        stored.append((runner.stored_seq, time.perf_counter()))
        time.sleep(0.002)
    warm = len(appended) // 3  # the first seconds are those of the JIT
    for seq, at in appended[warm:]:
        yield next(when for reached, when in stored if reached >= seq) - at


def runner_of(lake: Catalog, topic: str, url: str, sparks: Sparks, batch: int) -> PipelineRunner:
    pipeline: Pipeline = metering(lake, topic, name=f"bench{next(NUMBERS)}")
    options = RunnerOptions(wait_ms=200, linger_ms=20)
    runner = PipelineRunner(pipeline, lake, url, sparks=sparks, options=options)
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


@contextmanager
def lake_of(place: Path) -> Iterator[Catalog]:
    with open_catalog(f"sqlite:{place}/lake.sqlite") as lake:
        create_tariff_tables(lake)
        meters = [
            {"meter": str(n), "tariff": ("flat", "hours")[n % 2], "valid_from": BEGIN}
            for n in range(METER_COUNT)
        ]
        bands = [
            band_row("flat", BEGIN, 1, Band(Decimal("0.3"))),
            band_row("hours", BEGIN, 1, Band(Decimal("0.18"), from_hour=22, to_hour=6)),
            band_row("hours", BEGIN, 2, Band(Decimal("0.35"))),
        ]
        tables: dict[str, tuple[list[dict[str, Any]], pa.Schema]] = {
            "meters": (meters, METERS), "tariffs": (bands, TARIFFS),
        }  # fmt: skip
        transaction = lake.begin()
        for name, (rows, schema) in tables.items():
            table = lake.table(name)
            file = lake.write(table, pa.Table.from_pylist(rows, schema=schema))
            transaction.add_files(table, [file])
        lake.commit(transaction)
        yield lake
