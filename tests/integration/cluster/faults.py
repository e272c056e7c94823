"""Faults of a cluster under load, each of which ends with healthy nodes again."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random

from tests.integration.cluster.load import Writer
from tests.integration.cluster.processes import Process, Processes, command
from tests.waiting import wait_until

PATIENCE_S = 90.0
UNDERWAY_S = 0.5
"""An election takes nearly a second at least: what is answered sooner was under way before it."""


class Faults:
    """Makes faults, counts them, and times what follows from the loss of a leader."""

    def __init__(
        self, made: Processes, random: Random, writers: list[Writer], *, freeze_s: float = 0.0
    ) -> None:
        self.made, self.random, self._writers = made, random, writers
        self._freeze_s = freeze_s
        self.counts: Counter[str] = Counter()
        self.outages_s: dict[str, list[float]] = {"kill": [], "freeze": []}
        self._pause = threading.Event()

    def verbs(self) -> dict[str, Callable[[], None]]:
        """All faults, by name."""
        return {
            "kill": self.kill_leader,
            "freeze": self.freeze_leader,
            "cut": self.cut_off,
            "one-way": self.cut_one_way,
            "restart": self.restart_all,
            "member": self.change_member,
            "flip": self.flip_bit,
        }

    # Faults

    def kill_leader(self) -> None:
        """SIGKILL of the leader of a partition; it starts again once another one leads."""
        partition, leader = self._some_leader()
        leader.kill()
        self.outages_s["kill"].append(self._outage_s(partition, time.monotonic()))
        leader.start()
        self._done("kill")

    def freeze_leader(self) -> None:
        """SIGSTOP, until another one leads and for a while longer, then SIGCONT."""
        partition, leader = self._some_leader()
        leader.signal(signal.SIGSTOP)
        began_s = time.monotonic()
        try:
            self.outages_s["freeze"].append(self._outage_s(partition, began_s))
            self._wait_s(self.random.uniform(0, 2))
            self._wait_s(max(0.0, began_s + self._freeze_s - time.monotonic()))
        finally:
            leader.signal(signal.SIGCONT)
        self._done("freeze")

    def cut_off(self) -> None:
        """A node, mostly the leader, hears nobody and is heard by nobody."""
        assert self.made.cuts is not None
        node = self._some_leader()[1] if self.random.random() < 0.7 else self._some_node()
        pairs = [pair for other in self._names(node) for pair in self._both(node.name, other)]
        self.made.cuts.cut(*pairs, is_silent=self.random.random() < 0.5)
        self._wait_s(self.random.uniform(1.5, 5))
        self.made.cuts.mend()
        self._done("cut")

    def cut_one_way(self) -> None:
        """One direction between two nodes, or all that a node hears, or all that it says."""
        assert self.made.cuts is not None
        node = self._some_leader()[1] if self.random.random() < 0.7 else self._some_node()
        others = self._names(node)
        if self.random.random() < 0.5:
            others = [self.random.choice(others)]
        is_deaf = self.random.random() < 0.5
        pairs = [(other, node.name) if is_deaf else (node.name, other) for other in others]
        self.made.cuts.cut(*pairs, is_silent=self.random.random() < 0.5)
        self._wait_s(self.random.uniform(1.5, 5))
        self.made.cuts.mend()
        self._done("one-way")

    def restart_all(self) -> None:
        """Each node is stopped in good order and started again, one after the other."""
        for node in self.made.others():
            assert node.stop() == 0, node.said()
            node.start()
            self.wait_healthy()
        self._done("restart")

    def change_member(self) -> None:
        """A node leaves, its directory with it, and a new one joins by its name: two changes."""
        leaving = self._some_node()
        through = self.made.others(leaving.name)[0]
        self._command("cluster", "remove", leaving.name, "--url", through.url)
        self.made.wait_settled(through)
        leaving.kill()
        shutil.rmtree(leaving.directory)
        self.counts["member"] += 1
        self._join("add", leaving, through)
        self._done("member")

    def flip_bit(self) -> None:
        """A bit of one node's files is another one. The node says so, or it made no difference.

        A node that says so is replaced, as it would be.
        """
        node = self._some_node()
        node.kill()
        path = self._some_file(node.directory)
        used = len(path.read_bytes().rstrip(bytes(1)))  # behind it is room for more
        at, bit = self.random.randrange(used), self.random.randrange(8)
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes((byte ^ 1 << bit,)))
        kind = path.parent.name
        told = self._start_flipped(node)
        if told:
            self.counts[f"flip found in {kind}"] += 1
            assert path.name in told or "cluster replace" in told, f"{path}: {told}"
            self._replace(node)
        else:
            self.counts[f"flip harmless in {kind}"] += 1
        self._done("flip")

    # What they share

    def wait_healthy(self) -> None:
        """Wait until all nodes take part in everything and have caught up."""
        wait_until(self._is_healthy, lambda: f"healthy nodes: {self._views()}", PATIENCE_S)

    def _is_healthy(self) -> bool:
        nodes = self.made.others()
        if len(nodes) < len(self.made.nodes):
            return False
        try:
            views = [node.view() for node in nodes]
        except (OSError, HTTPException, AssertionError):
            return False
        if views[0]["underway"]:
            return False
        for groups in zip(*[view["partitions"] for view in views], strict=True):
            leaders = [group for group in groups if group["role"] == "leader" and group["serving"]]
            if len(leaders) != 1 or len({group["leader"] for group in groups}) != 1:
                return False
            near = [each["stage"] == "replicate" for each in leaders[0]["followers"]]
            if len(near) != len(nodes) - 1 or not all(near):
                return False
            if min(g["applied"] for g in groups) < leaders[0]["committed"] - 2_000:
                return False
        return True

    def _views(self) -> list[object]:
        found: list[object] = []
        for node in self.made.others():
            try:
                view = node.view()
                keys = ("role", "leader", "serving", "committed", "applied", "stopped", "followers")
                found.append((
                    node.name, view["underway"],
                    [{key: each[key] for key in keys} for each in view["partitions"]],
                ))  # fmt: skip
            except (OSError, HTTPException, AssertionError) as error:
                found.append((node.name, str(error)[:200], node.said()[-300:]))
        return found

    def _done(self, what: str) -> None:
        self.counts[what] += 1
        self.wait_healthy()

    def _some_leader(self) -> tuple[int, Process]:
        partition = self.random.randrange(self.made.partitions)
        return partition, self.made.leader_of(partition)

    def _some_node(self) -> Process:
        return self.made[self.random.choice(sorted(self.made.nodes))]

    def _names(self, node: Process) -> list[str]:
        return [name for name in sorted(self.made.nodes) if name != node.name]

    def _both(self, a: str, b: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (a, b), (b, a)

    def _wait_s(self, span_s: float) -> None:
        """Faults last for a while: the only thing here that time decides."""
        self._pause.wait(span_s)

    def _outage_s(self, partition: int, since_s: float) -> float:
        """How long until a write to the partition is acknowledged."""
        writers = [w for w in self._writers if self.made.partition_of(w.topic) == partition]
        assert writers, f"nobody writes to partition {partition}"
        first: list[float] = []

        def answered() -> bool:
            for writer in writers:
                later = (each for each in writer.answered_s[-64:] if each > since_s + UNDERWAY_S)
                first.extend(later)
            return bool(first)

        wait_until(answered, lambda: f"a write to partition {partition}: {self._views()}")
        return min(first) - since_s

    def _command(self, *words: str) -> None:
        """A command about members, repeated while leaders change."""

        def run() -> bool:
            try:
                command(*words)
            except AssertionError as error:
                said[:] = [str(error)]
                return "there is no member" in str(error) or "is in the cluster" in str(error)
            return True

        said: list[str] = []
        wait_until(run, lambda: f"{words}: {said}", PATIENCE_S)

    def _join(self, verb: str, node: Process, through: Process) -> None:
        where = ["--data-dir", str(node.directory), "--url", through.url]
        address = [node.peer] if verb == "add" else []
        self.made.wait_settled(through)
        command("cluster", verb, node.name, *address, *where)
        node.start()

    def _replace(self, node: Process) -> None:
        if node.runs:
            with suppress(ProcessLookupError):
                node.kill()
        shutil.rmtree(node.directory)
        self._join("replace", node, self.made.others(node.name)[0])

    def _some_file(self, directory: Path) -> Path:
        kinds: dict[str, list[Path]] = {}
        for kind in ("log", "snapshots", "cold"):
            for path in sorted((directory / kind).rglob("*")):
                if path.is_file() and path.read_bytes().strip(bytes(1)):
                    kinds.setdefault(kind, []).append(path)
        return self.random.choice(kinds[self.random.choice(sorted(kinds))])

    def _start_flipped(self, node: Process) -> str:
        """Start a node and read everything that it has; what it says of damage, or nothing."""
        node.start(wait=False)
        told: list[str] = []

        def known() -> bool:
            if not node.runs_still:
                told.append(node.said())
                return True
            with suppress(OSError, HTTPException, AssertionError):
                if node.call("GET", "/v0/ready").status == 200:
                    told.extend(self._problems(node))
                    return True
            return False

        wait_until(known, lambda: f"{node.name} to start or to say why not: {node.said()}")
        return " ".join(told)

    def _problems(self, node: Process) -> list[str]:
        found = [str(each["stopped"]) for each in node.view()["partitions"] if each["stopped"]]
        for topic in sorted({writer.topic for writer in self._writers}):
            reply = node.read(topic)
            while reply.status == 200 and reply.body["records"]:
                reply = node.read(topic, reply.body["next_from_seq"])
            if reply.status not in (200, 404):
                found.append(str(reply.body))
        return found
