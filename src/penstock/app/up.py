"""`penstock up`: server, ingest and tables on one machine, as supervised processes.

One JVM serves ingest and tables. It belongs to this process and dies with it; when it exits,
another is started, and the parts that used it are restarted with its address.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.app.ingest import fetch_status
from penstock.app.part import OnLine, Part
from penstock.app.server import own_url
from penstock.client import AsyncClient, ClientSettings
from penstock.client.errors import Untrusted
from penstock.config import IngestSettings, Settings, TablesSettings
from penstock.kernel.errors import PenstockError, Rejected
from penstock.protocol.errors import CallError, Forbidden, Unauthorized
from penstock.spark.options import SparkOptions

if TYPE_CHECKING:
    from penstock.spark.jvm.embedded import EmbeddedSpark

SERVER, INGEST, TABLES = "server", "ingest", "tables"
COMMANDS: Final = {
    SERVER: ("serve",), INGEST: ("ingest", "run", "--no-live"), TABLES: ("table", "run"),
}  # fmt: skip
PARTS: Final = tuple(COMMANDS)
LOOK_TIMEOUT_S: Final = 2.0
JVM_END_S: Final = 10.0
DOWN: Final = frozenset({"not_running", "stalled"})
"""States of a warehouse in which no coordinator works."""

Say = Callable[[str], None]
_T = TypeVar("_T")


class UpSettings(NamedTuple):
    """The settings of each part, which parts run, and the file that they read themselves."""

    server: Settings
    ingest: IngestSettings
    tables: TablesSettings
    spark: SparkOptions
    file: Path | None = None
    parts: tuple[str, ...] = PARTS
    directory: Path | None = None
    """The working directory of the parts; the current one by default."""
    own: Mapping[str, Mapping[str, str]] | None = None
    """Variables for each part by name; if set, no PENSTOCK_ variable is inherited."""

    def check(self) -> None:
        """Refuse incompatible settings."""
        if self.server.has_keys and INGEST in self.parts and not self.ingest.api_key:
            raise Rejected(
                "the server has keys and ingest has none: set api_key in [ingest] to a key of the "
                "server that may write"
            )
        if self.server.store == "memory":
            raise Rejected(
                "`penstock up` restarts a server that ends, and store 'memory' would lose what was "
                "acknowledged: choose another store in [server]"
            )

    def server_url(self, host: str, port: int) -> str:
        """Where the parts find the server.

        With TLS that is the address in [ingest], if it is one with https: a certificate is for a
        name, and seldom for 127.0.0.1.
        """
        if self.server.tls_cert is not None and self.ingest.url.startswith("https:"):
            return self.ingest.url
        return own_url(self.server, host, port)


class Up:
    """Everything on one machine: `start`, `watch`, and finally `stop`."""

    def __init__(self, settings: UpSettings, *, say: Say, on_line: OnLine) -> None:
        settings.check()
        self.settings = settings
        self.server_url = ""
        self.edge: tuple[str, int] | None = None
        """Where devices connect, once ingest is ready."""
        self.status_url = ""
        self._say = say
        self._signs = Path(tempfile.gettempdir(), f"penstock-up-{os.getpid()}-{id(self)}")
        self._spark: EmbeddedSpark | None = None
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._ends = asyncio.Event()
        looks = {SERVER: self._server_ready, INGEST: self._ingest_ready, TABLES: self._tables_ready}
        self.parts = {
            name: Part(
                name, COMMANDS[name], looks[name], on_line,
                sign=self._sign(name), directory=settings.directory, inherit=settings.own is None,
            )
            for name in settings.parts
        }  # fmt: skip
        for name, part in self.parts.items():
            part.own = self._variables(name)

    # Starting

    async def start(self) -> None:
        """Start everything; returns when every part is ready."""
        self._signs.mkdir(mode=0o700)
        jvm = asyncio.ensure_future(self._start_jvm())
        try:
            self._keep(SERVER)
            await self._until_ready(SERVER)
            self._say(f"server  {self.server_url} · {self._data()}")
            await jvm
        except BaseException:
            jvm.cancel()
            raise
        for name in (INGEST, TABLES):
            if name in self.parts:
                self.parts[name].own |= self._jvm_variables(name)
                self._keep(name)
        if INGEST in self.parts:
            await self._until_ready(INGEST)
            assert self.edge is not None
            self._say(f"ingest  devices on {_joined(self.edge)} · status {self.status_url}")
        if TABLES in self.parts:
            await self._until_ready(TABLES)
            self._say(f"tables  kept fresh in {self.settings.tables.catalog}")
        self._say(f"penstock is up: {self.server_url} (dashboard and API)")

    async def watch(self) -> None:
        """Wait while everything is kept running; raises the error that ends it."""
        tasks = [*self._keeping.values()]
        if self._spark is not None:
            tasks.append(asyncio.ensure_future(self._keep_jvm()))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    # Stopping

    async def stop(self) -> None:
        """Stop in order: devices first, then what they feed, the server last."""
        self._ends.set()
        for name in (INGEST, TABLES):
            if name in self._keeping:
                self._say(f"{name} ends")
                await self._end(name)
        if self._spark is not None:
            await asyncio.to_thread(self._spark.stop, JVM_END_S)
        if SERVER in self._keeping:
            self._say("server ends")
            await self._end(SERVER)
        shutil.rmtree(self._signs, ignore_errors=True)

    def kill(self) -> None:
        """Kill everything at once: acknowledged data is durable."""
        self._ends.set()
        for part in self.parts.values():
            part.kill()
        if self._spark is not None:
            with suppress(ProcessLookupError):
                os.kill(self._spark.pid, signal.SIGKILL)
        shutil.rmtree(self._signs, ignore_errors=True)

    async def _end(self, name: str) -> None:
        await self.parts[name].stop()
        task = self._keeping.pop(name)
        with suppress(PenstockError):  # it was given up, which is why everything stops
            await task

    # Parts

    def _keep(self, name: str) -> None:
        self._keeping[name] = asyncio.ensure_future(self.parts[name].keep())

    async def _until_ready(self, name: str) -> None:
        """Wait until a part is ready, or raise the error of any part."""
        ready = asyncio.ensure_future(self.parts[name].ready.wait())
        try:
            waiting = [ready, *self._keeping.values()]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            ready.cancel()

    def _variables(self, name: str) -> dict[str, str]:
        """The variables of a part that override the file, which it reads itself."""
        settings = self.settings
        own = dict((settings.own or {}).get(name, {}))
        if settings.file is not None:
            own["PENSTOCK_CONFIG"] = str(settings.file.absolute())
        own["PENSTOCK_CATALOG"] = settings.tables.catalog
        if name == SERVER:
            own["PENSTOCK_CATALOG"] = settings.server.catalog or settings.tables.catalog
            own["PENSTOCK_PORT_FILE"] = str(self._sign(SERVER))
        elif name == INGEST:
            own["PENSTOCK_INGEST_PORT_FILE"] = str(self._sign(INGEST))
        if settings.tables.data_path:
            own["PENSTOCK_DATA_PATH"] = settings.tables.data_path
        return own

    def _jvm_variables(self, name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        if self._spark is not None:
            # The JVM has what [spark.conf] says; a session may not set most of it.
            found = {"PENSTOCK_SPARK": self._spark.url, "PENSTOCK_SPARK_CONF": "{}"}
        table = "INGEST" if name == INGEST else "TABLES"
        found[f"PENSTOCK_{table}_URL"] = self.server_url
        return found

    def _sign(self, name: str) -> Path | None:
        """The file in which a part writes where it listens."""
        given = {SERVER: self.settings.server.port_file, INGEST: self.settings.ingest.port_file}
        return (given[name] or self._signs / name) if name in given else None

    def _data(self) -> str:
        return f"data in {self.settings.server.data_dir}"

    # Readiness

    async def _server_ready(self) -> bool:
        said = _said(self._sign(SERVER), self.parts[SERVER].pid)
        if said is None:
            return False
        if not self.server_url:
            host, port = _split(said[0])
            self.server_url = self.settings.server_url(host, port)
            self.parts[SERVER].own["PENSTOCK_PORT"] = str(port)  # the others know this port
        return await is_server_ready(self.server_url, self.settings.ingest.api_key)

    async def _ingest_ready(self) -> bool:
        said = _said(self._sign(INGEST), self.parts[INGEST].pid)
        if said is None or len(said) < 2:
            return False
        self.edge, status = _split(said[0]), _split(said[1])
        self.status_url = f"http://{_joined(status)}"
        own = self.parts[INGEST].own
        own["PENSTOCK_INGEST_PORT"] = str(self.edge[1])
        own["PENSTOCK_INGEST_STATUS_PORT"] = str(status[1])
        return True

    async def _tables_ready(self) -> bool:
        key = self.settings.tables.api_key or self.settings.ingest.api_key
        state = await tables_state(self.server_url, key)
        return state is not None and state not in DOWN

    # Spark

    @property
    def _needs_jvm(self) -> bool:
        return self.settings.spark.remote is None and len(self.parts) > 1

    async def _start_jvm(self) -> None:
        if not self._needs_jvm:
            return
        from penstock.spark.jvm.embedded import start_spark

        start = partial(start_spark, self.settings.spark, self._spark_says)
        self._spark = await _not_waited_for(start)

    async def _keep_jvm(self) -> None:
        """Start another JVM when this one exits, and restart the parts that used it."""
        while not self._ends.is_set():
            spark = self._spark
            assert spark is not None
            await asyncio.to_thread(spark.wait)
            if self._ends.is_set():
                return
            self._say("spark   ended; starts again, and with it ingest and tables")
            spark.stop(0)
            await self._start_jvm()
            for name in (INGEST, TABLES):
                if name in self.parts:
                    self.parts[name].own |= self._jvm_variables(name)
                    self.parts[name].restart()

    def _spark_says(self, line: str) -> None:
        self._say(f"spark   {line}")


async def _not_waited_for(work: Callable[[], _T]) -> _T:
    """As `asyncio.to_thread`, except that a program which ends does not wait for the work.

    A start of Spark takes seconds, a first one a minute; its JVM ends with this process.
    """
    done: Future[_T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)


async def run_up(settings: UpSettings, *, say: Say, on_line: OnLine) -> None:
    """Run everything until SIGINT or SIGTERM; a second signal kills it at once."""
    up = Up(settings, say=say, on_line=on_line)
    stop = asyncio.Event()

    def take_signal() -> None:
        if stop.is_set():
            say("everything ends at once")
            up.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, take_signal)

    async def work() -> None:
        await up.start()
        await up.watch()

    working, stopping = asyncio.ensure_future(work()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        stop.set()  # from now on a signal kills
        await up.stop()
    with suppress(asyncio.CancelledError):
        await working


async def states(settings: UpSettings) -> dict[str, tuple[bool, str]]:
    """Whether each part runs where the settings say, with an explanation."""
    server, ingest = settings.server, settings.ingest
    url = settings.server_url(server.host, server.port)
    found: dict[str, tuple[bool, str]] = {}
    try:
        runs = await is_server_ready(url, ingest.api_key)
        found[SERVER] = runs, f"ready at {url}" if runs else f"not ready at {url}"
    except Untrusted as error:
        found[SERVER] = False, error.message
    if INGEST in settings.parts:
        status = await ingest_status(f"http://{_joined((ingest.status_host, ingest.status_port))}")
        where = _joined((ingest.host, ingest.port))
        found[INGEST] = status is not None, _ingest_words(status, where)
    if TABLES in settings.parts:
        state = await tables_state(url, settings.tables.api_key or ingest.api_key)
        text = "does not answer" if state is None else state.replace("_", " ")
        found[TABLES] = state is not None and state not in DOWN, text
    return found


def _ingest_words(status: dict[str, Any] | None, where: str) -> str:
    if status is None:
        return f"does not answer on {where}"
    pipeline = status["pipeline"]
    words = f"takes devices on {where}, {pipeline['behind']:,} messages not in the lake yet"
    return f"{words}, trouble: {pipeline['trouble']}" if pipeline["trouble"] else words


async def is_server_ready(url: str, api_key: str | None = None) -> bool:
    """Whether a server answers and has replayed its log; `Untrusted` if its certificate is not."""
    async with AsyncClient(_looking(url, api_key)) as client:
        try:
            await client.ready()
        except Unauthorized:  # with `probe_auth` a probe needs a key; any answer is enough
            return True
        except Untrusted as error:  # waiting does not help
            raise Untrusted(
                f"{error.message}; name the certificate's authority in SSL_CERT_FILE, and the "
                "server as its certificate does in url of [ingest]"
            ) from error
        except CallError:
            return False
    return True


async def ingest_status(url: str) -> dict[str, Any] | None:
    """The status of an edge; None if it does not answer."""
    try:
        return await asyncio.to_thread(fetch_status, url)
    except CallError:
        return None


async def tables_state(url: str, api_key: str | None = None) -> str | None:
    """The state of the tables of a server's warehouse; None if it does not answer."""
    async with AsyncClient(_looking(url, api_key)) as client:
        try:
            return str((await client.tables.health())["state"])
        except (Unauthorized, Forbidden):
            return "not told"
        except CallError:
            return None


def _looking(url: str, api_key: str | None) -> ClientSettings:
    return ClientSettings(url, api_key or None, timeout_s=LOOK_TIMEOUT_S)


def _said(sign: Path | None, pid: int | None) -> list[str] | None:
    """The addresses that a running part wrote; None until it has."""
    try:
        return sign.read_text(encoding="utf-8").split() if sign and pid is not None else None
    except FileNotFoundError:
        return None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _joined(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
