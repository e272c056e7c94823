"""The topic server as a whole: store, engine, application and listener, from start to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

import penstock
from penstock.app.cluster import (
    ServedCluster,
    check_body_bytes,
    check_is_member,
    node_options,
    read_cluster_file,
)
from penstock.app.process import (
    set_up_interpreter,
    set_up_logging,
    tls_context,
    write_atomically,
)
from penstock.cluster.node import group_options
from penstock.cluster.roster import ClusterFile
from penstock.config import DEFAULT_CATALOG, WILDCARDS, ClusterSettings, Settings
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Corrupt, Rejected
from penstock.kernel.system import SystemClock
from penstock.kernel.units import MIB
from penstock.log.journal import partitions_of
from penstock.log.store import LogStore
from penstock.log.stores import open_store
from penstock.protocol.errors import MemberLost
from penstock.protocol.routes import is_write
from penstock.raft.members import Named
from penstock.server.api.app import TopicApplication
from penstock.server.api.auth import CapLimits, Caps, KeyRing, parse_keys
from penstock.server.api.call import Context
from penstock.server.api.errors import Hiding
from penstock.server.api.gate import Gate
from penstock.server.api.sessions import Authenticator
from penstock.server.api.warehouse import TablesDesk, WarehousePlace
from penstock.server.http.listener import Listener
from penstock.server.http.message import TransportLimits
from penstock.server.http.origins import Origins
from penstock.server.live.hub import Hub
from penstock.server.live.twins import Identity, Twins
from penstock.server.push.watching import WatcherSessions
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from penstock.topics.persist.data_dir import check_log_is_there
from penstock.topics.persist.segments import SealOptions
from penstock.web.pages import read_dashboard

if TYPE_CHECKING:
    from penstock.app.tables import Warehouse

SHARDS_MAX: Final = 8
HOT_BYTES_MAX: Final = 256 * MIB
"""The default memory for records, if the machine has four times as much."""

CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

SLOW_S: Final = 1.0
"""How long a start or a stop may take before the terminal shows a message."""

BOOT_BYTES: Final = 8
"""Random bytes that tell one start of the server from another."""

WAREHOUSE_FILE: Final = DEFAULT_CATALOG.partition(":")[2]
LOG_DIR: Final = "log"
"""The log's directory in the data directory."""

_LOGGER: Final = logging.getLogger("penstock")

Say = Callable[[str], None]
OnProgress = Callable[[float], None]


def serve(
    settings: Settings,
    *,
    say: Say,
    on_progress: OnProgress | None = None,
    cluster: ClusterSettings | None = None,
) -> None:
    """Run the server until SIGINT or SIGTERM; a second signal ends it at once.

    `say` gets the lines for a person at the terminal; `on_progress` how much of the log has been
    replayed, 0 to 1.
    """
    server = Server(settings, cluster=cluster)
    set_up_logging(settings.log)
    set_up_interpreter()
    _take_descriptors()
    uvloop.run(_run(server, say, on_progress))


def _take_descriptors() -> None:
    """Raise the limit of open files to the maximum: the default is too low for many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(server: Server, say: Say, on_progress: OnProgress | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _take_signal, server, stop)
    host, port = await server.listen()
    opening = asyncio.ensure_future(server.open(on_progress))
    stopping = asyncio.ensure_future(stop.wait())
    near = _url(server.settings, host, port)
    waiting = loop.call_later(SLOW_S, say, f"penstock reads its log; until then {near} answers 503")
    await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        if not opening.done():
            opening.cancel()
        with suppress(asyncio.CancelledError):
            await opening
            # Not earlier: a start may fail after the port is open.
            say(describe(server.settings, host, port, server.keys))
        await stopping
        say("penstock ends: no new connections, requests under way are finished")
    finally:
        stopping.cancel()
        stop.set()
        await server.close(partial(say, "some requests take long: a second signal ends it now"))


def _take_signal(server: Server, stop: asyncio.Event) -> None:
    """The first signal asks for a graceful stop; the second stops at once."""
    if stop.is_set():
        server.hurry()
    stop.set()


class Server:
    """One topic server on a running loop: `listen`, `open`, and finally `close`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        cluster: ClusterSettings | None = None,
    ) -> None:
        self.settings = settings
        self.cluster: ServedCluster | None = None
        self._cluster_settings = cluster or ClusterSettings()
        self.clock: Clock = clock or SystemClock()
        self.keys: KeyRing | None = parse_keys(settings.api_keys)
        self._auth = Authenticator(self.keys, self.clock)
        self._gate = Gate(self.clock, self._auth, probe_auth=settings.probe_auth)
        limits = TransportLimits(
            body_bytes_max=settings.max_body_bytes,
            websocket_message_bytes_max=settings.max_ws_message_bytes,
            stream_stall_s=settings.stream_stall_ms / 1e3,
        )
        self._listener = Listener(
            self._gate,
            limits,
            overlaps=is_write,
            check_head=self._gate.check_head,
            origins=origins_of(settings),
            tls=tls_context(settings.tls_cert, settings.tls_key),
        )
        self._store: LogStore | None = None
        self.engine: Engine | None = None
        self.application: TopicApplication | None = None
        self.tables: TablesDesk | None = None
        self._hurried = asyncio.Event()

    async def listen(self) -> tuple[str, int]:
        """Open the port; health answers from now on, everything else says that it is not ready."""
        settings = self.settings
        try:
            return await self._listener.start(settings.host, settings.port)
        except OSError as error:
            raise Rejected(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
                "choose another host or port, or end what listens there"
            ) from error

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._listener.address

    async def open(self, on_progress: OnProgress | None = None) -> None:
        """Lock the log, write the port file, replay the log, then serve."""
        # Only once the log is locked: the port file may belong to a running server that holds it.
        tell = partial(_tell_port, self.settings.port_file, *self.address)
        try:
            file = self._cluster_file()
        except Corrupt as error:  # others go on without it, and it says why and what to do
            _LOGGER.error("this node serves nothing and does not vote: %s", error.message)
            self._gate.refusal = MemberLost(error.message)
            tell()
            return
        engine = self.engine = await self._open_log(file, tell)
        if file is not None:
            await self._join(file, engine)
        context = self._context(engine)
        context.live = Hub(Twins(context, self._identity()))
        self.application = TopicApplication(context)
        context.started_ms = self._gate.started_ms
        self._gate.application = self.application
        await self._replay(engine, on_progress)
        await context.events.open()
        self.application.open()
        self._listener.use(self.application)
        if self.cluster is not None:
            self.cluster.application = self.application

    async def _open_log(self, file: ClusterFile | None, tell: Callable[[], None]) -> Engine:
        """Lock and open the log; the engine on it has not replayed it yet."""
        settings, loop = self.settings, asyncio.get_running_loop()
        with telling_of_salvage(settings):
            self._store = await loop.run_in_executor(None, _open_store, settings, tell)
        if settings.store != "segment":
            tell()
        options = _engine_options(settings, self._store, file)
        return Engine(self._store, options, clock=self.clock)

    def _context(self, engine: Engine) -> Context:
        """What all handlers share."""
        settings = self.settings
        return Context(
            engine,
            self.clock,
            Caps(
                CapLimits(
                    settings.max_sse_connections,
                    settings.max_sse_connections_per_key,
                    settings.max_inflight_per_key,
                )
            ),
            WatcherSessions(
                new_wid, sessions_max=settings.max_watch_sessions, ttl_ms=settings.session_ttl_ms
            ),
            self._auth,
            settings.probe_auth,
            settings.heartbeat_ms_min,
            settings.max_watch_topics,
            settings.backup_dir,
            self._find_tables,
            hiding(settings),
            site=read_dashboard(),
            is_tls=settings.tls_cert is not None,
            cluster=self.cluster,
        )

    async def _replay(self, engine: Engine, on_progress: OnProgress | None) -> None:
        """Replay the log, and keep what that made out of garbage collections."""
        shown = asyncio.ensure_future(_show_progress(engine, on_progress)) if on_progress else None
        try:
            with telling_of_salvage(self.settings):
                await engine.open()
        finally:
            if shown is not None:
                shown.cancel()
        if on_progress is not None:
            on_progress(1.0)
        # The replayed objects are permanent: exclude them from garbage collections.
        gc.collect()
        gc.freeze()

    def _cluster_file(self) -> ClusterFile | None:
        """Which member of a cluster this node is; None if it is alone."""
        directory, wanted = self.settings.data_dir, self._cluster_settings.peer_listen
        file = None if self.settings.store == "memory" else read_cluster_file(directory)
        if file is None and wanted:
            raise Rejected(
                f"{directory} is of no cluster: make it one with `penstock cluster init`, or have "
                "it taken in by one with `penstock cluster add` or, in the place of a member whose "
                "directory is lost, `penstock cluster replace`"
            )
        if file is not None and not wanted:
            raise Rejected(
                f"{directory} is {file.member.name} of a cluster: say where its peers reach it "
                f"with --peer-listen, such as --peer-listen {file.member.address}"
            )
        if file is not None:
            check_is_member(directory, file)
            check_body_bytes(self.settings.max_body_bytes)
            _check_address(file.member, self._cluster_settings.advertise)
        return file

    async def _join(self, file: ClusterFile, engine: Engine) -> None:
        """Take part in the cluster."""
        settings = self._cluster_settings
        host, port = self.address
        if self.settings.host in WILDCARDS:  # clients reach it where its peers do
            host = file.member.address.rpartition(":")[0].strip("[]")
        url = _url(self.settings, host, port)
        options = node_options(settings, self.settings.data_dir, url)
        self.cluster = ServedCluster(file, options, clock=self.clock)
        self.cluster.node.bind(engine)
        await self.cluster.node.start(*settings.listens_on)

    def _identity(self) -> Identity:
        """What the dashboard says of this server."""
        host, port = self.address
        return Identity(
            penstock.__version__,
            secrets.token_hex(BOOT_BYTES),
            own_url(self.settings, host, port).partition("://")[2],
            self.clock.now_ms(),
        )

    def _find_tables(self) -> TablesDesk | None:
        """The warehouse, once there is one: it may be made while the server runs.

        It is opened on first use.
        """
        settings = self.settings
        if self.tables is None and (catalog := catalog_of(settings)):
            host, port = self.address
            url = own_url(settings, host, port)
            place = WarehousePlace(catalog, settings.data_path or None, url)
            self.tables = TablesDesk(place, partial(_open_warehouse, place))
        return self.tables

    async def close(self, on_slow: Callable[[], None] = lambda: None) -> None:
        """Stop gracefully: end streams, finish requests, drain routers, sync everything.

        `on_slow` is called if requests take long to finish, so that `hurry` would help.
        """
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_S, on_slow)
        try:
            await self._drain()
        finally:
            slow.cancel()
        if self.tables is not None:
            await loop.run_in_executor(None, self.tables.close)
        if self.cluster is not None:
            self.cluster.application = None
        if self.engine is not None:
            await self.engine.close()
        if self.cluster is not None:
            await self.cluster.node.stop()
        await self._listener.abort()
        if self._store is not None:
            self._store.close()

    def hurry(self) -> None:
        """Make `close` wait for no request: drop connections, close the log properly."""
        self._hurried.set()

    async def _drain(self) -> None:
        """Wait until requests are finished, up to the configured time or until `hurry`."""
        finishing = asyncio.ensure_future(self._finish_requests())
        hurrying = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait((finishing, hurrying), return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if finishing.done():
            finishing.result()
        else:
            finishing.cancel()
            await self._listener.abort()

    async def _finish_requests(self) -> None:
        span_s = self.settings.drain_ms / 1e3
        deadline_s = asyncio.get_running_loop().time() + span_s
        self._listener.stop_accepting()
        if self.application is not None:
            self.application.drain()
            await self.application.settle(span_s)
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        if not await self._listener.drain(left_s):
            _LOGGER.warning("some connections were still busy after %g s", span_s)


def catalog_of(settings: Settings) -> str:
    """The catalog that is named, or that of the warehouse beside the data; empty if neither."""
    beside = _beside(settings)
    return settings.catalog or (f"sqlite:{beside}" if beside.is_file() else "")


def _beside(settings: Settings) -> Path:
    return settings.data_dir.absolute().parent / WAREHOUSE_FILE


def origins_of(settings: Settings) -> Origins:
    """Whose pages may use the server, and under which host names.

    The address it is configured to listen on is one of them, because that is the one it reports.
    """
    hosts: list[str] | None = None
    if not settings.has_keys:
        listens_on = [] if settings.host in WILDCARDS else [settings.host.partition("%")[0]]
        hosts = [*settings.allowed_hosts, *listens_on]
    return Origins(
        allowed_origins=settings.allowed_origins,
        allowed_hosts=hosts,
        is_tls=settings.tls_cert is not None,
    )


def hiding(settings: Settings) -> Hiding:
    """Hides this server's paths in error texts."""
    kind, _, name = settings.catalog.partition(":")
    lake = {"": str(_beside(settings)), "sqlite": name}.get(kind, "")
    places: dict[str, list[Path | str | None]] = {
        "the data directory": [settings.data_dir],
        "the cold directory": [settings.cold_dir],
        "the backup directory": [settings.backup_dir],
        "the warehouse": [Path(lake) if lake else None, settings.data_path or None],
    }
    return Hiding(
        {
            word: [
                text
                for path in found
                if path is not None
                for text in (str(path), str(Path(path).absolute()), str(Path(path).resolve()))
            ]
            for word, found in places.items()
        }
    )


def own_url(settings: Settings, host: str, port: int) -> str:
    """The server's address for clients on its own machine."""
    near = WILDCARDS.get(host, host)
    return _url(settings, near, port)


def _url(settings: Settings, host: str, port: int) -> str:
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def describe(settings: Settings, host: str, port: int, keys: KeyRing | None) -> str:
    """The line that says where the server and its data are, and whether it has keys."""
    where = "in memory only" if settings.store == "memory" else f"in {settings.data_dir}"
    auth = "off: every client may do everything" if keys is None else f"on: {len(keys)} keys"
    line = (
        f"penstock {penstock.__version__} listens on {_url(settings, host, port)} · "
        f"data {where} ({settings.store}) · auth {auth} · "
        f"dashboard {own_url(settings, host, port)}/"
    )
    if keys is None and settings.host in WILDCARDS and not settings.allowed_hosts:
        line += " · answers to localhost only: --allowed-host adds the names that clients use"
    return line


def _check_address(member: Named, advertised: str) -> None:
    """Refuse an address that is not the one by which the other nodes know this one."""
    if advertised not in ("", member.address):
        raise Rejected(
            f"{member.name} is at {member.address} for its cluster, not at {advertised}: leave "
            "--advertise out, or move it with `penstock cluster replace`"
        )


def new_wid() -> str:
    """The id of a watch session; not guessable."""
    return "wid_" + urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


@contextmanager
def telling_of_salvage(settings: Settings) -> Iterator[None]:
    """Add a hint about `penstock salvage` to errors about damage."""
    try:
        yield
    except Corrupt as error:
        raise Corrupt(
            f"{error.message}; to see what can still be read, and to save it: "
            f"penstock salvage {settings.data_dir}",
            **error.detail,
        ) from error


def _tell_port(path: Path | None, host: str, port: int) -> None:
    if path is None:
        return
    try:
        write_atomically(path, f"{host}:{port}\n")
    except OSError as error:
        raise Rejected(f"cannot write the port file {path}: {error}") from error


def _engine_options(settings: Settings, store: LogStore, file: ClusterFile | None) -> EngineOptions:
    made_with = partitions_of(store) or (file.partitions if file is not None else 0)
    return EngineOptions(
        group=group_options(file) if file is not None else None,
        partitions=settings.wal_shards or made_with or min(os.cpu_count() or 1, SHARDS_MAX),
        limits=settings.topic_limits(),
        disk_sync_ms=settings.disk_sync_ms,
        waiting_bytes_max=settings.max_waiting_bytes,
        log_wait_ms_max=settings.max_log_wait_ms,
        data_dir=None if settings.store == "memory" else settings.data_dir,
        identity=secrets.randbits(52),
        hot_bytes_max=settings.max_hot_bytes or min(HOT_BYTES_MAX, _machine_bytes() // 4),
        cold_dir=settings.cold_dir,
        compact_bytes_min=settings.compact_log_bytes,
        seal=SealOptions(
            segment_records_max=settings.segment_max_events,
            segment_bytes_max=settings.segment_max_bytes,
            segment_age_ms_max=settings.segment_max_age_ms,
            hot_segments=settings.hot_retain_segments,
            hot_bytes_max=settings.hot_retain_bytes,
        ),
    )


def _machine_bytes() -> int:
    """The memory of the machine, or of the part of it that this process may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            found.append(int(path.read_text(encoding="ascii")))
    return min(found)


def _open_store(settings: Settings, on_held: Callable[[], None]) -> LogStore:
    """Open the log. The segment store reads much of it here, and so detects a lock early."""
    options: dict[str, Any] = {}
    if settings.store == "segment":
        options = {
            "segment_bytes": settings.log_segment_bytes,
            "on_held": on_held,
            "isolate_damage": True,
        }
    try:
        if settings.store != "memory":
            settings.data_dir.mkdir(parents=True, exist_ok=True)
            check_log_is_there(settings.data_dir)
        return open_store(settings.store, settings.data_dir / LOG_DIR, **options)
    except OSError as error:
        raise Rejected(f"cannot use {settings.data_dir} as the data directory: {error}") from error


async def _show_progress(engine: Engine, on_progress: OnProgress) -> None:
    while True:
        on_progress(engine.replay_progress)
        await asyncio.sleep(0.1)


def _open_warehouse(place: WarehousePlace) -> Warehouse:
    # Imported here: a server without tables does not need Arrow's readers.
    from penstock.app.tables import Warehouse

    return Warehouse.open(place.catalog, place.data_path)
