"""The embedded Spark: one JVM that serves Spark Connect on this machine and ends with this process.

The JVM reads a pipe from this process and exits when the pipe closes, for any reason. Any process
of the same user may connect with `url`, which holds a secret.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from penstock.kernel.errors import Rejected
from penstock.spark.errors import SparkMissing, SparkNotStarted
from penstock.spark.jvm.cache import archive_path, cache_dir, filesystem_jar, one_at_a_time
from penstock.spark.jvm.command import (
    LOGGING,
    POOLS,
    JvmFiles,
    class_path,
    cluster_conf,
    jvm_command,
)
from penstock.spark.jvm.java import Java, find_java
from penstock.spark.options import Archive, SparkOptions, masters
from penstock.tables.processes import is_alive, is_here, process_name

PREFIX: Final = "penstock-spark-"
_OWNER: Final = "owner"
_LOG: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.02
_STOP_TIMEOUT_S: Final = 20
_MASTER_TIMEOUT_S: Final = 5
_TRAINING_TIMEOUT_S: Final = 120
_LOG_TAIL_BYTES: Final = 4_000

Tell = Callable[[str], None]
"""Takes one line about how far a start has come."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a start found: Java, Spark's jars, and what was made once for them."""

    java: Java
    jars_dir: Path
    cache: Path
    jar: Path | None

    @property
    def archive(self) -> Path:
        """Where the archive of classes is, or would be."""
        place = JvmFiles(self.cache, self.jars_dir, self.jar)
        return archive_path(self.cache, self.java, class_path(place).split(":"))


class EmbeddedSpark:
    """A JVM that was started with `start_spark`. Stop it, or leave its `with` block."""

    def __init__(self, process: subprocess.Popen[bytes], place: JvmFiles, url: str) -> None:
        self._process = process
        self._place = place
        self._lock = threading.Lock()
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the JVM still runs."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until the JVM has ended, for whatever reason."""
        self._process.wait()

    @property
    def log(self) -> str:
        """The last output of the JVM."""
        return _tail(self._place.log)

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop the JVM, by force if it does not exit in time. Idempotent."""
        with self._lock:
            _end(self._process, timeout_s)
            shutil.rmtree(self._place.work_dir, ignore_errors=True)


def start_spark(options: SparkOptions, tell: Tell = _LOG.info) -> EmbeddedSpark:
    """Start a JVM with Spark in it and wait until it can be connected to."""
    machine = look_around(options)
    look_for_master(options.master)
    if options.archive is Archive.BUILD and not machine.archive.exists():
        tell("making Spark start faster from now on, once for this machine")
        build_archive(machine)
    has_archive = options.archive is not Archive.OFF and machine.archive.exists()
    return _start(machine, options, tell, archive=machine.archive if has_archive else None)


def look_around(options: SparkOptions) -> Machine:
    """Find Java and Spark, and build what is built once; `SparkMissing` says what is missing."""
    home = pyspark_home()
    java = find_java(options.java_home)
    jars_dir = home / "jars"
    cache = cache_dir(options.cache_dir)
    jar = filesystem_jar(cache, java, jars_dir) if options.plain_files else None
    return Machine(java, jars_dir, cache, jar)


def look_for_master(master: str) -> None:
    """Refuse a standalone master that does not listen: Spark itself would try for a minute."""
    reasons: list[str] = []
    for host, port in masters(master):
        try:
            socket.create_connection((host, port), timeout=_MASTER_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    if reasons:
        raise SparkNotStarted(f"no Spark master answers at {master}: {'; '.join(reasons)}")


def own_address(master: str) -> str | None:
    """The address of this machine on the way to a standalone master; sends nothing."""
    for host, port in masters(master):
        with suppress(OSError):
            family, kind, *_, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[
                0
            ]
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None


def pyspark_home() -> Path:
    """Where pyspark is installed. Not imported: that takes long, and a start does not need it."""
    found = {name: find_spec(name) for name in ("pyspark", "py4j", "pandas", "grpc", "grpc_status")}
    for name, spec in found.items():
        if spec is None or spec.origin is None:
            raise missing(ImportError(f"no package {name}"))
    return Path(str(found["pyspark"].origin if found["pyspark"] else "")).parent


def missing(error: ImportError) -> SparkMissing:
    """What to say where a package is not installed."""
    return SparkMissing(f"Spark is not installed ({error}): pip install 'penstock[spark]'")


def build_archive(machine: Machine) -> Path | None:
    """Have the archive of classes made, by one process at a time; None if that failed."""
    try:
        with one_at_a_time(machine.archive):
            if not machine.archive.exists():
                _build_archive(machine)
    except (OSError, SparkNotStarted) as error:
        _LOG.warning("Spark starts more slowly here: no archive of classes was made: %s", error)
        return None
    return machine.archive


def _build_archive(machine: Machine) -> None:
    """Run a JVM through its first jobs and keep the classes it loaded."""
    from penstock.spark.jvm.training import train  # it needs a session, which stands above

    draft = machine.archive.with_suffix(f".{os.getpid()}.draft")
    # Which classes are loaded does not depend on the compiler: start and training took 39 s of a
    # core with both compilers, and 20 s with the first.
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    options = SparkOptions(cores=2, memory_mb=1_024, conf=quick)
    try:
        spark = _start(machine, options, _LOG.debug, archive_to_write=draft)
        try:
            train(spark.url)
        finally:
            spark.stop(_TRAINING_TIMEOUT_S)
        draft.replace(machine.archive)
    finally:
        draft.unlink(missing_ok=True)


def _start(
    machine: Machine,
    options: SparkOptions,
    tell: Tell,
    *,
    archive: Path | None = None,
    archive_to_write: Path | None = None,
) -> EmbeddedSpark:
    sweep(Path(tempfile.gettempdir()))
    work_dir = Path(tempfile.mkdtemp(prefix=PREFIX))
    place = JvmFiles(work_dir, machine.jars_dir, machine.jar, archive, archive_to_write)
    started = time.monotonic()
    process = None
    try:
        place.pools.write_text(POOLS)
        place.logging.write_text(LOGGING)
        command = jvm_command(
            machine.java.program, place, master=options.master_url(os.cpu_count() or 1),
            memory_mb=options.memory_mb,
            conf={**cluster_conf(options, own_address(options.master)), **options.conf},
        )  # fmt: skip
        token = secrets.token_hex(16)
        tell(f"starting Spark with Java {machine.java.version}")
        process = _spawn(command, place, _environment(machine, place, options, token))
        mark(work_dir, process.pid)
        deadline = started + options.start_timeout_ms / 1_000
        gateway = _greeted(process, place, deadline)
        tell("Spark's JVM is up, opening its session")
        port = _serve(process, place, *gateway)
    except BaseException:
        if process is not None:
            _end(process, 0)
        shutil.rmtree(work_dir, ignore_errors=True)
        raise
    tell(f"Spark is ready after {time.monotonic() - started:.1f} s")
    return EmbeddedSpark(process, place, f"sc://localhost:{port}/;token={token}")


def _environment(
    machine: Machine, place: JvmFiles, options: SparkOptions, token: str
) -> Mapping[str, str]:
    """This environment without the variables that would redirect the JVM to another Spark."""
    foreign = ("SPARK_", "PYSPARK_", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return kept | {
        "JAVA_HOME": str(machine.java.home),
        "SPARK_HOME": str(machine.jars_dir.parent),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "PYSPARK_PIN_THREAD": "false",
        "PYSPARK_PYTHON": options.python or os.environ.get("PYSPARK_PYTHON") or _python(),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(place.greeting),
    }


def _python() -> str:
    import sys

    return sys.executable


def _spawn(command: list[str], place: JvmFiles, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with place.log.open("wb") as log:
        # A separate process session: Ctrl-C reaches only us, and we decide when Spark ends.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=place.work_dir,
            env=env, start_new_session=True,
        )  # fmt: skip


def _greeted(process: subprocess.Popen[bytes], place: JvmFiles, deadline: float) -> tuple[int, str]:
    """Port and secret of the JVM's gateway, as soon as it has written them."""
    while time.monotonic() < deadline:
        if place.greeting.exists():
            data = place.greeting.read_bytes()
            port, size = struct.unpack(">ii", data[:8])
            return port, data[8 : 8 + size].decode()
        if process.poll() is not None:
            raise SparkNotStarted(
                f"Spark's JVM ended with {process.returncode} instead of starting: "
                f"{_tail(place.log)}"
            )
        time.sleep(_POLL_S)
    raise SparkNotStarted(f"Spark's JVM did not start in time: {_tail(place.log)}")


def _serve(process: subprocess.Popen[bytes], place: JvmFiles, port: int, secret: str) -> int:
    """Open the JVM's own session, whose plugin serves Spark Connect; returns its port."""
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JError

    gateway: Any = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=True)
    )
    try:
        jvm = gateway.jvm
        jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
        service = getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
        return int(getattr(service, "MODULE$").localPort())
    except Py4JError as error:
        state = process.poll()
        raise SparkNotStarted(
            f"Spark did not open its session: {error} (JVM: {state}): {_tail(place.log)}"
        ) from error
    finally:
        gateway.close()


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(path: Path) -> str:
    try:
        data = path.read_bytes()[-_LOG_TAIL_BYTES:]
    except OSError:
        return "no log"
    return data.decode(errors="replace").strip() or "nothing in its log"


def mark(work_dir: Path, pid: int) -> None:
    """Write down which process a work directory belongs to."""
    (work_dir / _OWNER).write_text(process_name(pid))


def sweep(parent: Path) -> list[Path]:
    """Remove the directories whose process is gone; one that is not marked yet stays."""
    return [
        found for found in sorted(parent.glob(f"{PREFIX}*")) if _is_left(found) and _gone(found)
    ]


def _is_left(work_dir: Path) -> bool:
    try:
        owner = (work_dir / _OWNER).read_text()
        return is_here(owner) and not is_alive(owner)
    except (OSError, UnicodeDecodeError, Rejected):
        return False


def _gone(work_dir: Path) -> bool:
    shutil.rmtree(work_dir, ignore_errors=True)
    return not work_dir.exists()
