"""`penstock up` in an empty directory: every part killed in its turn, nothing acknowledged lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import Client, ClientSettings
from penstock.app.ingest import fetch_status
from penstock.app.up import Up, UpSettings
from penstock.config import IngestSettings, Settings, TablesSettings
from penstock.demo.story import prepare_tariffs
from penstock.lake.catalog import open_catalog
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, Target
from penstock.metering.shapes import Steady
from penstock.protocol.errors import CallError
from penstock.spark.options import SparkOptions
from tests.integration.conftest import Certificate
from tests.integration.spark.one import ENVIRON
from tests.waiting import wait_until

LIMIT_S = 400
UP_AFTER_SPARK_S = 15.0
"""What is promised on a machine of its own."""
COMMAND = [sys.executable, "-m", "penstock", "up"]
FLEET = Fleet(devices=4, meters=3, seed=3)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


def children(pid: int) -> dict[str, int]:
    """The parts below a process, by the first word of their command."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = path.joinpath("cmdline").read_bytes().decode().split("\0")
        except (OSError, ValueError):
            continue
        if parent == pid and "penstock" in words:
            found[words[words.index("penstock") + 1]] = int(path.name)
        elif parent == pid:
            found["java"] = int(path.name)
    return found


class Running:
    """A `penstock up` with all that it says."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *words], cwd=directory, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.read_s: list[float] = []
        """When each line was read."""
        self._load = os.getloadavg()[0]
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, ""):
            self.read_s.append(time.monotonic())
            self.lines.append(line)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def until(self, condition: Callable[[], bool]) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.said
            return condition()

        wait_until(look, lambda: f"what is not in: {self.said}", patience_s=LIMIT_S)

    def says(self, pattern: str, count: int = 1) -> None:
        self.until(lambda: len(re.findall(pattern, self.said)) >= count)

    def is_soon_up_after_spark(self) -> None:
        """Wait until everything runs, and check how long it took from Spark being up.

        What others on the machine took of it when this began is added to the limit.
        """
        self.says("Spark is ready")
        self.says("penstock is up")
        ready_s, up_s = (
            at_s
            for line, at_s in zip(self.lines, self.read_s, strict=False)
            if re.search("Spark is ready|penstock is up", line)
        )
        limit_s = UP_AFTER_SPARK_S * (1 + self._load / (os.cpu_count() or 1))
        assert up_s - ready_s <= limit_s, f"{up_s - ready_s:.1f} s after Spark: {self.said}"

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        self._reading.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(directory: Path, *words: str) -> Iterator[Running]:
    made = Running(directory, *words)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGTERM)
            made.process.send_signal(signal.SIGTERM)
            made.process.wait(LIMIT_S)
        made.close()


class Offering:
    """A fleet that sends in a thread of its own; `acked` has what it was told is durable."""

    def __init__(self, port: int) -> None:
        self.acked: dict[str, set[int]] = {}
        self._load: LoadGenerator | None = None
        self._port = port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        self._load = LoadGenerator(Target("127.0.0.1", self._port), FLEET, Steady(20))
        for device in self._load.devices:
            self.acked[device.name] = set()
            device.on_acked = self.acked[device.name].update
        await self._load.run(seconds=10**6)

    @property
    def count(self) -> int:
        return sum(map(len, list(self.acked.values())))

    def end(self) -> None:
        """Wait until everything that was sent is acknowledged."""
        assert self._load is not None
        self._load.end()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def settings_file(directory: Path, *, server: str = "", ingest: str = "") -> tuple[int, int, int]:
    """Settings with free ports; `PORT` in what is added is the server's."""
    ports = free_ports(3)
    text = (
        f"[server]\nport = {ports[0]}\n{server}\n[ingest]\nport = {ports[1]}\n"
        f"status_port = {ports[2]}\n{ingest}\n[tables]\nmax_workers = 1\n"
    )
    (directory / "penstock.toml").write_text(text.replace("PORT", str(ports[0])))
    return ports[0], ports[1], ports[2]


def with_tls(certificate: Certificate) -> str:
    return f"tls_cert = '{certificate.cert}'\ntls_key = '{certificate.key}'\n"


@pytest.mark.slow
def test_any_part_may_be_killed_and_everything_acknowledged_is_there(
    tmp_path, certificate, monkeypatch
):
    """With TLS, so that every part and every task of Spark is shown to get through it."""
    for name, text in (ENVIRON | {"SSL_CERT_FILE": str(certificate.cert)}).items():
        monkeypatch.setenv(name, text)
    port, edge_port, status_port = settings_file(
        tmp_path, server=with_tls(certificate), ingest="url = 'https://localhost:PORT'\n"
    )
    url = f"https://localhost:{port}"
    with running(tmp_path) as up:
        up.is_soon_up_after_spark()
        up.says(f"penstock is up: {url}")
        check = [*COMMAND, "--check"]
        assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
        prepare_tariffs(url, FLEET)  # without prices the pipeline waits
        written: list[int] = []
        fleet = Offering(edge_port)
        with Client(ClientSettings(url, timeout_s=LIMIT_S)) as client:
            up.until(lambda: fleet.count >= 20)
            for number, name in enumerate(("serve", "ingest", "table", "java"), 1):
                os.kill(children(up.process.pid)[name], signal.SIGKILL)
                for value in range(number * 10, number * 10 + 10):
                    client.write("mine", [value])
                    written.append(value)
                if name != "java":
                    up.says(r"ended \(killed by SIGKILL\); starts again", number)
                before = fleet.count
                up.until(lambda at=before: fleet.count >= at + 20)
                up.until(lambda: {"serve", "ingest", "table"} <= set(children(up.process.pid)))
            fleet.end()
            assert [record.data for record in client.diff("mine").records] == written
            raw = client.get_topic("ingest.raw")
            assert raw.count >= fleet.count
        status = f"http://127.0.0.1:{status_port}"
        up.until(lambda: is_stored(status))
        assert up.end() == 0, up.said
    ends = [up.said.index(f"{name} ends") for name in ("ingest", "tables", "server")]
    assert ends == sorted(ends)
    with open_catalog(f"sqlite:{tmp_path / 'warehouse.sqlite'}", create=False) as lake:
        rows = lake.scan("readings", columns=["device", "message_id", "row_no"]).to_pylist()
    assert len(rows) == len({tuple(row.values()) for row in rows}) == fleet.count * FLEET.meters
    for device, acked in fleet.acked.items():
        stored = {int(row["message_id"]) for row in rows if row["device"] == device}
        assert len(stored) == len(acked)


@pytest.mark.slow
def test_in_an_empty_directory_without_a_file_everything_is_up_soon_after_spark(
    tmp_path, monkeypatch
):
    ports = free_ports(3)
    names = ("PENSTOCK_PORT", "PENSTOCK_INGEST_PORT", "PENSTOCK_INGEST_STATUS_PORT")
    for name, value in (ENVIRON | dict(zip(names, map(str, ports), strict=True))).items():
        monkeypatch.setenv(name, value)
    with running(tmp_path) as up:
        up.is_soon_up_after_spark()
        assert {"serve", "ingest", "table", "java"} <= set(children(up.process.pid))
        with Client(ClientSettings(f"http://127.0.0.1:{ports[0]}")) as client:
            client.write("mine", [1])
            assert [record.data for record in client.diff("mine").records] == [1]
        assert up.end() == 0, up.said
    assert not (tmp_path / "penstock.toml").exists()


def is_stored(status_url: str) -> bool:
    try:
        pipeline = fetch_status(status_url)["pipeline"]
    except CallError:  # it starts again
        return False
    return pipeline["behind"] == 0 and pipeline["stored_seq"] > 0


def test_a_second_signal_ends_it_at_once_and_nothing_is_left(tmp_path):
    settings_file(tmp_path)
    with running(tmp_path, "--without", "ingest", "--without", "tables") as up:
        up.says("penstock is up")
        below = children(up.process.pid)
        assert set(below) == {"serve"}
        up.process.send_signal(signal.SIGINT)
        up.process.send_signal(signal.SIGINT)
        up.process.wait(LIMIT_S)
        assert not Path(f"/proc/{below['serve']}").exists()


def test_a_part_that_never_was_ready_ends_it_with_what_that_part_said(tmp_path):
    port, _, _ = settings_file(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = subprocess.run(
            [*COMMAND, "--without", "ingest", "--without", "tables"], cwd=tmp_path,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Error: server ended before it was ready (exit code 1)" in done.stderr
    assert f"cannot listen on 127.0.0.1:{port}: " in done.stderr.splitlines()[-1]


def test_a_certificate_that_is_not_trusted_ends_it_with_what_to_do(tmp_path, certificate):
    settings_file(tmp_path, server=with_tls(certificate))
    done = subprocess.run(
        [*COMMAND, "--without", "ingest", "--without", "tables"], cwd=tmp_path,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert "is not trusted" in last
    assert "SSL_CERT_FILE" in last


def test_parts_end_with_the_process_that_keeps_them(tmp_path):
    settings_file(tmp_path)
    with running(tmp_path, "--without", "ingest", "--without", "tables") as up:
        up.says("penstock is up")
        pid = children(up.process.pid)["serve"]
        up.process.kill()
        up.process.wait(LIMIT_S)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the server")


def test_check_says_of_each_part_that_it_does_not_run(tmp_path):
    settings_file(tmp_path)
    done = subprocess.run(
        [*COMMAND, "--check"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.count('"runs":false') == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\napi_keys = 'k'\n", "the server has keys and ingest has none"),
        ("[server]\nstore = 'memory'\n", "choose another store"),
        ("[tables]\nmax_worker = 1\n", "did you mean max_workers?"),
        ("[tables]\nkeep_snapshots = 'long'\n", "long"),
    ],
)
def test_settings_that_cannot_work_are_wrong_usage(tmp_path, text, said):
    (tmp_path / "penstock.toml").write_text(text)
    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


SLOW_SERVER = """
import os, sys
if "serve" in sys.argv:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from pathlib import Path
    class Answers(BaseHTTPRequestHandler):
        asked = 0
        def do_GET(self):
            Answers.asked += 1
            body = b'{"status":"ready","wal_replay_complete":true,"topics":0}'
            if Answers.asked < 4:
                body = b'{"error":{"code":"not_ready","message":"it reads its log"}}'
            else:
                Path("ready").touch()
            self.send_response(503 if Answers.asked < 4 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
    server = HTTPServer(("127.0.0.1", 0), Answers)
    Path(os.environ["PENSTOCK_PORT_FILE"]).write_text(f"127.0.0.1:{server.server_port}")
    server.serve_forever()
"""


def test_the_server_counts_as_started_when_readyz_answers(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(SLOW_SERVER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    settings = UpSettings(
        Settings(port=0), IngestSettings(), TablesSettings(), SparkOptions(),
        parts=("server",), directory=tmp_path,
    )  # fmt: skip

    async def run() -> None:
        up = Up(settings, say=lambda _: None, on_line=lambda *_: None)
        try:
            await up.start()
            assert (tmp_path / "ready").exists(), "it only listened"
        finally:
            await up.stop()

    asyncio.run(run())
