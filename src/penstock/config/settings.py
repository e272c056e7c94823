"""The settings of server, cluster, ingest and tables: typed, and checked where they are made."""

# ruff: noqa: RUF009 -- `_setting` is dataclasses.field with a text

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from penstock.client.settings import whole_url
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.raw_topic import RAW_TOPIC, REJECT_TOPIC, TopicNames
from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB, MIB
from penstock.log.stores import KINDS as STORES
from penstock.protocol.limits import TopicLimits
from penstock.tables.core.schedule import parse_duration_ms

PREFIX: Final = "PENSTOCK_"
DEFAULT_CATALOG: Final = "sqlite:warehouse.sqlite"
PARALLEL: Final = ("off", "dry_run", "on")
GROWTHS: Final = ("aimd", "cubic")
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "off")


def _setting(
    default: Any,
    doc: str,
    *,
    least: int = 0,
    most: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    bounds = {"least": least, "most": most, "choices": choices}
    return field(default=default, metadata={"doc": doc, **bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the topic server. 0 turns a limit off where its text says so."""

    host: str = _setting("127.0.0.1", "Address to listen on; `host:port` sets both.")
    port: int = _setting(4000, "Port to listen on; 0 takes any free one.", most=65_535)
    port_file: Path | None = _setting(None, "File that gets the bound host:port.")
    api_keys: str = field(
        default="",
        repr=False,
        metadata={"doc": "Keys, `key[:scopes[:prefixes]]`, joined by commas; none: auth is off."},
    )
    allow_insecure_no_auth: bool = _setting(
        False, "Listen beyond this machine although there are no keys."
    )
    allowed_origins: tuple[str, ...] = _setting(
        (),
        "Web origins beside the server's own whose pages may use it, such as "
        "`https://app.example`, joined by commas; `*`: any.",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        "Names and addresses beside localhost and loopback under which a server without keys "
        "answers, joined by commas; `*`: any.",
    )
    probe_auth: bool = _setting(False, "Ask for a key on the health and ready probes too.")
    tls_cert: Path | None = _setting(None, "Certificate chain (PEM); with `tls_key` it turns on.")
    tls_key: Path | None = _setting(None, "Private key (PEM) of the certificate.")
    data_dir: Path = _setting(Path("topics-data"), "Directory of all data.")
    cold_dir: Path | None = _setting(None, "Directory of cold segments, if elsewhere.")
    backup_dir: Path | None = _setting(
        None, "Where backups asked for over HTTP may go; without it they are refused."
    )
    catalog: str = _setting(
        "",
        "Warehouse of stream tables, sqlite:<path> or postgres:<words>; if not said, "
        "warehouse.sqlite beside the data if it is there.",
    )
    data_path: str = _setting(
        "", "Where a new warehouse keeps its files; beside the SQLite file if not said."
    )
    store: str = _setting("segment", "Where the log rests.", choices=STORES)
    wal_shards: int = _setting(
        0,
        "Partitions of the log, fixed when it is made; 0: as it was made, or one for each core "
        "up to 8.",
        least=0,
        most=65_536,
    )
    disk_sync_ms: int = _setting(
        100, "How soon a record of class `disk` is synced after its answer.", least=1
    )
    log_segment_bytes: int = _setting(64 * MIB, "A file of the log.", least=64 * KIB)
    segment_max_events: int = _setting(10_000, "Records of a cold segment.", least=1)
    segment_max_bytes: int = _setting(64 * MIB, "Bytes of a cold segment.", least=1)
    segment_max_age_ms: int = _setting(
        3_600_000, "Age of a record at which its segment is made though not full.", least=1
    )
    hot_retain_segments: int = _setting(
        4, "Records of a topic that stay in memory, in segments' worth."
    )
    hot_retain_bytes: int = _setting(
        0, "Bytes of a topic that stay in memory at most; 0: however many."
    )
    max_hot_bytes: int = _setting(
        0,
        "Bytes of records that memory holds, of all topics together; the oldest beyond it are read "
        "from disk. 0: 256 MiB, or a quarter of the machine's memory if that is less.",
    )
    compact_log_bytes: int = _setting(
        64 * MIB,
        "Snapshots are made when the log since the last has more than this, or four times this "
        "while the server is busy.",
        least=1,
    )
    max_waiting_bytes: int = _setting(
        256 * MIB,
        "What may wait for the log, in each partition, before writes are refused.",
        least=1,
    )
    max_log_wait_ms: int = _setting(
        2_000,
        "How long what waits for the log may take to be written, as measured, before writes are "
        "refused; 0: any time.",
    )
    max_body_bytes: int = _setting(64 * MIB, "A request body, inflated.", least=1)
    max_ws_message_bytes: int = _setting(16 * MIB, "A WebSocket message.", least=1)
    max_topics: int = _setting(100_000, "Topics; 0: any number.")
    max_routers: int = _setting(10_000, "Routers; 0: any number.")
    max_watch_sessions: int = _setting(10_000, "Watch sessions; 0: any number.")
    max_sse_connections: int = _setting(10_000, "Open push connections; 0: any number.")
    max_sse_connections_per_key: int = _setting(
        1_000, "Open push connections of one key; 0: any number."
    )
    max_inflight_per_key: int = _setting(1_000, "Requests of one key at a time; 0: any number.")
    max_total_bytes: int = _setting(0, "Live bytes of data and meta; 0: any number.")
    max_record_bytes: int = _setting(MIB, "Data and meta of a record.", least=1)
    max_meta_bytes: int = _setting(16 * KIB, "Meta of a record.", least=1)
    max_meta_keys: int = _setting(64, "Keys in the meta of a record.", least=1)
    max_tag_bytes: int = _setting(256, "A tag.", least=1)
    max_node_bytes: int = _setting(128, "A node's name.", least=1)
    max_idempotency_key_bytes: int = _setting(256, "An idempotency key.", least=1)
    max_batch_records: int = _setting(10_000, "Records of one write.", least=1)
    max_watch_topics: int = _setting(256, "Topics of one watch session.", least=1)
    session_ttl_ms: int = _setting(
        300_000, "How long a watch session without a stream is kept.", least=1
    )
    stream_stall_ms: int = _setting(
        300_000,
        "How long the peer of a stream or WebSocket may take nothing before it is let go.",
        least=1,
    )
    drain_ms: int = _setting(10_000, "How long requests may take to end at shutdown.")
    test_min_heartbeat_ms: int = _setting(
        0, "For tests: a shorter least heartbeat than 1000 ms; 0: off."
    )
    log: str = _setting("info", "What is logged.", choices=LOG_LEVELS)

    def __post_init__(self) -> None:
        check(self)
        if self.catalog and not self.catalog.startswith(("sqlite:", "postgres:")):
            raise Rejected(
                f"catalog must be sqlite:<path> or postgres:<words>, not {self.catalog!r}"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Rejected("tls_cert and tls_key go together: set both, or neither")
        if not (is_loopback(self.host) or self.has_keys or self.allow_insecure_no_auth):
            raise Rejected(
                f"a server that listens on {self.host} needs API keys: set "
                f"{PREFIX}API_KEYS, listen on 127.0.0.1, or set {PREFIX}ALLOW_INSECURE_NO_AUTH=1"
            )

    @property
    def has_keys(self) -> bool:
        """Whether keys are required; commas alone are not keys."""
        return bool(self.api_keys.replace(",", " ").strip())

    @property
    def heartbeat_ms_min(self) -> int:
        """The shortest heartbeat a watcher may request."""
        return self.test_min_heartbeat_ms or 1_000

    def topic_limits(self) -> TopicLimits:
        """The limits that topics enforce."""
        return TopicLimits(
            record_bytes_max=self.max_record_bytes,
            meta_bytes_max=self.max_meta_bytes,
            meta_keys_max=self.max_meta_keys,
            tag_bytes_max=self.max_tag_bytes,
            node_bytes_max=self.max_node_bytes,
            key_bytes_max=self.max_idempotency_key_bytes,
            batch_records_max=self.max_batch_records,
            topics_max=self.max_topics,
            routers_max=self.max_routers,
            total_bytes_max=self.max_total_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """The settings of the ingest edge."""

    host: str = _setting("127.0.0.1", "Address to listen on for devices; `host:port` sets both.")
    port: int = _setting(4100, "Port for devices; 0 takes any free one.", most=65_535)
    port_file: Path | None = _setting(None, "File that gets the bound host:port.")
    status_host: str = _setting("127.0.0.1", "Address of the port for status and metrics.")
    status_port: int = _setting(4101, "Port for status and metrics; 0: any free one.", most=65_535)
    url: str = _setting("http://127.0.0.1:4000", "Where the topic server is.")
    api_key: str = field(
        default="", repr=False, metadata={"doc": "The key, where the topic server has keys."}
    )
    node: str = _setting("", "Its name in the list of parts; the machine's if not said.")
    raw_topic: str = _setting(RAW_TOPIC, "Topic of the messages.")
    reject_topic: str = _setting(REJECT_TOPIC, "Topic of what was wrong with connections.")
    tokens_file: Path | None = _setting(
        None, "File of device tokens, a line for each: device and token, or * and token."
    )
    allow_insecure_no_tokens: bool = _setting(
        False, "Listen beyond this machine although there are no tokens."
    )
    tls_cert: Path | None = _setting(None, "Certificate chain (PEM); with `tls_key` it turns on.")
    tls_key: Path | None = _setting(None, "Private key (PEM) of the certificate.")
    window_bytes: int = _setting(
        512 * MIB, "Memory of all windows of the pipeline together.", least=MIB
    )
    growth: str = _setting("aimd", "How windows grow.", choices=GROWTHS)
    backlog_ms: int = _setting(
        2_000, "How long the raw topic may take to drain before devices wait; 0: any time."
    )
    max_connections: int = _setting(10_000, "Connections of devices.", least=1)
    max_devices: int = _setting(100_000, "Devices that are remembered.", least=1)
    max_message_bytes: int = _setting(
        256 * KIB,
        "A message of a device. Its record is a third larger: above 700 KiB raise the server's "
        "max_record_bytes as well.",
        least=KIB,
        most=4 * MIB,
    )
    message_ms: int = _setting(
        30_000, "How long a message may take from its first fragment to its last.", least=1
    )
    idle_ms: int = _setting(300_000, "Silence after which a connection is taken for lost.", least=1)
    drain_ms: int = _setting(10_000, "How long messages may take to be durable at shutdown.")
    log: str = _setting("info", "What is logged.", choices=LOG_LEVELS)

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "url", whole_url(self.url))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Rejected("tls_cert and tls_key go together: set both, or neither")
        open_to_all = not (is_loopback(self.host) or self.allow_insecure_no_tokens)
        if open_to_all and self.tokens_file is None:
            raise Rejected(
                f"an edge that listens on {self.host} needs device tokens: set "
                f"{PREFIX}INGEST_TOKENS_FILE, listen on 127.0.0.1, or set "
                f"{PREFIX}INGEST_ALLOW_INSECURE_NO_TOKENS=1"
            )

    def edge_limits(self) -> EdgeLimits:
        """The limits that the edge enforces."""
        return EdgeLimits(
            connections_max=self.max_connections,
            devices_max=self.max_devices,
            fragment_bytes_max=min(self.max_message_bytes, EdgeLimits().fragment_bytes_max),
            message_bytes_max=self.max_message_bytes,
            partial_bytes_max=2 * self.max_message_bytes,
            buffered_bytes_max=min(EdgeLimits().buffered_bytes_max, self.window_bytes // 2),
            held_bytes_max=min(EdgeLimits().held_bytes_max, self.window_bytes // 8),
            message_ms=self.message_ms,
            idle_ms=self.idle_ms,
        )

    def topic_names(self) -> TopicNames:
        """The topics that the edge writes."""
        return TopicNames(self.raw_topic, self.reject_topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesSettings:
    """Where the warehouse of stream tables is, and how its tables are kept fresh."""

    catalog: str = _setting(
        DEFAULT_CATALOG, "Catalog of the lake: sqlite:<path> or postgres:<connection words>."
    )
    data_path: str = _setting(
        "", "Where a new lake keeps its files; beside the SQLite file if not said."
    )
    api_key: str = field(
        default="", repr=False,
        metadata={"doc": "The key for topics that tables read, where their server has keys."},
    )  # fmt: skip
    url: str = _setting(
        "http://127.0.0.1:4000", "The server that is told how the tables are; off if empty."
    )
    node: str = _setting("", "Its name in the list of parts; the machine's if not said.")
    parallel: str = _setting(
        "on", "Refresh side by side in workers, or one by one in this process.", choices=PARALLEL
    )
    max_concurrent_refreshes: int = _setting(4, "Refreshes at the same time.", least=1)
    max_workers: int = _setting(4, "Permits of the cluster, shared by all coordinators.", least=1)
    pool: str = _setting("", "Address of the database of the permits; the catalog if not said.")
    keep_snapshots: str = _setting(
        "",
        "How long the lake's snapshots are kept, such as 7d; 0s keeps all. If not said: 1d in a "
        "lake that Penstock made, else all.",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.url:
            object.__setattr__(self, "url", whole_url(self.url))
        _ = self.snapshot_retention_ms

    @property
    def snapshot_retention_ms(self) -> int | None:
        """`keep_snapshots` in milliseconds; None if not set."""
        return parse_duration_ms(self.keep_snapshots) if self.keep_snapshots else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How the nodes of a cluster reach and trust each other."""

    peer_listen: str = _setting("", "Address (host:port) to listen on for the cluster's nodes.")
    advertise: str = _setting(
        "", "Address (host:port) by which other nodes reach this one, as its cluster knows it."
    )
    tls_cert: Path | None = _setting(None, "This node's certificate (PEM), for its peers.")
    tls_key: Path | None = _setting(None, "Private key (PEM) of that certificate.")
    tls_ca: Path | None = _setting(
        None, "The authority (PEM) of the certificates of all nodes, and of nothing else."
    )
    secret_file: Path | None = _setting(
        None, "File of at least 32 bytes that all nodes share, in place of certificates."
    )
    leaders: str = _setting(
        "spread", "Where the leaders of partitions should be.", choices=("spread", "together")
    )

    def __post_init__(self) -> None:
        check(self)
        tls = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(tls) and not all(tls):
            raise Rejected("tls_cert, tls_key and tls_ca of a cluster go together: set all three")
        if not self.peer_listen:
            return
        host, _ = self.listens_on
        if not (is_loopback(host) or self.secret_file or all(tls)):
            raise Rejected(
                f"a node that listens for peers on {host} must know them: set "
                "--cluster-secret-file, or --cluster-tls-cert, --cluster-tls-key and "
                "--cluster-tls-ca, or listen on 127.0.0.1"
            )

    @property
    def listens_on(self) -> tuple[str, int]:
        """Host and port for peers."""
        host, colon, port = self.peer_listen.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 65_536):
            raise Rejected(f"expected peer_listen to be HOST:PORT, found {self.peer_listen!r}")
        return host.strip("[]"), int(port)


WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Addresses that stand for all interfaces, and a local address for each."""


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine; False for names except localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check(settings: Any) -> None:
    """Refuse a value outside of its setting's bounds or choices."""
    for setting in fields(settings):
        name, value, facts = setting.name, getattr(settings, setting.name), setting.metadata
        if type(value) is int:
            least, most = facts["least"], facts["most"]
            if value < least or (most is not None and value > most):
                span = f"at least {least}" if most is None else f"from {least} to {most}"
                raise Rejected(f"{name} must be {span}, not {value}")
        choices = facts.get("choices")
        if choices and value not in choices:
            raise Rejected(f"{name} must be one of {', '.join(choices)}, not {value!r}")
