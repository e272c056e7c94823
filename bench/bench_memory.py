"""What a record and a watcher weigh, and how long a million records take to come back"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench import servers
from bench.bench_delivery import ask
from bench.bench_read import RECORD, write
from bench.load import connect, free_port, pin, post
from bench.report import Report

RECORDS = 1_000_000
HOT = 40_000
WATCHERS = 1_000
SIZES = (100, 10_000, 500_000)
FLAT_BYTES = 4 << 30
TINY = {"RECORDS": 2_000, "HOT": 500, "WATCHERS": 5, "FLAT_BYTES": 8 << 20}


def run(report: Report) -> None:
    pin(1)
    payload = len(RECORD) - len(b'{"data":}')
    report.row("payload of a record", payload, "bytes")
    report.row("a record in memory", hot_record(), "bytes")
    report.row("an idle watcher", idle_watcher(), "bytes")
    recovery(report)
    flat(report)


def flat(report: Report) -> None:
    """Gigabytes of records of three sizes: what a server has when it is full, and in the end."""
    for size in SIZES:
        with servers.penstock() as port:
            pid = server_pid(port)
            record = b'{"data":"%b"}' % (b"x" * (size - 2))
            count = max(1, (1 << 20) // len(record))
            body = b'{"records":[%b]}' % b",".join([record] * count)
            connection = connect(port, 1)[0]
            written = 0
            seen: list[int] = []
            while written < FLAT_BYTES:
                topic = b"t%d" % (len(seen) % 4)
                path = f"/v0/topics/{topic.decode()}?return_seqs=false"
                answer = ask(connection, post(path, body))
                if b" 429 " in answer[:16]:
                    time.sleep(0.05)
                    continue
                written += count * size
                seen.append(resident(pid))
            quarter = max(seen[: max(1, len(seen) // 4)])
            rest = max(seen)
            connection.close()
        name = f"after {FLAT_BYTES >> 20} MiB of {size} byte records"
        report.row(f"memory {name}", seen[-1] / (1 << 20), "MiB")
        report.row(f"growth after the first quarter, {name}", (rest - quarter) / (1 << 20), "MiB")


def resident(pid: int) -> int:
    """The bytes of memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hot_record() -> float:
    """Records spread over topics, so that all of them stay in memory."""
    with servers.penstock(PENSTOCK_COMPACT_LOG_BYTES=str(1 << 40)) as port:
        pid = server_pid(port)
        write(port, "warm", 10_000)
        before = resident(pid)
        for number in range(5):
            write(port, f"t{number}", HOT)
        return (resident(pid) - before) / (5 * HOT)


def idle_watcher() -> float:
    with servers.penstock() as port:
        pid = server_pid(port)
        setup = connect(port, 1)[0]
        ask(setup, post("/v0/topics/t", b"{}").replace(b"POST", b"PUT", 1))
        watchers = []
        before = resident(pid)
        for _ in range(WATCHERS):
            answer = ask(setup, post("/v0/watch", b'{"topics":{"t":{"tail":true}}}'))
            wid = json.loads(answer.partition(b"\r\n\r\n")[2])["wid"]
            watcher = connect(port, 1)[0]
            watcher.sendall(b"GET /v0/watch/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % wid.encode())
            received = b""
            while b"caught-up" not in received:
                received += watcher.recv(1 << 16)
            watchers.append(watcher)
        after = resident(pid)
        for watcher in watchers:
            watcher.close()
        return (after - before) / WATCHERS


def recovery(report: Report) -> None:
    """A million records in ten topics: from the log alone, and from a snapshot."""
    with servers.directory() as path:
        settings = {"PENSTOCK_DATA_DIR": str(path), "PENSTOCK_COMPACT_LOG_BYTES": str(1 << 40)}
        port = free_port()
        with run_on(port, settings) as pid:
            for number in range(10):
                write(port, f"t{number}", RECORDS // 10)
            os.kill(pid, 9)
        took_s = restart(settings)
        report.row("a million records, from the log after a kill", took_s, "s")
        report.row("the same", RECORDS / took_s, "records/s")


def restart(settings: dict[str, str]) -> float:
    port = free_port()
    began = time.perf_counter()
    with run_on(port, settings):
        return time.perf_counter() - began


class run_on:  # noqa: N801
    """A server on a directory that stays; ready when entered."""

    def __init__(self, port: int, settings: dict[str, str]) -> None:
        self.port = port
        self.env = {**os.environ, **settings, "PENSTOCK_PORT": str(port)}

    def __enter__(self) -> int:
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", sys.executable, "-m", "penstock", "serve"],
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        servers.wait_for_port(self.port)
        servers.wait_until_ready(self.port, seconds=300)
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def server_pid(port: int) -> int:
    """The process that listens on a port."""
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):  # it ended, or is not ours to look at
            is_server = b"\0serve\0" in (process / "cmdline").read_bytes()
            if is_server and b"PENSTOCK_PORT=%d\0" % port in (process / "environ").read_bytes():
                return int(process.name)
    raise RuntimeError(f"expected a server on port {port}, found none")
