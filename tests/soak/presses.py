"""Processes that make load for a soak (`tests.soak.pressing`), and what nodes must have of it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.trial import Trial
from tests.integration.cluster.processes import Process, Processes
from tests.soak.pressing import ACKNOWLEDGED, NUMBER_DIGITS, REFUSED
from tests.waiting import wait_until

Pressed = dict[str, Any]
COMPARE_S = 180.0


class Press:
    """The processes that make the load, and what each of them knows of its requests."""

    def __init__(self, place: Path, *, record_bytes: int) -> None:
        self.paths: dict[str, Path] = {}
        self._place, self._record_bytes = place, record_bytes

    def start(
        self, name: str, urls: Sequence[str], topics: Sequence[str], **facts: Any
    ) -> Pressing:
        """Begin with a load; see `tests.soak.pressing` for what it can be told."""
        path = self.paths[name] = self._place / f"{name}.states"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.pressing"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        json.dump({
            "urls": [url.removeprefix("http://") for url in urls], "topics": list(topics),
            "name": name, "path": str(path), "connections": 1, "window": 1, "rate": 0.0,
            "seconds": 86_400.0, "record_bytes": self._record_bytes, **facts,
        }, process.stdin)  # fmt: skip
        process.stdin.close()
        return Pressing(process)


class Pressing:
    """A process that makes load."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def end(self) -> Pressed:
        """Let it end its load; what it found."""
        self._process.terminate()
        return self.answer()

    def answer(self) -> Pressed:
        """What it found when its time is over."""
        assert self._process.stdout is not None
        text = self._process.stdout.read()
        assert self._process.wait() == 0, "a process that makes load failed"
        found: Pressed = json.loads(text)
        return found

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()


def total(pressed: Sequence[Pressed], name: str) -> int:
    """A number of all processes together."""
    return sum(each[name] for each in pressed)


class Waits:
    """For what share of the time with work the loops of nodes had no processor, from now on.

    Where others use the machine, a node is late for reasons that are not its own.
    """

    def __init__(self, nodes: Sequence[Process]) -> None:
        self._before = {node.name: (node, *scheduled(node)) for node in nodes}

    def tell(self, trial: Trial, when: str = "") -> None:
        """Add a row for each node."""
        for name, (node, ran_before, waited_before) in self._before.items():
            ran, waited = scheduled(node)
            ran, waited = ran - ran_before, waited - waited_before
            share = 100 * waited / max(1, ran + waited)
            said = f"of the time in which {name} had work it waited for a processor"
            trial.row(f"{said}, {when}" if when else said, share, "%")


def scheduled(node: Process) -> tuple[int, int]:
    """How long the loop's thread of a node ran so far, and waited for a processor, in ns."""
    ran, waited, _ = Path(f"/proc/{node.pid}/task/{node.pid}/schedstat").read_text().split()
    return int(ran), int(waited)


def tell_records(
    trial: Trial, made: Processes, topics: Sequence[str], paths: Mapping[str, Path]
) -> None:
    """Each node has what was acknowledged once, and nothing that was refused."""
    counts: Counter[str] = Counter()
    for node in made.others():
        seen = {name: bytearray(path.stat().st_size) for name, path in paths.items()}
        for topic in topics:
            take_in(node, topic, seen, counts)
        for name, path in paths.items():
            for state, times in zip(path.read_bytes(), seen[name], strict=True):
                counts["lost"] += state == ACKNOWLEDGED and not times
                counts["refused and there"] += state == REFUSED and bool(times)
    acknowledged = sum(path.read_bytes().count(ACKNOWLEDGED) for path in paths.values())
    trial.row("records acknowledged", acknowledged)
    for name in ("lost", "twice", "refused and there"):
        trial.at_most(f"records {name}, on any node", counts[name], 0)


def tell_equal(trial: Trial, node: Process) -> None:
    """Whether the states of all partitions are equal on all members, as `cluster verify` compares.

    A member that could not be compared in time is compared again.
    """
    partitions = range(len(node.view()["partitions"]))
    equal = 0
    for partition in partitions:
        found: dict[str, Any] = {}

        def is_compared(partition: int = partition, found: dict[str, Any] = found) -> bool:
            reply = node.call("POST", "/v0/cluster/verify", {"partition": partition},
                              timeout_s=COMPARE_S)  # fmt: skip
            found.update(reply.body if reply.status == 200 else {"problem": reply.body})
            return reply.status == 200 and bool(found["complete"])

        wait_until(is_compared, lambda found=found: f"members to be compared: {found}", COMPARE_S)
        if found["equal"]:
            equal += 1
        else:
            print(f"DIFFERENT: {found}", flush=True)
    trial.at_least("partitions whose states are equal on all nodes", equal, len(partitions))


def take_in(node: Process, topic: str, seen: dict[str, bytearray], counts: Counter[str]) -> None:
    """Count what a node has of a topic."""
    pattern = re.compile(rb'"data":"([a-z0-9]+):(\d{%d}):' % NUMBER_DIGITS)
    at = 0
    while True:
        text = page_of(node, topic, at)
        for name, number in pattern.findall(text):
            times = seen[name.decode()]
            counts["twice"] += times[int(number)]
            times[int(number)] = 1
        _, _, rest = text.rpartition(b'"next_from_seq":')
        following = int(rest.partition(b",")[0].partition(b"}")[0])
        if following == at:
            return
        at = following


def page_of(node: Process, topic: str, from_seq: int) -> bytes:
    """A page of records as it came."""
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
    try:
        body = json.dumps({"from_seq": from_seq, "limit": 5_000})
        connection.request("POST", f"/v0/topics/{topic}/diff", body,
                           {"content-type": "application/json"})  # fmt: skip
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text[:300]
        return text
    finally:
        connection.close()
