"""Windows of the running pipeline under load: stability, occupancy, a blocked stage, memory"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench import servers, table_shop
from bench.bench_ingest import load_tariffs
from bench.plot import Panel, panels
from bench.report import Report
from penstock.kernel.units import KIB, MIB
from penstock.metering.readings import READING_DTYPE

READINGS = 50
LOW_PER_S = 20_000
HIGH_PER_S = 300_000
FLOOD_PER_S = 1_000_000
"""More than any machine takes: devices send as fast as the edge reads."""
LARGE_READINGS = MIB // READING_DTYPE.itemsize
RECORD_BYTES_MAX = "2 MiB"
"""A message of 1 MiB is a record of a third more, in base64: more than a topic takes by default."""
WARM_S = 45.0
SETTLE_S = 30.0
STABLE_S = 30.0
WAVE_S = 10.0
BLOCK_S = 12.0
LOOK_S = 0.2
RATE_AFTER_S = 5.0
DRAWN_S = 1.0
"""How far apart the points of a plot are, which is to be small."""
START_S = 180.0
BUDGET_BYTES = 512 * MIB
WINDOW_MIN = 1_024
SATURATED_S = 3.0
"""A stage has more to do than it can if for so long its senders were refused and, where it is
behind the topic, more waited there at every look than was in the stage."""
ON_SPARK = ("parse", "evaluate", "store")
SATURATED_MIN = 100
"""Fewer samples, of ten a second, say little."""
SHAPES = ("square", "sawtooth", "random", "ramp", "flood", "blocked", "large")
TINY = {
    "WARM_S": 1.0, "SETTLE_S": 1.0, "STABLE_S": 1.0, "WAVE_S": 1.0, "BLOCK_S": 6.0,
    "RATE_AFTER_S": 0.5, "HIGH_PER_S": 25_000, "FLOOD_PER_S": 30_000, "LARGE_READINGS": 2_000,
    "SHAPES": ("square", "blocked"),
}  # fmt: skip

Status = dict[str, Any]
Metrics = dict[str, dict[str, float]]
"""Of each metric, its value by stage."""


class Look(NamedTuple):
    """What the port for status says, and when it was asked, in seconds of this machine.

    Windows, rates and latencies are those of `/metrics`; `/status` has the samples of every 100 ms,
    decisions, and sizes.
    """

    at_s: float
    status: Status
    metrics: Metrics

    def value(self, metric: str, stage: str) -> float:
        """0 if there is none, as for the latency of a stage that finished nothing."""
        return self.metrics.get(f"scheduler_{metric}", {}).get(stage, 0.0)

    @property
    def windows(self) -> dict[str, int]:
        found = self.metrics["scheduler_window_size"]
        return {stage: int(window) for stage, window in found.items()}

    @property
    def waiting(self) -> int:
        """How many messages are in the topic and not yet in a stage behind it."""
        stages = [each for each in self.status["stages"] if each["name"] in ON_SPARK]
        held = max(stage["occupied"] for stage in stages)
        return int(self.status["pipeline"]["behind"] - held)

    @property
    def held_bytes(self) -> float:
        """What is in all windows, and beside them on its way into one."""
        edge = self.status["edge"]
        behind = sum(
            stage["occupied"] * stage["bytes_per_slot"]
            for stage in self.status["stages"]
            if stage["name"] != "reassemble"
        )
        return float(behind + edge["buffered_bytes"] + edge["held_bytes"])


METRIC = re.compile(r'(scheduler_\w+)\{stage="(\w+)"\} (\S+)')


def metrics_of(text: str) -> Metrics:
    """Every metric that has one value for each stage, out of Prometheus' text."""
    found: Metrics = {}
    for name, stage, value in METRIC.findall(text):
        found.setdefault(name, {})[stage] = float(value)
    return found


class Watch:
    """Asks the running process for its metrics and its status, five times a second."""

    def __init__(self, port: int) -> None:
        self.looks: list[Look] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> Look:
        metrics = metrics_of(self._get("/metrics").decode())
        return Look(time.monotonic(), json.loads(self._get("/status")), metrics)

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        return self._connection.getresponse().read()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.looks.append(self.look())

    def since(self, from_s: float, upto_s: float = float("inf")) -> list[Look]:
        return [look for look in self.looks if from_s <= look.at_s < upto_s]


class Place(NamedTuple):
    """A running `penstock ingest run`."""

    process: int
    port: int
    status_port: int


STARTING = "starting"


def pieces() -> list[str]:
    """The shapes of load; each run starts and warms up before them."""
    return [STARTING, *SHAPES]


def run(report: Report) -> None:
    with running() as place, Watch(place.status_port) as watch:
        with load(place, "steady", LOW_PER_S, LOW_PER_S):
            wait_for(watch, lambda look: look.status["pipeline"]["stored_seq"] > 0, START_S)
        with load(place, "steady", HIGH_PER_S, HIGH_PER_S):
            time.sleep(WARM_S)
        with report.piece(STARTING):
            least = min(min(look.windows.values()) for look in watch.looks)
            report.row("starting: smallest window", least, "slots", goal="no stall",
                       met=not stalls(watch.looks))  # fmt: skip
        for shape in filter(report.wants, SHAPES):
            with report.piece(shape):
                RUNS.get(shape, wave)(report, place, watch, shape)


def wave(report: Report, place: Place, watch: Watch, shape: str) -> None:
    """A load that changes all the time; what is checked comes half a minute after the change."""
    span_s = SETTLE_S + STABLE_S
    period_s = 2 * span_s if shape == "square" else span_s if shape == "ramp" else WAVE_S
    changes = {"square": [0.0, span_s], "ramp": [span_s]}.get(shape, [0.0])
    began_s = time.monotonic()
    flood = ("steady", FLOOD_PER_S, FLOOD_PER_S)
    form, least, most = flood if shape == "flood" else (shape, LOW_PER_S, HIGH_PER_S)
    with load(place, form, least, most, period_s=period_s):
        time.sleep(span_s * (2 if shape in ("square", "ramp") else 1))
    looks = watch.since(began_s)
    settled = [
        watch.since(began_s + change + SETTLE_S, began_s + change + span_s) for change in changes
    ]
    worst = max(unrest(each) for each in settled)
    report.row(f"{shape}: windows vary half a minute after a change", 100 * worst, "%",
               goal="within 15 %", met=worst <= 0.15)  # fmt: skip
    finish(report, shape, looks, began_s)


def blocked(report: Report, place: Place, watch: Watch, shape: str) -> None:
    """Store is held under full load and released: every window to the smallest, and back."""
    with load(place, "steady", HIGH_PER_S, HIGH_PER_S):
        time.sleep(SETTLE_S)
        began_s = time.monotonic()
        os.kill(place.process, signal.SIGUSR1)
        time.sleep(BLOCK_S)
        os.kill(place.process, signal.SIGUSR1)
        time.sleep(max(BLOCK_S, 12.0))
    held, released = watch.since(began_s, began_s + BLOCK_S), watch.since(began_s + BLOCK_S)
    before = watch.since(began_s - 5, began_s)[-1].windows
    small_s = first(held, lambda look: set(look.windows.values()) == {WINDOW_MIN}) - began_s
    back_s = first(released, lambda look: are_back(look.windows, before)) - began_s - BLOCK_S
    report.row("store is held: every window is the smallest after", small_s, "s",
               goal="at most 5 s", met=small_s <= 5)  # fmt: skip
    report.row("store is released: every window is back after", back_s, "s",
               goal="at most 10 s", met=back_s <= 10)  # fmt: skip
    finish(report, shape, watch.since(began_s - 15), began_s - 15, marks=(15, 15 + BLOCK_S))


def are_back(windows: dict[str, int], before: dict[str, int]) -> bool:
    return all(windows[name] >= before[name] for name in before)


def large(report: Report, place: Place, watch: Watch, shape: str) -> None:
    """Messages of 1 MiB: the smallest windows of them alone would take ten times the budget."""
    began_s = time.monotonic()
    before = resident_bytes(place.process, "VmRSS:")
    Path(f"/proc/{place.process}/clear_refs").write_text("5")  # the peak starts over
    with load(place, "steady", HIGH_PER_S, HIGH_PER_S, readings=LARGE_READINGS):
        time.sleep(SETTLE_S)
        grown = resident_bytes(place.process, "VmHWM:") - before
    report.row("large: the process grew by", grown / MIB, "MiB", ratio=grown / BUDGET_BYTES,
               against="the budget", goal="at most 1×", met=grown <= BUDGET_BYTES)  # fmt: skip
    finish(report, shape, watch.since(began_s), began_s)


RUNS = {"blocked": blocked, "large": large}


def finish(
    report: Report, shape: str, looks: list[Look], began_s: float, marks: tuple[float, ...] = ()
) -> None:
    """The rows that every shape has, its series and its plot."""
    inside = [0.5 <= sample <= 0.85 for sample in saturated(looks)]
    if len(inside) >= SATURATED_MIN and shape not in RUNS:
        share = sum(inside) / len(inside)
        report.row(f"{shape}: samples of saturated stages inside 0.50–0.85", 100 * share, "%",
                   goal="at least 90 %", met=share >= 0.9)  # fmt: skip
    held = max(look.held_bytes for look in looks)
    report.row(f"{shape}: most in windows", held / MIB, "MiB", ratio=held / BUDGET_BYTES,
               against="the budget", goal="at most 1×", met=held <= BUDGET_BYTES)  # fmt: skip
    readings = LARGE_READINGS if shape == "large" else READINGS
    # Not what was left of the load before, whose messages had another size.
    rates = [look.value("rate", "store") for look in looks if look.at_s >= began_s + RATE_AFTER_S]
    report.row(f"{shape}: most a second", max(rates) * readings, "readings/s")
    report.files[f"windows-{shape}.svg"] = plotted(shape, looks, began_s, marks)


def saturated(looks: list[Look]) -> list[float]:
    """Every sample, once, of each stage that has been saturated for a while."""
    found: dict[tuple[str, int], float] = {}
    refused_s: dict[str, float] = {}
    for before, look in pairwise(looks):
        for stage in look.status["stages"]:
            name = stage["name"]
            is_refusing = stage["refused"] and (name not in ON_SPARK or look.waiting > 0)
            since_s = refused_s.setdefault(name, look.at_s) if is_refusing else None
            if since_s is None:
                refused_s.pop(name, None)
            elif look.at_s - since_s >= SATURATED_S:
                for at_ms, occupancy, *_ in stage["samples"]:
                    if at_ms > before.at_s * 1_000:
                        found[name, at_ms] = occupancy
    return list(found.values())


def unrest(looks: list[Look]) -> float:
    """How far any window goes from its mean, as a share of it."""
    worst = 0.0
    for name in looks[0].windows:
        windows = [look.windows[name] for look in looks]
        mean = sum(windows) / len(windows)
        worst = max(worst, max(windows) / mean - 1, 1 - min(windows) / mean)
    return worst


def stalls(looks: list[Look]) -> bool:
    return any(
        decision["action"] == "stalled" for look in looks for decision in look.status["decisions"]
    )


def first(looks: list[Look], is_so: Any) -> float:
    return next((look.at_s for look in looks if is_so(look)), float("inf"))


def plotted(shape: str, looks: list[Look], began_s: float, marks: tuple[float, ...]) -> str:
    names, drawn = list(looks[0].windows), list(thinned(looks))

    def lines(metric: str, factor: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [(look.at_s - began_s, look.value(metric, name) * factor) for look in drawn]
            for name in names
        }

    return panels(
        f"windows under a load of shape {shape}",
        [
            Panel("window", "slots", lines("window_size"), marks=marks),
            Panel("occupancy", "share", lines("occupancy"), band=(0.5, 0.85), marks=marks),
            Panel("p99", "ms", lines("latency_p99_seconds", 1e3), marks=marks),
            Panel("rate", "messages/s", lines("rate"), marks=marks),
        ],
    )


def thinned(looks: list[Look]) -> Iterator[Look]:
    due_s = looks[0].at_s
    for look in looks:
        if look.at_s >= due_s:
            due_s += DRAWN_S
            yield look


@contextmanager
def running() -> Iterator[Place]:
    """A topic server and `penstock ingest run` with a Spark of its own."""
    with (
        servers.penstock(PENSTOCK_MAX_RECORD_BYTES=RECORD_BYTES_MAX) as topics,
        servers.directory() as home,
    ):
        url = f"http://127.0.0.1:{topics}"
        load_tariffs(url)
        port_file = home / "ports"
        place = ["--spark", table_shop.shared_spark().url] if table_shop.IS_SHARED else []
        running = subprocess.Popen(
            [sys.executable, "-m", "penstock", "ingest", "run", "--no-live", "--url", url,
             "--catalog", f"sqlite:{home}/lake.sqlite", *place],
            env={
                **os.environ, "PYTHONDONTWRITEBYTECODE": "", "PENSTOCK_INGEST_PORT": "0",
                "PENSTOCK_INGEST_STATUS_PORT": "0", "PENSTOCK_INGEST_PORT_FILE": str(port_file),
                "PENSTOCK_INGEST_MAX_MESSAGE_BYTES": str(MIB + KIB),
            },
        )  # fmt: skip
        try:
            until = time.monotonic() + START_S
            while not port_file.exists():
                if running.poll() is not None or time.monotonic() > until:
                    raise TimeoutError("`penstock ingest run` did not start")
                time.sleep(0.05)
            ports = [int(line.rpartition(":")[2]) for line in port_file.read_text().split()]
            yield Place(running.pid, *ports)
        finally:
            servers.stop(running)


@contextmanager
def load(
    place: Place,
    shape: str,
    low_per_s: float,
    high_per_s: float,
    *,
    period_s: float = 1.0,
    readings: int = READINGS,
) -> Iterator[None]:
    """Devices that send in a shape, by readings a second."""
    rates = [str(low_per_s / readings), str(high_per_s / readings)]
    sending = subprocess.Popen(
        [sys.executable, "-m", "bench.windows_load", str(place.port), shape, *rates,
         str(period_s), str(readings)],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        servers.stop(sending)


def wait_for(watch: Watch, is_so: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not (watch.looks and is_so(watch.looks[-1])):
        if time.monotonic() > until:
            raise TimeoutError(f"nothing was stored within {seconds:.0f} s")
        time.sleep(LOOK_S)


def resident_bytes(process: int, field: str) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition(field)[2].split()[0]) * 1_024
