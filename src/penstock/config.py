"""Settings of the server, ingest, tables and Spark: typed, checked once, from flags to file.

A flag wins over the environment, the environment over the file, the file over the default. In the
file the keys are in the tables `[server]`, `[ingest]`, `[tables]` and `[spark]`; in the
environment each is `PENSTOCK_`, `PENSTOCK_INGEST_`, `PENSTOCK_TABLES_` or `PENSTOCK_SPARK_` and its
name in capitals. An unknown name is refused with the nearest known one.

>>> settings = load({"PENSTOCK_HOST": "127.0.0.1:0", "PENSTOCK_MAX_BODY_BYTES": "1 MiB"})
>>> settings.host, settings.port, settings.max_body_bytes
('127.0.0.1', 0, 1048576)
"""

# ruff: noqa: RUF009 -- `_setting` is dataclasses.field with a text

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from penstock.client.settings import whole_url
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.raw_topic import RAW_TOPIC, REJECT_TOPIC, TopicNames
from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB, MIB, parse_bytes
from penstock.log.stores import KINDS as STORES
from penstock.protocol.limits import TopicLimits
from penstock.spark.options import SparkOptions, named, spark_options
from penstock.tables.core.schedule import parse_duration_ms

PREFIX: Final = "PENSTOCK_"
FILE_NAME: Final = "penstock.toml"
FILE_TABLE: Final = "server"
INGEST_TABLE: Final = "ingest"
TABLES_TABLE: Final = "tables"
SPARK_TABLE: Final = "spark"
DEFAULT_CATALOG: Final = "sqlite:warehouse.sqlite"
PARALLEL: Final = ("off", "dry_run", "on")
GROWTHS: Final = ("aimd", "cubic")
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "off")
OTHER_VARIABLES: Final = frozenset(
    {"PENSTOCK_CONFIG", "PENSTOCK_URL", "PENSTOCK_API_KEY", "PENSTOCK_CA_FILE",
     "PENSTOCK_RUNNER", "PENSTOCK_RUNNER_OPTIONS", "PENSTOCK_SPARK",
     "PENSTOCK_COMPILE", "PENSTOCK_REWRITE", "PENSTOCK_RUNS", "PENSTOCK_SEED"}
)  # fmt: skip
"""Variables with our prefix that are not settings: file path, clients, engine, tests."""

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off", ""})


def _setting(default: Any, doc: str, *, least: int = 0, most: int | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least, "most": most})


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
        "", "Warehouse of stream tables, sqlite:<path> or postgres:<words>; none: no tables."
    )
    data_path: str = _setting(
        "", "Where a new warehouse keeps its files; beside the SQLite file if not said."
    )
    store: str = _setting("segment", "Where the log rests: segment, rocksdb, sqlite or memory.")
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
    log: str = _setting("info", "What is logged: debug, info, warning, error or off.")

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_bounds(setting.name, getattr(self, setting.name), setting.metadata)
        _check_choice("store", self.store, STORES)
        _check_choice("log", self.log, LOG_LEVELS)
        if self.catalog and not self.catalog.startswith(("sqlite:", "postgres:")):
            raise Rejected(
                f"expected catalog as sqlite:<path> or postgres:<words>, found {self.catalog!r}"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Rejected("expected both tls_cert and tls_key or neither, found one of them")
        if not (is_loopback(self.host) or self.has_keys or self.allow_insecure_no_auth):
            raise Rejected(
                f"expected API keys for a server that listens on {self.host}, found none: set "
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
    growth: str = _setting("aimd", "How windows grow: aimd or cubic.")
    max_connections: int = _setting(10_000, "Connections of devices.", least=1)
    max_devices: int = _setting(100_000, "Devices that are remembered.", least=1)
    max_message_bytes: int = _setting(
        256 * KIB, "A message of a device.", least=KIB, most=700 * KIB
    )
    message_ms: int = _setting(
        30_000, "How long a message may take from its first fragment to its last.", least=1
    )
    idle_ms: int = _setting(300_000, "Silence after which a connection is taken for lost.", least=1)
    drain_ms: int = _setting(10_000, "How long messages may take to be durable at shutdown.")
    log: str = _setting("info", "What is logged: debug, info, warning, error or off.")

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_bounds(setting.name, getattr(self, setting.name), setting.metadata)
        object.__setattr__(self, "url", whole_url(self.url))
        _check_choice("growth", self.growth, GROWTHS)
        _check_choice("log", self.log, LOG_LEVELS)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Rejected("expected both tls_cert and tls_key or neither, found one of them")
        open_to_all = not (is_loopback(self.host) or self.allow_insecure_no_tokens)
        if open_to_all and self.tokens_file is None:
            raise Rejected(
                f"expected device tokens for an edge that listens on {self.host}, found none: set "
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
    parallel: str = _setting("on", "Refresh side by side in workers: on, off or dry_run.")
    max_concurrent_refreshes: int = _setting(4, "Refreshes at the same time.", least=1)
    max_workers: int = _setting(4, "Permits of the cluster, shared by all coordinators.", least=1)
    pool: str = _setting("", "Address of the database of the permits; the catalog if not said.")
    keep_snapshots: str = _setting(
        "",
        "How long the lake's snapshots are kept, such as 7d; 0s keeps all. If not said: 1d in a "
        "lake that Penstock made, else all.",
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_bounds(setting.name, getattr(self, setting.name), setting.metadata)
        _check_choice("parallel", self.parallel, PARALLEL)
        _ = self.snapshot_retention_ms

    @property
    def snapshot_retention_ms(self) -> int | None:
        """`keep_snapshots` in milliseconds; None if not set."""
        return parse_duration_ms(self.keep_snapshots) if self.keep_snapshots else None


_KINDS: Final[dict[str, type[Any]]] = {
    FILE_TABLE: Settings, INGEST_TABLE: IngestSettings, TABLES_TABLE: TablesSettings,
    SPARK_TABLE: SparkOptions,
}  # fmt: skip
_PREFIXES: Final = {
    FILE_TABLE: PREFIX, INGEST_TABLE: f"{PREFIX}INGEST_", TABLES_TABLE: f"{PREFIX}TABLES_",
    SPARK_TABLE: f"{PREFIX}SPARK_",
}  # fmt: skip
_FIELDS_OF: Final = {
    table: {setting.name: setting for setting in fields(kind)} for table, kind in _KINDS.items()
}
_FIELDS: Final = _FIELDS_OF[FILE_TABLE]


def load(
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings from flags, environment and file, in this order of precedence.

    Without `environ` the process's environment is used. Without `file` the variable PENSTOCK_CONFIG
    names it; otherwise `penstock.toml` is used if it is in the current directory.
    """
    return Settings(**_merged(FILE_TABLE, environ, file, flags))


def load_ingest(
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> IngestSettings:
    """As `load`, for the ingest edge.

    >>> load_ingest({"PENSTOCK_INGEST_PORT": "0", "PENSTOCK_PORT": "1"}).port
    0
    """
    return IngestSettings(**_merged(INGEST_TABLE, environ, file, flags))


def load_tables(
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> TablesSettings:
    """As `load`, for stream tables; PENSTOCK_CATALOG and PENSTOCK_DATA_PATH count for them too.

    >>> load_tables({"PENSTOCK_CATALOG": "sqlite:a"}).catalog
    'sqlite:a'
    """
    environ = os.environ if environ is None else environ
    near = {name: environ.get(variable(name, TABLES_TABLE)) or environ.get(variable(name))
            for name in ("catalog", "data_path")}  # fmt: skip
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    return TablesSettings(**_merged(TABLES_TABLE, environ, file, near | given))


def load_spark(
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
    place: str | None = None,
) -> SparkOptions:
    """As `load`, for Spark; `place` is a server that runs or a master, and counts before both.

    >>> load_spark({"PENSTOCK_SPARK_CONF": '{"spark.cores.max": 4}'}, place="local[2]").conf
    {'spark.cores.max': '4'}
    """
    found = spark_options(_merged(SPARK_TABLE, environ, file, named(place)))
    if place and found.remote and not named(place).get("remote"):
        found = replace(found, remote=None)  # the file's server, although a master was requested
    for name, setting in _FIELDS_OF[SPARK_TABLE].items():
        _check_bounds(name, getattr(found, name), setting.metadata)
    return found


def _merged(
    table: str,
    environ: Mapping[str, str] | None,
    file: Path | None,
    flags: Mapping[str, Any] | None,
) -> dict[str, Any]:
    environ = os.environ if environ is None else environ
    chosen = file or (Path(environ["PENSTOCK_CONFIG"]) if environ.get("PENSTOCK_CONFIG") else None)
    merged: dict[str, Any] = {}
    for layer in (
        from_file(chosen or Path(FILE_NAME), must_exist=chosen is not None, table=table),
        from_environment(environ, table=table),
        _split_host({key: value for key, value in (flags or {}).items() if value is not None}),
    ):
        merged |= layer
    kinds = {name: str(setting.type) for name, setting in _FIELDS_OF[table].items()}
    return {key: _parse(key, value, kinds[key]) for key, value in merged.items()}


def from_file(path: Path, *, must_exist: bool = True, table: str = FILE_TABLE) -> dict[str, Any]:
    """The keys of a table of a TOML file, all known."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise Rejected(f"expected a settings file, found none at {path}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"expected a settings file that can be read at {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise Rejected(f"expected TOML in {path}, found an error: {error}") from error
    for name, found in document.items():
        _check_table(path, name, found)
    return _split_host(document.get(table, {}))


def _check_table(path: Path, name: str, found: Any) -> None:
    """Refuse an unknown table or key; for a key outside of a table, name the right table."""
    if name not in _KINDS:
        homes = " or ".join(f"[{kind}]" for kind in _KINDS if name in _FIELDS_OF[kind])
        if homes:
            raise Rejected(f"{path}: expected {name} in a table: move it into {homes}")
        raise Rejected(f"{path}: {_unknown('table', name, [*_KINDS, *_FIELDS])}")
    if not isinstance(found, dict):
        raise Rejected(f"{path}: expected [{name}] to be a table, found {found!r}")
    for key in found:
        if key not in _FIELDS_OF[name]:
            raise Rejected(f"{path}: {_unknown('setting', key, _FIELDS_OF[name])}")


def from_environment(environ: Mapping[str, str], *, table: str = FILE_TABLE) -> dict[str, Any]:
    """The settings of a table in the environment, all known."""
    known = {variable(name, other): (other, name) for other in _KINDS for name in _FIELDS_OF[other]}
    found: dict[str, Any] = {}
    for name, value in environ.items():
        if name in known:
            whose, key = known[name]
            if whose == table:
                found[key] = value
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            raise Rejected(_unknown("variable", name, known))
    return _split_host(found)


def variable(name: str, table: str = FILE_TABLE) -> str:
    """The environment variable of a setting."""
    return f"{_PREFIXES[table]}{name.upper()}"


def described(table: str = FILE_TABLE) -> list[tuple[str, str, str]]:
    """Every setting of a table for the reference: its name, its default, what it is for."""
    return [
        (
            setting.name,
            "" if setting.default in (None, MISSING, "", ()) else str(setting.default),
            setting.metadata["doc"],
        )
        for setting in _FIELDS_OF[table].values()
    ]


def child_environ(own: Mapping[str, str], *, inherit: bool = True) -> dict[str, str]:
    """The environment of a child process; without `inherit`, our own variables are removed."""
    kept = {key: text for key, text in os.environ.items() if inherit or not key.startswith(PREFIX)}
    return {**kept, **own}


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine; False for names except localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _split_host(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose host may include the port, which is used unless a port is set as well."""
    found = dict(layer)
    host = found.get("host")
    if isinstance(host, str):
        name, colon, port = host.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if colon and not bracketed and (":" not in name or name.endswith("]")):
            found["host"] = name
            found.setdefault("port", port)
        found["host"] = found["host"].strip("[]")
    return found


def _parse(name: str, value: Any, kind: str) -> Any:
    if kind == "bool":
        return _parse_bool(name, value)
    if kind.startswith("int"):
        return _parse_int(name, value)
    if kind.startswith("tuple"):
        return _parse_words(name, value)
    if kind.startswith("Mapping"):
        return dict(_parse_mapping(name, value))
    if not isinstance(value, str | Path):
        raise Rejected(f"expected {name} to be text, found {value!r}")
    if kind.startswith("Path"):
        return Path(value) if str(value) or kind == "Path" else None
    return str(value)


def _parse_mapping(name: str, value: Any, within: str = "") -> Iterator[tuple[str, str]]:
    """Names and strings; nested tables, made by dots in a TOML file's names, are flattened."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise Rejected(f"expected {name} to be a JSON object, found: {error}") from error
    if not isinstance(value, Mapping):
        raise Rejected(f"expected {name} to be a table, found {value!r}")
    for key, found in value.items():
        if isinstance(found, Mapping):
            yield from _parse_mapping(name, found, f"{within}{key}.")
        elif isinstance(found, str | int | float):
            text = str(found).lower() if isinstance(found, bool) else str(found)
            yield f"{within}{key}", text
        else:
            raise Rejected(f"expected {name}.{within}{key} to be text, found {found!r}")


def _parse_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise Rejected(f"expected {name} to be true or false, found {value!r}")


def _parse_int(name: str, value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            return parse_bytes(value) if name.endswith("_bytes") else int(value)
        except (ValueError, Rejected):
            pass
    raise Rejected(f"expected {name} to be a whole number, found {value!r}")


def _parse_words(name: str, value: Any) -> tuple[str, ...]:
    """Words, as a list or joined by commas."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise Rejected(f"expected {name} to be a list of texts, found {value!r}")
    return tuple(word.strip() for word in words if word.strip())


def _check_bounds(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if type(value) is not int:
        return
    least, most = metadata["least"], metadata["most"]
    if value < least or (most is not None and value > most):
        span = f"at least {least}" if most is None else f"from {least} to {most}"
        raise Rejected(f"expected {name} {span}, found {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Rejected(f"expected {name} to be one of {', '.join(choices)}, found {value!r}")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: suggests the nearest known one, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"expected a known {what}, found {name}{hint}"
