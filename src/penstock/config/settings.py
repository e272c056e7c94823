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
    port_file: Path | None = _setting(None, "File to write the bound host:port to.")
    api_keys: str = field(
        default="",
        repr=False,
        metadata={
            "doc": "Keys, `key[:scopes[:prefixes]]`, separated by commas; empty: no authentication."
        },
    )
    allow_insecure_no_auth: bool = _setting(False, "Listen beyond this machine without API keys.")
    allowed_origins: tuple[str, ...] = _setting(
        (),
        "Web origins, besides the server's own, whose pages may call it, such as "
        "`https://app.example`, separated by commas; `*`: any.",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        "Host names and addresses, besides localhost, that a server without keys answers to, "
        "separated by commas; `*`: any.",
    )
    probe_auth: bool = _setting(False, "Require a key for the health and ready probes too.")
    tls_cert: Path | None = _setting(
        None, "Certificate chain (PEM); enables TLS together with `tls_key`."
    )
    tls_key: Path | None = _setting(None, "Private key (PEM) of the certificate.")
    data_dir: Path = _setting(Path("topics-data"), "Data directory.")
    cold_dir: Path | None = _setting(
        None, "Directory of cold segments, if outside the data directory."
    )
    backup_dir: Path | None = _setting(
        None, "Directory for backups requested over HTTP; without it they are refused."
    )
    catalog: str = _setting(
        "",
        "Catalog of the stream tables, sqlite:<path> or postgres:<connection words>; default: "
        "warehouse.sqlite beside the data, if present.",
    )
    data_path: str = _setting(
        "", "Directory for the files of a new warehouse; default: beside the SQLite file."
    )
    store: str = _setting("segment", "Storage engine of the log.", choices=STORES)
    wal_shards: int = _setting(
        0,
        "Number of log partitions, fixed at creation; 0: keep the existing number, or one per core "
        "up to 8 for a new log.",
        least=0,
        most=65_536,
    )
    disk_sync_ms: int = _setting(
        100, "Longest time between the answer to a write of class `disk` and its sync.", least=1
    )
    log_segment_bytes: int = _setting(64 * MIB, "Size of a log file.", least=64 * KIB)
    segment_max_events: int = _setting(10_000, "Most records in a cold segment.", least=1)
    segment_max_bytes: int = _setting(64 * MIB, "Size of a cold segment.", least=1)
    segment_max_age_ms: int = _setting(
        3_600_000, "Age of a record at which its segment is closed even if not full.", least=1
    )
    hot_retain_segments: int = _setting(
        4, "Records of a topic kept in memory, counted in full segments."
    )
    hot_retain_bytes: int = _setting(0, "Most bytes of a topic kept in memory; 0: no limit.")
    max_hot_bytes: int = _setting(
        0,
        "Most bytes of records kept in memory, over all topics; older ones are read from disk. "
        "0: 256 MiB, or a quarter of the machine's memory if that is less.",
    )
    compact_log_bytes: int = _setting(
        64 * MIB,
        "Take a snapshot when the log since the last one is larger than this, or four times this "
        "while the server is busy.",
        least=1,
    )
    max_waiting_bytes: int = _setting(
        256 * MIB,
        "Bytes that may wait for the log, per partition, before writes are refused.",
        least=1,
    )
    max_log_wait_ms: int = _setting(
        2_000,
        "Estimated time to write what is waiting for the log above which writes are refused; "
        "0: no limit.",
    )
    max_body_bytes: int = _setting(64 * MIB, "Largest request body, after decompression.", least=1)
    max_ws_message_bytes: int = _setting(16 * MIB, "Largest WebSocket message.", least=1)
    max_topics: int = _setting(100_000, "Most topics; 0: no limit.")
    max_routers: int = _setting(10_000, "Most routers; 0: no limit.")
    max_watch_sessions: int = _setting(10_000, "Most watch sessions; 0: no limit.")
    max_sse_connections: int = _setting(10_000, "Most open push connections; 0: no limit.")
    max_sse_connections_per_key: int = _setting(
        1_000, "Most open push connections per key; 0: no limit."
    )
    max_inflight_per_key: int = _setting(1_000, "Most concurrent requests per key; 0: no limit.")
    max_total_bytes: int = _setting(0, "Most live bytes of data and meta; 0: no limit.")
    max_record_bytes: int = _setting(MIB, "Largest data and meta of a record.", least=1)
    max_meta_bytes: int = _setting(16 * KIB, "Largest meta of a record.", least=1)
    max_meta_keys: int = _setting(64, "Most keys in the meta of a record.", least=1)
    max_tag_bytes: int = _setting(256, "Longest tag.", least=1)
    max_node_bytes: int = _setting(128, "Longest node name.", least=1)
    max_idempotency_key_bytes: int = _setting(256, "Longest idempotency key.", least=1)
    max_batch_records: int = _setting(10_000, "Most records in one write.", least=1)
    max_watch_topics: int = _setting(256, "Most topics in one watch session.", least=1)
    session_ttl_ms: int = _setting(
        300_000, "How long a watch session without a stream is kept.", least=1
    )
    stream_stall_ms: int = _setting(
        300_000,
        "How long the peer of a stream or WebSocket may read nothing before it is disconnected.",
        least=1,
    )
    drain_ms: int = _setting(10_000, "How long requests may take to finish at shutdown.")
    test_min_heartbeat_ms: int = _setting(
        0, "For tests: shortest heartbeat, below the usual 1000 ms; 0: off."
    )
    log: str = _setting("info", "Log level.", choices=LOG_LEVELS)

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
    port_file: Path | None = _setting(None, "File to write the bound host:port to.")
    status_host: str = _setting("127.0.0.1", "Address of the port for status and metrics.")
    status_port: int = _setting(4101, "Port for status and metrics; 0: any free one.", most=65_535)
    url: str = _setting("http://127.0.0.1:4000", "URL of the topic server.")
    api_key: str = field(
        default="", repr=False, metadata={"doc": "API key, if the topic server requires one."}
    )
    node: str = _setting("", "Name in the list of parts; default: the host name.")
    raw_topic: str = _setting(RAW_TOPIC, "Topic for the messages.")
    reject_topic: str = _setting(REJECT_TOPIC, "Topic for rejected connections and messages.")
    tokens_file: Path | None = _setting(
        None, "File of device tokens, one per line: device and token, or * and token."
    )
    allow_insecure_no_tokens: bool = _setting(
        False, "Listen beyond this machine without device tokens."
    )
    tls_cert: Path | None = _setting(
        None, "Certificate chain (PEM); enables TLS together with `tls_key`."
    )
    tls_key: Path | None = _setting(None, "Private key (PEM) of the certificate.")
    window_bytes: int = _setting(
        512 * MIB, "Memory for all windows of the pipeline together.", least=MIB
    )
    growth: str = _setting("aimd", "How windows grow.", choices=GROWTHS)
    backlog_ms: int = _setting(
        2_000,
        "Estimated time to drain the raw topic above which devices have to wait; 0: no limit.",
    )
    max_connections: int = _setting(10_000, "Most device connections.", least=1)
    max_devices: int = _setting(100_000, "Most devices remembered.", least=1)
    max_message_bytes: int = _setting(
        256 * KIB,
        "Largest message of a device. Its record is a third larger: above 700 KiB, raise the "
        "server's max_record_bytes as well.",
        least=KIB,
        most=4 * MIB,
    )
    message_ms: int = _setting(
        30_000, "How long a message may take from its first fragment to its last.", least=1
    )
    idle_ms: int = _setting(
        300_000, "Silence after which a connection is considered lost.", least=1
    )
    drain_ms: int = _setting(10_000, "How long messages may take to become durable at shutdown.")
    log: str = _setting("info", "Log level.", choices=LOG_LEVELS)

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
        "", "Directory for the files of a new lake; default: beside the SQLite file."
    )
    api_key: str = field(
        default="", repr=False,
        metadata={"doc": "API key for topics that tables read, if their server requires one."},
    )  # fmt: skip
    url: str = _setting(
        "http://127.0.0.1:4000", "Server that the state of the tables is reported to; empty: none."
    )
    node: str = _setting("", "Name in the list of parts; default: the host name.")
    parallel: str = _setting(
        "on",
        "Refresh tables in parallel workers (on) or one by one in this process (off).",
        choices=PARALLEL,
    )
    max_concurrent_refreshes: int = _setting(4, "Most refreshes at the same time.", least=1)
    max_workers: int = _setting(
        4, "Worker permits, shared by all coordinators of the warehouse.", least=1
    )
    pool: str = _setting("", "Database of the permits; default: the catalog.")
    keep_snapshots: str = _setting(
        "",
        "How long snapshots of the lake are kept, such as 7d; 0s keeps all. Default: 1d in a lake "
        "created by Penstock, otherwise all.",
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

    peer_listen: str = _setting(
        "", "Address (host:port) to listen on for other nodes of the cluster."
    )
    advertise: str = _setting("", "Address (host:port) at which other nodes reach this one.")
    tls_cert: Path | None = _setting(None, "Certificate (PEM) of this node, shown to its peers.")
    tls_key: Path | None = _setting(None, "Private key (PEM) of that certificate.")
    tls_ca: Path | None = _setting(
        None, "Authority (PEM) that signs the nodes' certificates, and nothing else."
    )
    secret_file: Path | None = _setting(
        None,
        "File with a secret of at least 32 bytes shared by all nodes, instead of certificates.",
    )
    leaders: str = _setting(
        "spread",
        "Whether the leaders of partitions are spread over the nodes or kept together.",
        choices=("spread", "together"),
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
