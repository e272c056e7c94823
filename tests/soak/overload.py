"""Five times more than three nodes can take: `python -m tests.soak.overload --seconds 300`.

First it measures what they take at most, then processes of their own offer a multiple of that,
whatever is under way. No partition may get another leader or term, heartbeats must be heard in
time, memory must stay within its limit. What is refused must be refused with 429 or 503, a reason
and Retry-After. Afterwards every node has each acknowledged record once, by its key, and nothing
that was refused. It ends with 1 where that is not so.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.trial import Trial
from penstock.kernel.units import MIB
from penstock.raft.heartbeats import LATE_BOUNDS_MS
from penstock.raft.progress import Limits
from tests.integration.cluster.load import make_topics, wait_equal
from tests.integration.cluster.processes import Process, Processes, cluster
from tests.soak.presses import Press, Pressed, Waits, tell_equal, tell_records, total

PARTITIONS = 3
LATE_MS_MAX = 500
WORST_MS = 60_000
"""Stands for "later than all bounds of the histogram"."""
PARTS_BYTES = {
    "records in memory (max_hot_bytes)": 256 * MIB,
    "what waits for the log (max_waiting_bytes)": 256 * MIB,
    "what waits for a majority": PARTITIONS * Limits().uncommitted_bytes,
    "ends of logs, for followers": PARTITIONS * Limits().held_bytes,
    "what waits for two peers": 2 * 32 * MIB,
}
"""What a node may hold of a load by its limits: it may grow by the sum of these, and no more."""


def main() -> int:
    """Measure, press, check."""
    wanted = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes end as well
    place = Path(tempfile.mkdtemp(prefix="penstock-overload-"))
    title = f"Three nodes with {wanted.times:g} times the load that they can take"
    trial = Trial.begin(wanted.keep_results or "overload", title)
    try:
        with cluster(place, "a", "b", "c", partitions=PARTITIONS) as made:
            run(made, wanted, trial)
    finally:
        if not wanted.keep:
            shutil.rmtree(place)
    trial.show()
    if wanted.keep_results is not None:
        print(f"kept in {trial.keep()}")
    return 1 if trial.shortfalls() else 0


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of overload")
    parser.add_argument("--times", type=float, default=5.0, help="of what the nodes can take")
    parser.add_argument("--measure-s", type=float, default=10.0, help="how long to measure that")
    parser.add_argument("--record-bytes", type=int, default=2_000)
    parser.add_argument("--connections", type=int, default=512, help="of the overload")
    parser.add_argument("--processes", type=int, default=2, help="that make the load")
    parser.add_argument("--require-refused", type=int, default=0, help="refused, or it fails")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' directories")
    parser.add_argument(
        "--keep-results", nargs="?", const="", metavar="NAME",
        help="write the totals to bench/trials/NAME.json",
    )  # fmt: skip
    return parser


def run(made: Processes, wanted: argparse.Namespace, trial: Trial) -> None:
    """Load and checks; the trial is told what they came to."""
    topics = [f"t{number}" for number in range(2 * PARTITIONS)]
    make_topics(made, topics)
    made.place_leaders()
    load = Load(made, topics, wanted)
    ceiling = max(load.measure(window) for window in (1, 8))
    trial.row("ceiling, the best of 64 and 512 requests under way", ceiling, "requests/s")
    before = Numbers(made)
    watched, waits = Memory(made), Waits(made.others())
    watched.start()
    print(f"{ceiling:,.0f} requests/s at most: {wanted.times:g} times as many now", flush=True)
    pressed = load.press(wanted.times * ceiling)
    watched.end()
    waits.tell(trial)
    tell_load(trial, wanted, pressed, ceiling)
    tell_calm(trial, before, Numbers(made))
    tell_memory(trial, watched)
    heads = wait_equal(made, topics)
    trial.row("records on each node", sum(heads.values()))
    tell_records(trial, made, topics, load.presses.paths)
    tell_equal(trial, made["a"])


class Load:
    """The load of all processes together."""

    def __init__(self, made: Processes, topics: Sequence[str], wanted: argparse.Namespace) -> None:
        self.presses = Press(made.place, record_bytes=wanted.record_bytes)
        self._urls = [node.url for node in made.others()]
        self._topics, self._wanted = topics, wanted

    def measure(self, window: int) -> float:
        """Acknowledged requests a second, each of 64 connections with so many under way."""
        found = self._run(f"m{window}", 64, window=window, seconds=self._wanted.measure_s)
        return float(sum(each["acknowledged_in_time"] / each["seconds"] for each in found))

    def press(self, rate: float) -> list[Pressed]:
        """Offer so many requests a second, whatever is under way."""
        rate_each = rate / self._wanted.processes
        return self._run(
            "p", self._wanted.connections, rate=rate_each, seconds=self._wanted.seconds
        )

    def _run(self, name: str, connections: int, **facts: Any) -> list[Pressed]:
        count = self._wanted.processes
        each = connections // count
        processes = [
            self.presses.start(
                f"{name}n{number}", self._urls, self._topics, connections=each, **facts
            )
            for number in range(count)
        ]
        try:
            return [process.answer() for process in processes]
        finally:
            for process in processes:
                process.kill()


class Numbers:
    """Terms, elections and heartbeats of all nodes at one moment."""

    def __init__(self, made: Processes) -> None:
        self.terms: dict[tuple[str, int], tuple[int, str]] = {}
        self.elections = 0
        self.late: Counter[float] = Counter()
        for node in made.others():
            view = node.view()
            self.elections += view["elections"]["seen"]
            for each in view["partitions"]:
                self.terms[node.name, each["partition"]] = (each["term"], each["leader"])
            self.late += heartbeats(node)


def heartbeats(node: Process) -> Counter[float]:
    """How many heartbeats were late by at most so many milliseconds, as a node counts them."""
    text = node.call_text("/v0/metrics")
    found, below = Counter[float](), 0
    for bound, count in re.findall(r'heartbeat_late_ms_bucket\{le="([^"]+)"\} (\d+)', text):
        found[WORST_MS if bound == "+Inf" else float(bound)] += int(count) - below
        below = int(count)
    assert len(found) <= len(LATE_BOUNDS_MS) + 1
    return found


class Memory(threading.Thread):
    """Looks once a second how much memory each node has."""

    def __init__(self, made: Processes) -> None:
        super().__init__(name="memory", daemon=True)
        self._nodes = made.others()
        self.seen: dict[str, list[int]] = {node.name: [resident(node)] for node in self._nodes}
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.wait(1.0):
            for node in self._nodes:
                self.seen[node.name].append(resident(node))

    def end(self) -> None:
        self._ends.set()
        self.join()


def resident(node: Process) -> int:
    """The bytes of memory that a node has."""
    text = Path(f"/proc/{node.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1_024


def tell_load(
    trial: Trial, wanted: argparse.Namespace, pressed: Sequence[Pressed], ceiling: float
) -> None:
    """What was offered, and what became of it."""
    seconds = max(each["seconds"] for each in pressed)
    trial.at_least("seconds of overload", round(seconds), wanted.seconds, "s")
    offered = total(pressed, "offered") / seconds
    trial.row("offered", offered, "requests/s", ratio=offered / ceiling, against="ceiling",
              goal=f"at least {0.95 * wanted.times:.3g}×",
              met=offered >= 0.95 * wanted.times * ceiling)  # fmt: skip
    trial.row("of these not sent, as the nodes read no more", total(pressed, "turned_away"))
    in_time = total(pressed, "acknowledged_in_time") / seconds
    trial.row("acknowledged", in_time, "requests/s", ratio=in_time / ceiling, against="ceiling")
    p99_ms = max(each["p99_ms"] for each in pressed)
    trial.row("acknowledged within, 99 of 100, from when it was sent", p99_ms, "ms")
    trial.at_least("refused", total(pressed, "refused"), wanted.require_refused)
    outcomes: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for each in pressed:
        outcomes.update(each["outcomes"])
        examples |= each["examples"]
    for outcome, count in sorted(outcomes.items()):
        trial.row(f"answers {outcome}", count)
        print(f"{outcome}: {examples[outcome]}")
    trial.at_most("429 and 503 without Retry-After", total(pressed, "without_retry_after"), 0)
    trial.at_most("without a known outcome at the end", total(pressed, "unknown"), 0)
    trial.row("connections that broke", total(pressed, "lost_connections"))


def tell_calm(trial: Trial, before: Numbers, after: Numbers) -> None:
    """Nobody was elected, and heartbeats came in time."""
    moved = sum(after.terms[each] != before.terms[each] for each in before.terms)
    trial.at_most("partitions with another term or leader, on any node", moved, 0)
    trial.at_most("topics_elections_total grew by", after.elections - before.elections, 0)
    late = after.late - before.late
    count = late.total()
    trial.row("heartbeats heard", count)
    trial.at_most("99 of 100 late by less than", bound_of(late, 0.99), LATE_MS_MAX, "ms")
    trial.row("all late by less than", bound_of(late, 1.0), "ms")


def bound_of(late: Counter[float], share: float) -> float:
    """The bound below which this share is; 0 of nothing."""
    left = share * late.total()
    for bound, count in sorted(late.items()):
        left -= count
        if left <= 0:
            return bound
    return 0.0


def tell_memory(trial: Trial, watched: Memory) -> None:
    """What each node had at the start, at most and at the end, against what its limits allow."""
    room = sum(PARTS_BYTES.values())
    trial.row("a node may grow by: " + ", ".join(PARTS_BYTES), room / MIB, "MiB")
    for name, seen in watched.seen.items():
        trial.row(f"memory of {name} at the start", seen[0] / MIB, "MiB")
        trial.at_most(f"memory of {name} at most", max(seen) / MIB, (seen[0] + room) / MIB, "MiB")
        trial.row(f"memory of {name} at the end", seen[-1] / MIB, "MiB")


if __name__ == "__main__":
    sys.exit(main())
