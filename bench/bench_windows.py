"""Windows of the running pipeline under load: stability, occupancy, a blocked stage, memory"""

from __future__ import annotations

import http.client
import json
import os
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
from penstock.kernel.units import MIB

READINGS = 50
LOW_PER_S = 20_000
HIGH_PER_S = 300_000
LARGE_READINGS = 24_000
"""A message of 0.6 MB: the largest that a topic takes as a record, in base64."""
WARM_S = 45.0
SETTLE_S = 30.0
STABLE_S = 30.0
WAVE_S = 10.0
BLOCK_S = 12.0
LOOK_S = 0.2
START_S = 180.0
BUDGET_BYTES = 512 * MIB
WINDOW_MIN = 1_024
SHAPES = ("square", "sawtooth", "random", "ramp", "blocked", "large")
TINY = {
    "WARM_S": 1.0, "SETTLE_S": 1.0, "STABLE_S": 1.0, "WAVE_S": 1.0, "BLOCK_S": 6.0,
    "HIGH_PER_S": 25_000, "LARGE_READINGS": 2_000, "SHAPES": ("square", "blocked"),
}  # fmt: skip

Status = dict[str, Any]


class Look(NamedTuple):
    """A status, and when it was asked for, in seconds of this machine."""

    at_s: float
    status: Status

    def stage(self, name: str) -> dict[str, Any]:
        return next(stage for stage in self.status["stages"] if stage["name"] == name)

    @property
    def windows(self) -> dict[str, int]:
        return {stage["name"]: stage["window"] for stage in self.status["stages"]}

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


class Watch:
    """Asks the running process for its status, five times a second."""

    def __init__(self, port: int) -> None:
        self.looks: list[Look] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> Look:
        self._connection.request("GET", "/status")
        return Look(time.monotonic(), json.loads(self._connection.getresponse().read()))

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


def run(report: Report) -> None:
    with running() as place, Watch(place.status_port) as watch:
        with load(place, "steady", LOW_PER_S, LOW_PER_S):
            wait_for(watch, lambda look: look.status["pipeline"]["stored_seq"] > 0, START_S)
        with load(place, "steady", HIGH_PER_S, HIGH_PER_S):
            time.sleep(WARM_S)
        began_s = watch.looks[0].at_s
        warm = watch.since(began_s)
        report.row("starting: smallest window", min(min(look.windows.values()) for look in warm),
                   "slots", goal="no stall", met=not stalls(warm))  # fmt: skip
        for shape in SHAPES:
            RUNS.get(shape, wave)(report, place, watch, shape)


def wave(report: Report, place: Place, watch: Watch, shape: str) -> None:
    """A load that changes all the time; what is checked comes half a minute after the change."""
    span_s = SETTLE_S + STABLE_S
    period_s = 2 * span_s if shape == "square" else span_s if shape == "ramp" else WAVE_S
    changes = {"square": [0.0, span_s], "ramp": [span_s]}.get(shape, [0.0])
    began_s = time.monotonic()
    with load(place, shape, LOW_PER_S, HIGH_PER_S, period_s=period_s):
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
    """Messages of 0.6 MB: the smallest windows of them alone would take four times the budget."""
    began_s = time.monotonic()
    before = resident_bytes(place.process)
    with load(place, "steady", HIGH_PER_S, HIGH_PER_S, readings=LARGE_READINGS):
        time.sleep(SETTLE_S)
        grown = resident_bytes(place.process) - before
    report.row("large: the process grew by", grown / MIB, "MiB", ratio=grown / BUDGET_BYTES,
               against="the budget", goal="at most 1×", met=grown <= BUDGET_BYTES)  # fmt: skip
    finish(report, shape, watch.since(began_s), began_s)


RUNS = {"blocked": blocked, "large": large}


def finish(
    report: Report, shape: str, looks: list[Look], began_s: float, marks: tuple[float, ...] = ()
) -> None:
    """The rows that every shape has, its series and its plot."""
    inside = [0.5 <= sample <= 0.85 for sample in saturated(looks)]
    if inside and shape not in RUNS:
        share = sum(inside) / len(inside)
        report.row(f"{shape}: samples of saturated stages inside 0.50–0.85", 100 * share, "%",
                   goal="at least 90 %", met=share >= 0.9)  # fmt: skip
    held = max(look.held_bytes for look in looks)
    report.row(f"{shape}: most in windows", held / MIB, "MiB", ratio=held / BUDGET_BYTES,
               against="the budget", goal="at most 1×", met=held <= BUDGET_BYTES)  # fmt: skip
    readings = LARGE_READINGS if shape == "large" else READINGS
    rates = [look.stage("store")["rate_per_s"] for look in looks]
    report.row(f"{shape}: most a second", max(rates) * readings, "readings/s")
    report.files[f"windows-{shape}.svg"] = plotted(shape, looks, began_s, marks)
    report.files[f"windows-{shape}.csv"] = series(looks, began_s)


def saturated(looks: list[Look]) -> list[float]:
    """Every sample, once, of each stage whose senders were refused in the last second."""
    found: dict[tuple[str, int], float] = {}
    for before, look in pairwise(looks):
        for stage in look.status["stages"]:
            if stage["refused"]:
                for at_ms, occupancy, *_ in stage["samples"]:
                    if at_ms > before.at_s * 1_000:
                        found[stage["name"], at_ms] = occupancy
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


def series(looks: list[Look], began_s: float) -> str:
    """Seconds, and of each stage its window, occupancy, rate and p99, as CSV."""
    names = list(looks[0].windows)
    heads = [
        f"{name}_{what}" for name in names for what in ("window", "occupancy", "rate", "p99_ms")
    ]
    rows = [",".join(["seconds", *heads])]
    for look in looks:
        numbers = [look.at_s - began_s]
        for stage in look.status["stages"]:
            p99_ms = (stage["p99_ns"] or 0) / 1e6
            numbers += [stage["window"], stage["occupancy"], stage["rate_per_s"], p99_ms]
        rows.append(",".join(f"{number:.6g}" for number in numbers))
    return "\n".join(rows) + "\n"


def plotted(shape: str, looks: list[Look], began_s: float, marks: tuple[float, ...]) -> str:
    names = list(looks[0].windows)

    def lines(field: str, factor: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [(look.at_s - began_s, (look.stage(name)[field] or 0) * factor) for look in looks]
            for name in names
        }

    return panels(
        f"windows under a load of shape {shape}",
        [
            Panel("window", "slots", lines("window"), marks=marks),
            Panel("occupancy", "share", lines("occupancy"), band=(0.5, 0.85), marks=marks),
            Panel("p99", "ms", lines("p99_ns", 1e-6), marks=marks),
            Panel("rate", "messages/s", lines("rate_per_s"), marks=marks),
        ],
    )


@contextmanager
def running() -> Iterator[Place]:
    """A topic server and `penstock ingest run` with a Spark of its own."""
    with servers.penstock() as topics, servers.directory() as home:
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
                "PENSTOCK_INGEST_MAX_MESSAGE_BYTES": "700 KiB",
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


def resident_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1_024
