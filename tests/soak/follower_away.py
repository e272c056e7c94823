"""A follower is away under load and comes back: `python -m tests.soak.follower_away --gib 1`.

First for `--log-seconds`, so that the log has what it lacks; then until the log was freed and the
leader has so many GiB of cold segments, so that it needs a snapshot. Its connections to the leader
are broken twice while that comes in, and what has arrived must not come again. Writes at the leader
must not take more than twice as long meanwhile. At the end all nodes are equal and have every
acknowledged record once. It ends with 1 where that is not so.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.trial import Trial
from penstock.kernel.units import GIB, MIB
from tests.integration.cluster.load import make_topics, wait_equal
from tests.integration.cluster.processes import Process, Processes, cluster
from tests.soak.presses import Press, Waits, tell_equal, tell_records
from tests.soak.pressing import ACKNOWLEDGED, NUMBER_DIGITS, SENT
from tests.waiting import wait_until

ENVIRON = {"PENSTOCK_COMPACT_LOG_BYTES": "128 MiB"}
"""The load of the first absence is less than this, so that the log keeps it."""
TOPICS = ("t", "probed")
RATIO_MAX = 2.0
AGAIN_MAX = 1.1
"""So many times the bytes of the files may be fetched: pieces on their way when a link broke, and a
newer snapshot."""
LAG_MAX = 500
BREAK_S = 1.0
PATIENCE_S = 1_200.0
PACE_S = 0.02


def main() -> int:
    """Away, back by log; away, back by snapshot; checks."""
    wanted = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes end as well
    place = Path(tempfile.mkdtemp(prefix="penstock-away-"))
    title = f"A follower away, back by log and by a snapshot with {wanted.gib:g} GiB of segments"
    trial = Trial.begin(wanted.keep_results or "follower-away", title)
    try:
        with cluster(place, "a", "b", "c", partitions=1, is_cut=True, environ=ENVIRON) as made:
            run(made, wanted, trial)
    finally:
        shutil.rmtree(place)
    trial.show()
    if wanted.keep_results is not None:
        print(f"kept in {trial.keep()}")
    return 1 if trial.shortfalls() else 0


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log-seconds", type=float, default=600.0, help="away, and back by log")
    parser.add_argument("--gib", type=float, default=1.0, help="of cold segments, then")
    parser.add_argument("--rate", type=float, default=70.0, help="writes a second beside the probe")
    parser.add_argument("--record-bytes", type=int, default=2_000)
    parser.add_argument("--measure-s", type=float, default=30.0, help="how long each time before")
    parser.add_argument(
        "--keep-results", nargs="?", const="", metavar="NAME",
        help="write the totals to bench/trials/NAME.json",
    )  # fmt: skip
    return parser


def run(made: Processes, wanted: argparse.Namespace, trial: Trial) -> None:
    """Both absences under one load."""
    make_topics(made, TOPICS)
    made.place_leaders()
    leader = made.leader_of(0)
    away = made.others(leader.name)[0]
    presses = Press(made.place, record_bytes=wanted.record_bytes)
    probe = Probe(leader)
    background = presses.start(
        "steady", [leader.url], TOPICS[:1], connections=4, window=0, rate=wanted.rate
    )
    try:
        probe.start()
        probe.span(wanted.measure_s)
        trial.row("p99 of a write at the leader, all nodes healthy", probe.p99_ms(), "ms")
        back_by_log(made, wanted, trial, probe, away)
        back_by_snapshot(made, wanted, trial, probe, away, presses)
        pressed = background.end()
    finally:
        background.kill()
    presses.paths["probe"] = probe.end(made.place / "probe.states")
    trial.at_most("writes refused", pressed["refused"] + probe.refused, 0)
    trial.at_most("times that another member led", leader.leaders()[0] != leader.name, 0)
    trial.row("records on each node", sum(wait_equal(made, TOPICS).values()))
    tell_records(trial, made, TOPICS, presses.paths)
    tell_equal(trial, leader)


def back_by_log(
    made: Processes, wanted: argparse.Namespace, trial: Trial, probe: Probe, away: Process
) -> None:
    """Away for as long as the log keeps everything, and back."""
    at = group_of(away)["last"]
    away.kill()
    probe.span(wanted.log_seconds)
    trial.at_least("away under load, back by log: away for", wanted.log_seconds, 0, "s")
    before_ms = probe.p99_ms()
    leader = made.leader_of(0)
    lacked = group_of(leader)["last"] - at
    waits = Waits([leader])
    probe.begin()
    began_s = time.monotonic()
    away.start(wait=False)
    wait_back(made, away)
    trial.row("entries that it lacked", lacked)
    trial.row("caught up after", time.monotonic() - began_s, "s")
    tell_p99(trial, "while it caught up by log", probe, before_ms, waits)
    trial.at_most("snapshots that it took", int(away.view()["snapshots"]["taken"]), 0)


def back_by_snapshot(
    made: Processes, wanted: argparse.Namespace, trial: Trial, probe: Probe, away: Process,
    presses: Press,
) -> None:  # fmt: skip
    """Away until the log was freed; back by snapshot, through two broken connections."""
    leader, own = made.leader_of(0), {path.name for path in cold_of(away)}
    at = group_of(away)["last"]
    away.kill()
    began_s = time.monotonic()
    fill = presses.start("fill", [leader.url], TOPICS[:1], connections=4, window=4,
                         record_bytes=16_000)  # fmt: skip
    try:
        wait_freed(leader, at, int(wanted.gib * GIB))
    finally:
        fill.end()
    trial.row("away under load, back by snapshot: away for", time.monotonic() - began_s, "s")
    size = sum(path.stat().st_size for path in cold_of(leader))
    trial.at_least("cold segments of the leader", size / GIB, wanted.gib, "GiB")
    waits = Waits([leader])
    probe.span(wanted.measure_s)
    before_ms = probe.p99_ms()
    waits.tell(trial, "before")
    waits = Waits([leader])
    probe.begin()
    began_s = time.monotonic()
    away.start(wait=False)

    def come() -> int:
        return sum(path.stat().st_size for path in cold_of(away) if path.name not in own)

    for share in (1 / 3, 2 / 3):
        break_at(made, leader, away, come, int(share * size))
    trial.row("connections broken while it came in", 2)
    wait_back(made, away)
    trial.row("caught up after", time.monotonic() - began_s, "s")
    tell_p99(trial, "while it caught up by snapshot", probe, before_ms, waits)
    view = away.view()["snapshots"]
    trial.at_least("snapshots that it took", view["taken"], 1)
    files = come() + sum(
        path.stat().st_size for path in (away.directory / "snapshots").glob("*.snapshot")
    )
    ratio = view["bytes_taken"] / files
    trial.row("fetched", view["bytes_taken"] / MIB, "MiB", ratio=ratio, against="its files",
              goal=f"at most {AGAIN_MAX:g}×", met=ratio <= AGAIN_MAX)  # fmt: skip


def break_at(
    made: Processes, leader: Process, away: Process, come: Callable[[], int], size: int
) -> None:
    """Break the connections of two nodes once so much has come in, and let them dial again."""
    assert made.cuts is not None
    wait_until(lambda: come() >= size, lambda: f"{size} bytes: {come()} came", PATIENCE_S)
    made.cuts.cut((leader.name, away.name), (away.name, leader.name), is_silent=False)
    threading.Event().wait(BREAK_S)
    made.cuts.mend()


def wait_back(made: Processes, away: Process) -> None:
    """Wait until a follower has what its leader has, but for what is on its way."""

    def is_back() -> bool:
        for follower in group_of(made.leader_of(0))["followers"]:
            if follower["name"] == away.name:
                return follower["stage"] == "replicate" and follower["lag"] < LAG_MAX
        return False

    wait_until(is_back, lambda: f"{away.name} to catch up: {away.said()}", PATIENCE_S)
    away.wait_ready()


def wait_freed(leader: Process, index: int, cold_bytes: int) -> None:
    """Wait until the log begins after an index, and there is so much in cold segments."""
    seen: list[int] = []

    def is_freed() -> bool:
        with suppress(OSError, http.client.HTTPException):
            snapshot = group_of(leader)["snapshot"]
            if not seen or seen[-1] != snapshot:
                seen.append(snapshot)
        return (
            len(seen) > 3
            and seen[-2] > index
            and sum(path.stat().st_size for path in cold_of(leader)) >= cold_bytes
        )

    wait_until(is_freed, lambda: f"the log to be freed behind {index}: {seen}", PATIENCE_S)


def group_of(node: Process) -> dict[str, int | list[dict[str, int]]]:
    """The partition's group as a node sees it."""
    found: dict[str, int | list[dict[str, int]]] = node.view()["partitions"][0]
    return found


def cold_of(node: Process) -> list[Path]:
    """The cold segments that a node has, with those that come in."""
    return [path for path in (node.directory / "cold").glob("*.segment*") if path.exists()]


def tell_p99(trial: Trial, when: str, probe: Probe, before_ms: float, waits: Waits) -> None:
    """How long writes took since the span began, against the one before."""
    after_ms = probe.p99_ms()
    ratio = after_ms / before_ms
    print(f"{when}: p99 {after_ms:.0f} ms, {before_ms:.0f} ms before", flush=True)
    waits.tell(trial, when)
    trial.row(f"p99 of a write at the leader before: {when}", before_ms, "ms")
    trial.row(f"p99 of a write at the leader {when}", after_ms, "ms", ratio=ratio,
              against="before", goal=f"at most {RATIO_MAX:g}×", met=ratio <= RATIO_MAX)  # fmt: skip


class Probe(threading.Thread):
    """Writes at the leader at an even pace, and not faster than they are answered.

    Each counts from when it was sent: on a machine that is too busy for the pace, times from when
    they were due would only grow.
    """

    def __init__(self, leader: Process) -> None:
        super().__init__(name="probe", daemon=True)
        self._leader = leader
        self._states = bytearray()
        self._took_ms: list[float] = []
        self.refused = 0
        self._ends = threading.Event()

    def begin(self) -> None:
        """Begin a span."""
        self._took_ms = []

    def span(self, seconds: float) -> None:
        """A span of so many seconds."""
        self.begin()
        self._ends.wait(seconds)
        assert self.is_alive(), "the probe failed"

    def p99_ms(self) -> float:
        """The time below which 99 of 100 writes of this span were answered."""
        found = sorted(self._took_ms)
        assert found, "no write was answered"
        return found[min(len(found) - 1, len(found) * 99 // 100)]

    def end(self, path: Path) -> Path:
        """End, and write down what was acknowledged."""
        self._ends.set()
        self.join(60)
        path.write_bytes(self._states)
        return path

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._leader.port, timeout=60)
        due_s = time.monotonic()
        while not self._ends.wait(max(0.0, due_s - time.monotonic())):
            began_s = time.monotonic()
            self._states.append(SENT)
            self._write(connection, len(self._states) - 1)
            self._took_ms.append((time.monotonic() - began_s) * 1e3)
            due_s = max(due_s + PACE_S, time.monotonic())
        connection.close()

    def _write(self, connection: http.client.HTTPConnection, number: int) -> None:
        name = f"probe:{number:0{NUMBER_DIGITS}}"
        body = json.dumps({"records": [{"data": f"{name}:"}], "idempotency_key": name},
                          separators=(",", ":"))  # fmt: skip
        while not self._ends.is_set():
            connection.request("POST", f"/v0/topics/{TOPICS[1]}", body,
                               {"content-type": "application/json"})  # fmt: skip
            answer = connection.getresponse()
            answer.read()
            if answer.status in (200, 201):
                self._states[number] = ACKNOWLEDGED
                return
            self.refused += 1
            self._ends.wait(PACE_S)


if __name__ == "__main__":
    sys.exit(main())
