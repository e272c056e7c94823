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
from typing import IO

from bench import peers
from bench.load import free_port, scratch, wait_for_port


@contextmanager
def directory() -> Iterator[Path]:
    """A directory for a server's files, gone afterwards."""
    path = Path(tempfile.mkdtemp(dir=scratch()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def process(
    arguments: list[str], *, port: int, env: dict[str, str] | None = None, cores: str = "0"
) -> Iterator[int]:
    """A server on the first core; its process number. What it says is told if it does not start."""
    with tempfile.TemporaryFile(dir=scratch()) as said:
        running = start(arguments, said, env=env, cores=cores)
        try:
            try:
                wait_for_port(port, is_alive=lambda: running.poll() is None)
            except OSError as error:
                said.seek(0)
                words = said.read().decode(errors="replace").strip().splitlines()[-3:]
                raise peers.MissingError(
                    f"{' '.join(arguments)}: {error}: {' / '.join(words)}"
                ) from error
            yield running.pid
        finally:
            stop(running)


def start(
    arguments: list[str], said: IO[bytes], *, env: dict[str, str] | None = None, cores: str = "0"
) -> subprocess.Popen[bytes]:
    """Start a server on some cores; what it says goes to a file."""
    return subprocess.Popen(
        ["taskset", "-c", cores, *arguments],
        # With bytecode, as an installed program has it: ours starts a process a snapshot.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(env or {})},
        stdout=said,
        stderr=said,
    )


def stop(running: subprocess.Popen[bytes]) -> None:
    """End a server, by force if it does not go."""
    running.send_signal(signal.SIGTERM)
    try:
        running.wait(15)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


COMPILED = Path(__file__).resolve().parent.parent / "build" / "compiled"


def is_compiled() -> bool:
    """Whether `make compiled` was run."""
    return any(COMPILED.glob("penstock/topics/engine/engine.*.so"))


@contextmanager
def penstock(**settings: str) -> Iterator[int]:
    """`penstock serve`; its port."""
    with penstock_process(**settings) as (port, _):
        yield port


@contextmanager
def penstock_process(**settings: str) -> Iterator[tuple[int, int]]:
    """`penstock serve`; its port and its process number."""
    port = free_port()
    with directory() as path:
        env = {"PENSTOCK_PORT": str(port), "PENSTOCK_DATA_DIR": str(path), **settings}
        with process([sys.executable, "-m", "penstock", "serve"], port=port, env=env) as pid:
            wait_until_ready(port)
            yield port, pid


def wait_until_ready(port: int, *, seconds: float = 60.0) -> None:
    """Return once the server has taken in its log."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(
                b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
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
def bare_push(*, synced: bool = False) -> Iterator[int]:
    """The bare loop of `bench.bare_push`; its port."""
    port = free_port()
    with directory() as path:
        file = [str(path / "log")] if synced else []
        with process([sys.executable, "-m", "bench.bare_push", str(port), *file], port=port):
            yield port


@contextmanager
def redis() -> Iterator[int]:
    """Redis that syncs every write."""
    port = free_port()
    with directory() as path:
        arguments = [peers.program("redis-server", "redis-server"), "--port", str(port),
                     "--dir", str(path), "--save", "", "--appendonly", "yes",
                     "--appendfsync", "always"]  # fmt: skip
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
        with process([peers.nats_server(), "-c", str(config)], port=port):
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
    """PostgreSQL as it comes, with a table `bench`."""
    programs = peers.postgres_bin()
    port = free_port()
    with directory() as path:
        as_postgres: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL does not run as root
            shutil.chown(path, "postgres")
            path.parent.chmod(0o755)
            as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        data = path / "data"
        made = subprocess.run(
            [*as_postgres, f"{programs}/initdb", "-D", str(data), "-A", "trust", "-U", "postgres"],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise peers.MissingError(f"initdb: {made.stderr.strip().splitlines()[-1]}")
        arguments = [*as_postgres, f"{programs}/postgres", "-D", str(data), "-p", str(port),
                     "-k", str(path), "-c", "max_connections=200"]  # fmt: skip
        with process(arguments, port=port):
            psql = [f"{programs}/psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-c"]
            until = time.monotonic() + 20
            while "1 row" not in peers.said_by([*psql, "select 1"]):
                if time.monotonic() > until:
                    raise TimeoutError("expected PostgreSQL to answer")
            subprocess.run(
                [*psql, "create table bench (seq bigserial, data text)"],
                capture_output=True,
                check=True,
            )
            yield port
