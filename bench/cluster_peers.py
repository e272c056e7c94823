"""Clusters of three on this machine: ours, NATS with JetStream, and etcd; every write synced."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import peers, servers
from bench.load import connect, free_port, http_is_whole, post

NAMES = ("a", "b", "c")
PARTITIONS = 6
CORES = "0,1"
"""Three nodes and the load share the machine: they would need more cores than it has."""


class Nodes(NamedTuple):
    """Ports and process numbers of three nodes; the leader is the first."""

    ports: list[int]
    pids: list[int]


@contextmanager
def penstock() -> Iterator[Nodes]:
    """Three nodes; one leads all partitions and goes on leading them."""
    with servers.directory() as place, ExitStack() as stack:
        ports: list[int] = []
        pids: list[int] = []
        for name in NAMES:
            directory, peer = place / name, f"127.0.0.1:{free_port()}"
            words = ["add", name, peer, "--url", f"http://127.0.0.1:{ports[0]}"] if ports else [
                "init", name, peer, "--wal-shards", str(PARTITIONS)
            ]  # fmt: skip
            _penstock("cluster", *words, "--data-dir", str(directory))
            port = free_port()
            arguments = [
                sys.executable, "-m", "penstock", "serve", "--data-dir", str(directory),
                "--port", str(port), "--peer-listen", peer, "--leaders", "together",
            ]  # fmt: skip
            pid = stack.enter_context(servers.process(arguments, port=port, cores=CORES))
            ports.append(port)
            pids.append(pid)
            servers.wait_until_ready(port)
            _until(ports[0], lambda view: not view["underway"])
        view = _view(ports[0])
        lead = min(view["members"], key=lambda each: int(each["id"], 16))["name"]
        _penstock("cluster", "transfer", lead, "--url", f"http://127.0.0.1:{ports[0]}")
        _until(ports[0], lambda view: all(g["leader"] == lead for g in view["partitions"]))
        order = sorted(range(len(NAMES)), key=lambda place: NAMES[place] != lead)
        yield Nodes([ports[each] for each in order], [pids[each] for each in order])


def _penstock(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"penstock {' '.join(words)}: {done.stderr or done.stdout}")


def _view(port: int) -> dict[str, Any]:
    return ask(port, b"GET /v0/cluster HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


def _until(port: int, holds: Callable[[dict[str, Any]], bool], *, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not holds(_view(port)):
        if time.monotonic() > until:
            raise TimeoutError(f"expected another state of the cluster than {_view(port)}")
        time.sleep(0.05)


def ask(port: int, request: bytes) -> dict[str, Any]:
    """The answer to one request, as JSON."""
    connection = connect(port, 1)[0]
    connection.sendall(request)
    answer = b""
    while not (answer and http_is_whole(answer)):
        answer += connection.recv(1 << 16)
    connection.close()
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


@contextmanager
def nats() -> Iterator[int]:
    """Three NATS servers that sync every message; the port of the leader of `bench`, of three."""
    program = peers.nats_server()
    ports, routes = [free_port() for _ in NAMES], [free_port() for _ in NAMES]
    with servers.directory() as place, ExitStack() as stack:
        told = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
        for name, port, route in zip(NAMES, ports, routes, strict=True):
            config = place / f"{name}.conf"
            config.write_text(
                f'server_name: {name}\nport: {port}\nhost: "127.0.0.1"\n'
                f'jetstream {{ store_dir: "{place}/{name}", sync_interval: always }}\n'
                f'cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{told}] }}\n'
            )
            arguments = [program, "-c", str(config)]
            stack.enter_context(servers.process(arguments, port=port, cores=CORES))
        leader = _nats_stream(ports[0])
        yield ports[NAMES.index(leader)]


def _nats_stream(port: int) -> str:
    """Make the stream, as soon as the servers have found each other; the name of its leader."""
    stream = {"name": "bench", "subjects": ["bench"], "storage": "file", "num_replicas": 3}
    body, until = json.dumps(stream).encode(), time.monotonic() + 60
    while time.monotonic() < until:
        answer = _nats_ask(port, "$JS.API.STREAM.CREATE.bench", body)
        info = _nats_ask(port, "$JS.API.STREAM.INFO.bench", b"") if answer else {}
        replicas = info.get("cluster", {}).get("replicas", [])
        leader = info.get("cluster", {}).get("leader")
        if leader and len(replicas) == 2 and all(each["current"] for each in replicas):
            return str(leader)
        time.sleep(0.2)
    raise peers.MissingError("the NATS servers did not make a stream of three replicas")


def _nats_ask(port: int, subject: str, body: bytes) -> dict[str, Any]:
    connection = servers.nats_connect(port)
    connection.settimeout(5)
    connection.sendall(b"PUB %b inbox %d\r\n%b\r\n" % (subject.encode(), len(body), body))
    answer = b""
    try:
        while not answer.endswith(b"}\r\n"):
            answer += connection.recv(1 << 16)
    except TimeoutError:
        return {}
    finally:
        connection.close()
    found: dict[str, Any] = json.loads(answer[answer.index(b"\r\n{") :])
    return found


@contextmanager
def etcd() -> Iterator[int]:
    """Three etcd servers; the client port of the leader."""
    program = peers.program("etcd", "etcd-server")
    ports, peer_ports = [free_port() for _ in NAMES], [free_port() for _ in NAMES]
    told = ",".join(
        f"{name}=http://127.0.0.1:{port}" for name, port in zip(NAMES, peer_ports, strict=True)
    )
    with servers.directory() as place, ExitStack() as stack:
        for name, port, peer in zip(NAMES, ports, peer_ports, strict=True):
            client, between = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
            arguments = [
                program, "--name", name, "--data-dir", str(place / name), "--enable-v2",
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", between, "--initial-advertise-peer-urls", between,
                "--initial-cluster", told, "--log-level", "error",
            ]  # fmt: skip
            said = stack.enter_context((place / f"{name}.log").open("wb"))
            stack.callback(servers.stop, servers.start(arguments, said, cores=CORES))
        yield _etcd_leader(place, ports)


def _etcd_leader(place: Path, ports: list[int]) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for port in ports:
            try:
                status = ask(port, post("/v3/maintenance/status", b"{}"))
            except (OSError, ValueError):
                continue
            if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                return port
        time.sleep(0.2)
    said = (place / "a.log").read_text(errors="replace").splitlines()[-3:]
    raise peers.MissingError(f"the etcd servers did not elect a leader: {' / '.join(said)}")
