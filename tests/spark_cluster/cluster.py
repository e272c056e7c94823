"""A Spark cluster on this machine: a standalone master, two workers and Spark Connect servers.

All of it comes with pyspark and is started by Spark's own scripts, on loopback and free ports. The
first worker sees the disk as we do. The second has a mount namespace of its own, in which `private`
is an empty directory: what is there is on two disks, as on machines without shared storage.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from penstock.spark.jvm.java import find_java
from penstock.spark.link import connect
from tests.waiting import wait_until

PATIENCE_S = 180.0
"""Starts of JVMs are part of every wait, on machines that may be busy."""

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that run everything a few times: what a second compiler gains comes too late."""

DAEMONS = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "192m",
    "SPARK_DAEMON_JAVA_OPTS": QUICK,
}
SMALL: Mapping[str, str] = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "768m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}
"""What an application on the cluster is given: two executors of one core each, one per worker."""

HAS_NAMESPACES = (
    subprocess.run(("unshare", "-m", "true"), capture_output=True, check=False).returncode == 0
    if shutil.which("unshare")
    else False
)
"""Whether this machine lets us give a worker a disk of its own; root may."""


DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""A run of tests that is killed leaves no cluster behind."""


class Daemon:
    """One JVM of the cluster, with a log. Killing it kills what it started."""

    def __init__(self, name: str, home: Path, command: list[str], env: Mapping[str, str]) -> None:
        self.log = home / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=home, env=_environment() | dict(env), start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def said(self, pattern: str) -> re.Match[str]:
        """The first place of the log that matches, as soon as it is there."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            text = self.log.read_text(errors="replace")
            found.extend([match] if (match := re.search(pattern, text)) else [])
            assert found or self.is_running, f"{self.log.name} ended: {text[-2_000:]}"
            return bool(found)

        wait_until(look, f"{pattern!r} in {self.log}", patience_s=PATIENCE_S)
        return found[0]

    def kill(self) -> None:
        """SIGKILL, for it and all its children: as when its machine is gone."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Connect(Daemon):
    """A stock Spark Connect server, which is an application on the cluster."""

    url: str
    python: str


class Cluster:
    """The cluster. `shared` is a directory that all see alike, `private` one that they do not."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.shared, self.private = home / "shared", home / "private"
        for directory in (self.shared, self.private):
            directory.mkdir(parents=True)
        self._daemons: list[Daemon] = []
        self.master_daemon = self._start("master", "Master", *_webui())
        self.master = self.master_daemon.said(r"Starting Spark master at (spark://\S+)")[1]
        self.workers = [self.worker("worker-1"), self.worker("worker-2", is_apart=HAS_NAMESPACES)]
        for worker in self.workers:
            worker.said("Successfully registered with master")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def worker(self, name: str, *, is_apart: bool = False) -> Daemon:
        """One more worker; apart: `private` is an empty directory for it and its executors."""
        work = self.home / name
        limits = ("--cores", "8", "--memory", "8g", "--work-dir", str(work))
        apart = str(self.private) if is_apart else None
        return self._start(name, "worker.Worker", *_webui(), *limits, self.master, apart=apart)

    def connect(
        self,
        name: str = "connect",
        *,
        port: int = 0,
        conf: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> Connect:
        """A Connect server, and executors with this Python for it."""
        given = {**SMALL, "spark.connect.grpc.binding.port": str(port), **(conf or {})}
        words = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master,
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            *words, "spark-internal",
        ]  # fmt: skip
        # Its memory is that of a daemon: Spark's launcher knows this class by name.
        env = {**DAEMONS, "SPARK_DAEMON_MEMORY": "768m", "PYSPARK_PYTHON": python}
        made = Connect(name, self.home, command, env)
        self._daemons.append(made)
        found = made.said(r"Spark Connect server started at: \S*?:(\d+)")[1]
        made.python = python
        made.url = f"sc://127.0.0.1:{found}"
        return made

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def _start(self, name: str, kind: str, *words: str, apart: str | None = None) -> Daemon:
        command = [
            str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{_full(kind)}",
            "--host", "127.0.0.1", "--port", "0", *words,
        ]  # fmt: skip
        if apart is not None:
            script = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", script, apart, *command]
        made = Daemon(name, self.home, command, DAEMONS)
        self._daemons.append(made)
        return made


@cache
def one_cluster() -> Cluster:
    """The cluster of this process, started by the first test that asks."""
    made = Cluster(Path(tempfile.mkdtemp(prefix="penstock-cluster-")))
    atexit.register(made.close)
    return made


@cache
def one_connect() -> Connect:
    """The Connect server of this process's cluster, for tests that do not kill it."""
    made = one_cluster().connect()
    with connect(made.url) as spark:
        on_both_executors(spark.range(2)).collect()
    return made


def on_both_executors(rows: Any) -> Any:
    """The same rows in two tasks that start together, so that each executor's one core has one.

    Spark waits until there are cores for both: afterwards both executors are known to be there.
    """

    def passed(batches: Iterator[Any]) -> Iterator[Any]:  # by value: workers have no `tests`
        yield from batches

    return rows.repartition(2).mapInArrow(passed, rows.schema, barrier=True)


def _home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


SPARK_HOME = _home()


def _full(kind: str) -> str:
    return kind if "." in kind else f"{kind.lower()}.{kind}"


def _webui() -> tuple[str, str]:
    return "--webui-port", "0"


def _environment() -> dict[str, str]:
    foreign = ("SPARK_", "PYSPARK_", "PENSTOCK_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return kept | {"SPARK_HOME": str(SPARK_HOME), "JAVA_HOME": str(find_java().home)}
