"""Ingest: a batch's job against a bare Spark job, and from sockets to visible snapshots"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench import servers
from bench.cpu import Meter
from bench.ingest_load import METER_COUNT, READINGS
from bench.load import free_port
from bench.report import Report
from bench.stream_ingest import StreamedPipeline
from bench.table_shop import bench_spark
from penstock.client import Client, Record
from penstock.lake.catalog import Catalog, open_catalog
from penstock.metering.parsing import parse_messages
from penstock.metering.pipeline import metering
from penstock.metering.price_lookup import PriceLookup
from penstock.metering.pricing import PRICED, price_readings
from penstock.metering.readings import READING_DTYPE, pack_rows
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariff_space import TariffSpace
from penstock.spark.link import SparkLink
from penstock.spark.options import SparkOptions
from penstock.spark.pipeline.chain import Chain
from penstock.spark.pipeline.cursors import cursor_of
from penstock.spark.pipeline.fetch import messages_of
from penstock.spark.pipeline.side_files import SideStore
from penstock.spark.pipeline.store import Store
from penstock.spark.pipeline.task import TaskWork
from penstock.spark.topics.http import TopicAddress
from penstock.spark.topics.pages import SeqRange
from penstock.spark.topics.source import fetch

BATCHES = (40, 400, 2_000)
"""Messages of a batch: about what a tenth of a second brings at 20,000 readings a second, a fifth
at 100,000, and a whole second."""
ROUNDS = 40
WARM_ROUNDS = 30
WARM_S = 45.0
RATE_WARM_S = 10.0
"""At each rate before it is measured: windows and the size of batches follow the load."""
STEADY_S = 30.0
LOOK_S = 0.005
"""How often the lake is looked at, from the cores that also ingest; delays are so much too long at
most."""
FLOOD_S = 15.0
COLD_S = 90.0
"""Since the start of every process; the last `FLOOD_S` of it count as full speed."""
RATE_S = 3.0
"""The span by which one sees how fast it is meanwhile."""
GOALS = {20_000: (150, 300), 100_000: (220, 500)}
"""Readings a second, and within how many ms half of them and 99 % are to be visible."""
CEILING = 200_000
TINY = {"BATCHES": (40,), "ROUNDS": 2, "WARM_ROUNDS": 1, "WARM_S": 0.5,
        "RATE_WARM_S": 0.5, "STEADY_S": 0.5,
        "FLOOD_S": 0.5, "COLD_S": 2.0, "RATE_S": 0.5, "GOALS": {2_000: (150, 300)},
        "STREAM_RATES": (2_000,), "STREAM_WARM_S": 0.5, "STREAM_FLOOD": 2_000}  # fmt: skip
STREAM_RATES = (20_000, 100_000)
STREAM_WARM_S = 15.0
STREAM_FLOOD = 1_000_000
NUMBERS = count()
BEGIN = "2026-01-01"


JOBS, STREAMED, END_TO_END, COLD = "jobs", "streamed", "end to end", "cold start"


def pieces() -> list[str]:
    """The parts that can be run and kept one by one."""
    return [JOBS, STREAMED, END_TO_END, COLD]


def run(report: Report) -> None:
    wanted = {piece for piece in pieces() if report.wants(piece)}
    if wanted & {JOBS, STREAMED}:
        with topics() as url, Client(url) as client, bench_spark(cores=2) as (embedded, home):
            on_spark(report, wanted, client, url, embedded.url, f"sqlite:{home}/lake.sqlite")
    for piece, work in {END_TO_END: end_to_end, COLD: cold_start}.items():
        if piece in wanted:
            with report.piece(piece), topics() as url:  # nothing of another piece is in it
                work(report, url)


@contextmanager
def topics() -> Iterator[str]:
    """A topic server with nothing but tariffs."""
    with servers.penstock() as port:
        url = f"http://127.0.0.1:{port}"
        load_tariffs(url)
        yield url


def on_spark(
    report: Report, wanted: set[str], client: Client, url: str, spark: str, catalog: str
) -> None:
    """What needs no edge: the job by itself, and the same as a streaming query."""
    link = SparkLink(SparkOptions(remote=spark))
    with open_catalog(catalog) as lake:
        if JOBS in wanted:
            with report.piece(JOBS):
                jobs(report, lake, client, url, link)
        if STREAMED in wanted:
            with report.piece(STREAMED):
                streamed(report, StreamedPipeline(link.session(), client, url, lake, catalog))
    link.close()


# a batch's job


def jobs(report: Report, lake: Catalog, client: Client, url: str, link: SparkLink) -> None:
    client.put_topic("raw")
    fill(client, "raw", max(BATCHES))
    for batch in BATCHES:
        found = messages(url, batch)
        ways = {"bare": bare(lake, url, link, found), "chained": chained(lake, url, link, found)}
        for _ in range(WARM_ROUNDS):
            for way in ways.values():
                way()
        best = {name: np.median([timed(way) for _ in range(ROUNDS)]) for name, way in ways.items()}
        rows = batch * READINGS
        limit = f"{batch:,} messages: a bare job that parses, prices and writes Parquet"
        report.row(limit, rows / best["bare"], "readings/s")
        ratio = float(best["bare"] / best["chained"])
        report.row(f"{batch:,} messages: a batch's job", rows / best["chained"], "readings/s",
                   ratio=ratio, against=limit, goal="at least 0.9×", met=ratio >= 0.9)  # fmt: skip


def timed(way: Callable[[], None]) -> float:
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


def messages(url: str, total: int) -> pa.Table:
    records = fetch(TopicAddress(url, "raw"), SeqRange(0, total))
    return messages_of(records, "base64")[0]


def bare(lake: Catalog, url: str, link: SparkLink, found: pa.Table) -> Callable[[], None]:
    """Rows from memory, parsed and priced in Python workers, written by Spark: nothing else."""
    spark = link.session()
    evaluate: Any = metering(url, "raw").pinned().evaluate
    tables = evaluate.side.tables
    spans, lists = tables["spans"], tables["lists"]

    def work(batches: Iterator[Any]) -> Iterator[Any]:  # here, so that it is sent by value
        lookup = PriceLookup(spans, lists)
        for batch in batches:
            yield price_readings(parse_messages(batch).drop_columns(["_reason"]), lookup, 1, 1)

    def way() -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        frame = spark.createDataFrame(found).mapInArrow(work, from_arrow_schema(PRICED))
        frame.write.parquet(f"{lake.data_path}/bare-{next(NUMBERS)}")

    return way


def chained(lake: Catalog, url: str, link: SparkLink, found: pa.Table) -> Callable[[], None]:
    """The job of a batch as a runner runs it, with checked files of two tables."""
    pipeline = metering(url, "raw")
    chain, store, side = Chain(link.session(), pipeline), Store(lake, pipeline), SideStore(lake)
    evaluate = pipeline.pinned().evaluate
    tables = store.tables(chain.schema(evaluate))
    steps = side.steps(chain.steps(evaluate))
    work = TaskWork(lake.storage.root, "bench", tables.targets, steps=steps)

    def way() -> None:
        result = chain.run(chain.begin(found), evaluate, work)
        assert result.rows == found.num_rows * READINGS

    return way


# the same as a plain Structured Streaming job


def streamed(report: Report, place: StreamedPipeline) -> None:
    """From the acknowledgement of a write to the visible snapshot, without an edge before it."""
    sent = records(400)
    try:
        for per_s in STREAM_RATES:
            place.steady(sent, STREAM_WARM_S, per_s / READINGS)
            delays_ms = place.steady(sent, STEADY_S, per_s / READINGS)
            for share in (50, 99):
                report.row(f"Structured Streaming, {per_s:,} readings/s: delay p{share}",
                           float(np.percentile(delays_ms, share)), "ms")  # fmt: skip
        flood = max(1, STREAM_FLOOD // READINGS)
        begun = time.perf_counter()
        place.steady(sent, 1.0, flood)
        took_s = time.perf_counter() - begun
        report.row("Structured Streaming, as fast as it goes", STREAM_FLOOD / took_s, "readings/s")
    finally:
        place.close()


# from sockets to snapshots


class Steady(NamedTuple):
    """What became of a load."""

    delays_ms: NDArray[np.float64]
    visible: list[tuple[int, float]]
    """How many messages were visible, and since when, by the clock of the day."""
    readings: int
    took_s: float
    cpu_s: float


def cold_start(report: Report, url: str) -> None:
    """As much as it takes from its first second on, until it takes no more than before."""
    found, began_s = flooded(url)
    full_per_s, full_s = full_speed(found.visible, FLOOD_S, RATE_S)
    report.row("full speed after a cold start", full_per_s * READINGS, "readings/s")
    report.row("full speed after a cold start: nine tenths of it after", full_s - began_s, "s",
               goal="within 60 s", met=full_s - began_s <= 60)  # fmt: skip


def flooded(url: str) -> tuple[Steady, float]:
    """A flood from the start of a new `penstock ingest run` on, and when that was."""
    with ingest(url) as place:
        began_s = time.time() - place.start_s
        seconds = max(0.5, COLD_S - place.start_s)
        return place.steady(seconds, 0, with_delays=False), began_s


def full_speed(
    visible: list[tuple[int, float]], full_s: float, span_s: float
) -> tuple[float, float]:
    """The rate of the end, and when the rate of a span was nine tenths of it for the first time.

    >>> visible = [(0, 0.0), (100, 1.0), (200, 2.0), (1_200, 3.0), (2_200, 4.0), (3_200, 5.0)]
    >>> full_speed(visible, full_s=2.0, span_s=1.0)
    (1000.0, 3.0)
    """
    counts, times = (np.array(column, np.float64) for column in zip(*visible, strict=True))

    def rate(end_s: Any, over_s: float) -> Any:
        return (np.interp(end_s, times, counts) - np.interp(end_s - over_s, times, counts)) / over_s

    full_per_s = float(rate(times[-1], full_s))
    reached = (rate(times, span_s) >= 0.9 * full_per_s) & (times >= times[0] + span_s)
    return full_per_s, float(times[reached.argmax()])


def end_to_end(report: Report, url: str) -> None:
    """All of `penstock ingest run`: delay from the acknowledgement to the visible snapshot."""
    with ingest(url) as place:
        began_s = time.time()
        first = place.steady(0.5, 20_000)
        first_s = place.start_s + first.visible[1][1] - began_s
        report.row("first messages visible after a cold start", first_s, "s", goal="within 15 s",
                   met=first_s <= 15)  # fmt: skip
        place.steady(WARM_S, 100_000)
        for rate, (half_ms, most_ms) in GOALS.items():
            place.steady(RATE_WARM_S, rate)
            found = place.steady(STEADY_S, rate)
            for share, goal_ms in ((50, half_ms), (99, most_ms)):
                delay_ms = float(np.percentile(found.delays_ms, share))
                report.row(f"{rate:,} readings/s: delay p{share}", delay_ms, "ms",
                           goal=f"within {goal_ms} ms", met=delay_ms <= goal_ms)  # fmt: skip
            cpu_ms = found.cpu_s * 1e6 / found.readings
            report.row(f"{rate:,} readings/s: processor time for 1,000 readings", cpu_ms, "ms")
        found = place.steady(FLOOD_S, 0)
        reached = found.readings / found.took_s
        report.row("as fast as it goes", reached, "readings/s", goal=f"at least {CEILING:,}",
                   met=reached >= CEILING)  # fmt: skip
        for share in (50, 99):
            delay_ms = float(np.percentile(found.delays_ms, share))
            report.row(f"as fast as it goes: delay p{share}", delay_ms, "ms")
        cpu_ms = found.cpu_s * 1e6 / found.readings
        report.row("as fast as it goes: processor time for 1,000 readings", cpu_ms, "ms")


class Place:
    """A running `penstock ingest run`, and the lake it writes to."""

    def __init__(self, url: str, port: int, home: Path, pid: int, start_s: float) -> None:
        self._url, self._port, self._home, self.pid = url, port, home, pid
        self.start_s = start_s
        self.catalog = f"sqlite:{home}/lake.sqlite"
        self._lake = open_catalog(self.catalog)
        self._client = Client(url)
        cursor_of(self._lake, "metering")  # makes sure that there is a table to look at

    def steady(self, seconds: float, readings_per_s: float, *, with_delays: bool = True) -> Steady:
        """Offer so many readings a second; how late each message was visible."""
        before = self._stored()
        path = self._home / f"load{next(NUMBERS)}.npz"
        arguments = [str(self._port), str(seconds), str(readings_per_s / READINGS), str(path)]
        meter = Meter({"ingest": tree(self.pid)})
        begun = time.perf_counter()
        sending = subprocess.Popen([sys.executable, "-m", "bench.ingest_load", *arguments])
        seen: list[tuple[int, float]] = [(before, time.time())]
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(seen, over))
        watching.start()
        try:
            assert sending.wait(seconds + 120) == 0
            head = self._client.get_topic("ingest.raw").head_seq
            wait_for(lambda: seen[-1][0] >= head)
        finally:
            over.set()
            watching.join()
        took_s = time.perf_counter() - begun
        cpu_s = meter.read().total_s
        acked = np.load(path)
        delays_ms = self._delays(before, head, seen, acked) if with_delays else np.empty(0)
        return Steady(delays_ms, seen, len(acked["acked"]) * READINGS, took_s, cpu_s)

    def _watch(self, seen: list[tuple[int, float]], over: threading.Event) -> None:
        """Look at the cursor, which is part of the snapshot, all the time."""
        while not over.wait(LOOK_S):
            stored = self._stored()
            if stored > seen[-1][0]:
                seen.append((stored, time.time()))

    def _stored(self) -> int:
        found = self._lake.query("SELECT seq FROM penstock_pipelines WHERE name = 'metering'")
        return int(found[0][0]) if found else 0

    def _delays(
        self, before: int, head: int, seen: list[tuple[int, float]], acked: Any
    ) -> NDArray[np.float64]:
        at = {(device, str(number)): when for device, number, when in
              zip(acked["device"].tolist(), acked["message"].tolist(), acked["acked"].tolist(),
                  strict=True)}  # fmt: skip
        records = fetch(TopicAddress(self._url, "ingest.raw"), SeqRange(before, head))
        names = zip(records.column("node").to_pylist(), records.column("tag").to_pylist(),
                    strict=True)  # fmt: skip
        told = np.array([at[name] for name in names])
        seqs = records.column("seq").to_numpy()
        reached = np.array([seq for seq, _ in seen])
        when = np.array([moment for _, moment in seen])
        return np.maximum(0.0, (when[np.searchsorted(reached, seqs)] - told) * 1_000)

    def close(self) -> None:
        self._client.close()
        self._lake.close()


@contextmanager
def ingest(url: str) -> Iterator[Place]:
    """`penstock ingest run` with a Spark of its own, on all cores."""
    with tempfile.TemporaryDirectory() as directory:
        home, port = Path(directory), free_port()
        command = [sys.executable, "-m", "penstock", "ingest", "run", "--no-live"]
        lake = f"sqlite:{home}/lake.sqlite"
        arguments = [*command, "--port", str(port), "--url", url, "--catalog", lake]
        env = {**os.environ, "PENSTOCK_INGEST_STATUS_PORT": "0"}
        begun = time.perf_counter()
        with (home / "log").open("wb") as log:
            running = subprocess.Popen(arguments, env=env, stdout=log, stderr=log)
        try:
            wait_for(lambda: b"penstock takes messages" in (home / "log").read_bytes()
                     or running.poll() is not None)  # fmt: skip
            assert running.poll() is None, (home / "log").read_text()
            place = Place(url, port, home, running.pid, time.perf_counter() - begun)
            yield place
            place.close()
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("not every message was in the lake within two minutes")
        time.sleep(0.01)


# what is sent


def fill(client: Client, topic: str, total: int) -> None:
    for start in range(0, total, 500):
        client.write(topic, records(min(500, total - start)), return_seqs=False)


def records(total: int) -> list[Record]:
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
