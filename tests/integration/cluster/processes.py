"""A cluster of real processes on loopback, and what tests ask of its nodes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock.topics.core.registry import partition_of
from tests.integration.cluster.cuts import Cuts
from tests.waiting import wait_until

TIMEOUT_S = 30.0


class Reply(NamedTuple):
    """An answer over HTTP."""

    status: int
    body: Any
    headers: dict[str, str]


class Process:
    """One node: its directory, its ports and, while it runs, its process."""

    def __init__(self, place: Path, name: str, environ: dict[str, str] | None = None) -> None:
        self.name = name
        self.environ = environ or {}
        self.directory = place / name
        self.log = place / f"{name}.log"
        self.port, self.peer_port = free_port(), free_port()
        self.peer = self.peer_listen = f"127.0.0.1:{self.peer_port}"
        """Where peers reach it, and where it listens for them; empty: it is a node alone."""
        self.program = ["-m", "penstock"]
        """What Python runs: another one has faults."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def runs_still(self) -> bool:
        """Whether it was started and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        peers = ["--peer-listen", self.peer_listen] if self.peer_listen else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, *self.program, "serve", "--data-dir", str(self.directory),
                    "--host", f"127.0.0.1:{self.port}", *peers,
                ],
                stdout=log, stderr=log, env=environment() | self.environ,
            )  # fmt: skip
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(self._is_ready, lambda: f"{self.name} to be ready: {self.said()}")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self._wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        return process.wait(TIMEOUT_S)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8")[-2_000:] if self.log.exists() else ""

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = TIMEOUT_S,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            content = None if body is None else json.dumps(body)
            sent = {"content-type": "application/json", **(headers or {})}
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            text = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, json.loads(text) if text else None, found)
        finally:
            connection.close()

    def call_text(self, path: str) -> str:
        """The body of an answer that is not JSON."""
        with urllib.request.urlopen(self.url + path, timeout=TIMEOUT_S) as answer:
            text: str = answer.read().decode()
        return text

    def write(self, topic: str, *values: Any, key: str | None = None, **facts: Any) -> Reply:
        """Append records; refusals are returned, not raised."""
        body = {"records": [{"data": value} for value in values], "create": True}
        if key is not None:
            body["idempotency_key"] = key
        return self.call("POST", f"/v0/topics/{topic}", body, **facts)

    def read(self, topic: str, from_seq: int = 0, **facts: Any) -> Reply:
        body = {"from_seq": from_seq, "limit": 10_000, **facts}
        return self.call("POST", f"/v0/topics/{topic}/diff", body)

    def values(self, topic: str) -> list[Any]:
        """Every record of a topic, as this node has it."""
        found: list[Any] = []
        from_seq = 0
        while True:
            page = self.read(topic, from_seq).body
            found += [record["data"] for record in page["records"]]
            if page["next_from_seq"] >= page["head_seq"]:
                return found
            from_seq = page["next_from_seq"]

    def view(self) -> Any:
        reply = self.call("GET", "/v0/cluster")
        assert reply.status == 200, reply
        return reply.body

    def state_of(self, name: str) -> str:
        """Whether a member votes or learns, as this node knows; empty if it knows no such one."""
        return next((m["state"] for m in self.view()["members"] if m["name"] == name), "")

    def leaders(self) -> list[str]:
        """Who leads each partition, as this node knows."""
        return [each["leader"] for each in self.view()["partitions"]]

    def _is_ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self.call("GET", "/v0/ready").status == 200
        assert self._process is not None
        assert self._process.poll() is None, self.said()
        return False


class Processes:
    """A cluster: `grow` makes its nodes."""

    def __init__(
        self,
        place: Path,
        *,
        partitions: int = 3,
        environ: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "penstock"),
    ) -> None:
        self.place = place
        self.program = list(program)
        """What Python runs, for nodes and for what makes their directories."""
        self.partitions = partitions
        self.environ = environ
        self.nodes: dict[str, Process] = {}
        self.cuts: Cuts | None = None
        """Stands between the nodes, if it is set before they are made."""

    @property
    def urls(self) -> str:
        """Where clients find the nodes."""
        return ",".join(node.url for node in self.nodes.values())

    def __getitem__(self, name: str) -> Process:
        return self.nodes[name]

    def found(self, name: str) -> Process:
        """Make and start the first node."""
        node = self._made(name)
        command("cluster", "init", name, node.peer, "--data-dir", str(node.directory),
                "--wal-shards", str(self.partitions), program=self.program)  # fmt: skip
        node.start()
        return node

    def add(
        self, name: str, through: Process, prepare: Callable[[Process], None] = lambda _: None
    ) -> Process:
        """Add a node, and wait until it votes everywhere. `prepare` is called before it starts."""
        node = self.nodes.get(name) or self._made(name)
        self.wait_settled(through)
        self._command_once_settled(
            "cluster", "add", name, node.peer, "--data-dir", str(node.directory),
            "--url", through.url,
        )  # fmt: skip
        prepare(node)
        node.start()
        # A node that follows may hear later than the command that there is a new member.
        wait_until(lambda: through.state_of(name) == "voter", f"{name} to become a voter")
        self.wait_settled(through)
        return node

    def _command_once_settled(self, *words: str) -> None:
        """A command about members, again while the change before it is not committed."""

        def run() -> bool:
            try:
                command(*words, program=self.program)
            except AssertionError as error:
                if "is not committed yet" not in str(error):
                    raise
                return False
            return True

        wait_until(run, f"{words} to be taken")

    def grow(self, *names: str) -> None:
        """Make a cluster of these nodes."""
        first = self.found(names[0])
        for name in names[1:]:
            self.add(name, first)

    def _made(self, name: str) -> Process:
        node = self.nodes[name] = Process(self.place, name, self.environ)
        node.program = self.program
        if self.cuts is not None:
            node.peer = f"127.0.0.1:{free_port()}"
            self.cuts.stand_before(name, node.peer, node.peer_listen)
        return node

    def wait_settled(self, through: Process) -> None:
        """Wait until no change of members is under way, and everything has a leader."""

        def settled() -> bool:
            view = through.view()
            return not view["underway"] and all(each["leader"] for each in view["partitions"])

        wait_until(settled, lambda: f"the cluster to settle: {through.view()['underway']}")

    def others(self, *names: str) -> list[Process]:
        return [node for node in self.nodes.values() if node.runs and node.name not in names]

    def partition_of(self, topic: str) -> int:
        return partition_of(topic, self.partitions)

    def leader_of(self, partition: int, *away: str) -> Process:
        """The node that leads, as one that is not away knows."""

        def known() -> str:
            for node in self.others(*away):
                with suppress(OSError):
                    leader = node.leaders()[partition]
                    if leader and leader not in away:
                        return str(leader)
            return ""

        wait_until(known, f"a leader of partition {partition}")
        return self.nodes[known()]

    def place_leaders(self) -> None:
        """Let each partition be led by the member that is to lead it: nothing moves by itself."""
        members = sorted(self.others()[0].view()["members"], key=lambda each: each["id"])
        for partition in range(self.partitions):
            name = members[partition % len(members)]["name"]

            def is_led(partition: int = partition, name: str = name) -> bool:
                return all(node.leaders()[partition] == name for node in self.others())

            if not is_led():
                url = self.leader_of(partition).url
                command("cluster", "transfer", name, "--partition", str(partition), "--url", url)
                wait_until(is_led, f"{name} to lead partition {partition}")

    def close(self) -> None:
        for node in self.nodes.values():
            if node.runs:
                with suppress(ProcessLookupError):
                    node.signal(signal.SIGCONT)
                node.kill()
        if self.cuts is not None:
            self.cuts.close()


@contextmanager
def cluster(place: Path, *names: str, **facts: Any) -> Iterator[Processes]:
    """A cluster of nodes of these names, until the block ends.

    With `is_cut` its links can be cut.
    """
    is_cut = facts.pop("is_cut", False)
    made = Processes(place, **facts)
    if is_cut:
        made.cuts = Cuts()
    try:
        made.grow(*names)
        yield made
    finally:
        made.close()


def all_linked(made: Processes) -> bool:
    """Whether each node can send to each other one."""
    views = [node.view()["members"] for node in made.others()]
    return all(each["link"] in ("self", "up") for members in views for each in members)


def command(*words: str, fails: bool = False, program: Sequence[str] = ("-m", "penstock")) -> str:
    """Run a command; what it printed."""
    done = subprocess.run(
        [sys.executable, *program, *words], capture_output=True, text=True,
        timeout=60, env=environment(), check=False,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, f"{words}: {done.stderr}{done.stdout}"
    return done.stderr if fails else done.stdout


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


_TAKEN: set[int] = set()


def free_port() -> int:
    """A port that nothing listens on, and that was not given out before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _TAKEN:
            _TAKEN.add(port)
            return port
