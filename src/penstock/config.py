"""Settings of the server: typed, checked once, from flags, the environment and a file.

A flag wins over the environment, the environment over the file, the file over the default. In the
file the keys stand in the table `[server]`; in the environment each is `PENSTOCK_` and its name in
capitals. A name that nobody knows is refused with the nearest one that exists.

>>> settings = load({"PENSTOCK_HOST": "127.0.0.1:0", "PENSTOCK_MAX_BODY_BYTES": "1 MiB"})
>>> settings.host, settings.port, settings.max_body_bytes
('127.0.0.1', 0, 1048576)
"""

# ruff: noqa: RUF009 -- `_setting` is dataclasses.field with a text

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB, MIB, parse_bytes
from penstock.log.stores import KINDS as STORES
from penstock.topics.model import TopicLimits

PREFIX: Final = "PENSTOCK_"
FILE_NAME: Final = "penstock.toml"
FILE_TABLE: Final = "server"
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "off")
OTHER_VARIABLES: Final = frozenset(
    {"PENSTOCK_CONFIG", "PENSTOCK_URL", "PENSTOCK_TOKEN",
     "PENSTOCK_COMPILE", "PENSTOCK_REWRITE", "PENSTOCK_RUNS", "PENSTOCK_SEED"}
)  # fmt: skip
"""Variables with our prefix that are no setting: where the file is, the clients', the tests'."""

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off", ""})


def _setting(default: Any, doc: str, *, least: int = 0, most: int | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the topic server can be told. 0 turns a limit off where its text says so."""

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
    probe_auth: bool = _setting(False, "Ask for a key on the health and ready probes too.")
    tls_cert: Path | None = _setting(None, "Certificate chain (PEM); with `tls_key` it turns on.")
    tls_key: Path | None = _setting(None, "Private key (PEM) of the certificate.")
    data_dir: Path = _setting(Path("topics-data"), "Directory of all data.")
    cold_dir: Path | None = _setting(None, "Directory of cold segments, if elsewhere.")
    backup_dir: Path | None = _setting(
        None, "Where backups asked for over HTTP may go; without it they are refused."
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
    compact_log_bytes: int = _setting(
        64 * MIB, "Snapshots are made when the log since the last has more than this.", least=1
    )
    max_waiting_bytes: int = _setting(
        256 * MIB,
        "What may wait for the log, in each partition, before writes are refused.",
        least=1,
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
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Rejected("expected both tls_cert and tls_key or neither, found one of them")
        has_keys = bool(self.api_keys.replace(",", " ").strip())  # commas alone are no keys
        if not (is_loopback(self.host) or has_keys or self.allow_insecure_no_auth):
            raise Rejected(
                f"expected API keys for a server that listens on {self.host}, found none: set "
                f"{PREFIX}API_KEYS, listen on 127.0.0.1, or set {PREFIX}ALLOW_INSECURE_NO_AUTH=1"
            )

    @property
    def heartbeat_ms_min(self) -> int:
        """The shortest heartbeat a watcher may ask for."""
        return self.test_min_heartbeat_ms or 1_000

    def topic_limits(self) -> TopicLimits:
        """The limits that the topics themselves keep."""
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


_FIELDS: Final = {setting.name: setting for setting in fields(Settings)}


def load(
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of flags, environment and file, the earlier winning.

    Without `environ` the process's own counts. Without `file` the variable PENSTOCK_CONFIG names
    it; else `penstock.toml` counts if it is here.
    """
    environ = os.environ if environ is None else environ
    chosen = file or (Path(environ["PENSTOCK_CONFIG"]) if environ.get("PENSTOCK_CONFIG") else None)
    merged: dict[str, Any] = {}
    for layer in (
        from_file(chosen or Path(FILE_NAME), must_exist=chosen is not None),
        from_environment(environ),
        _split_host({key: value for key, value in (flags or {}).items() if value is not None}),
    ):
        merged |= layer
    return Settings(**{key: _parse(key, value) for key, value in merged.items()})


def from_file(path: Path, *, must_exist: bool = True) -> dict[str, Any]:
    """The keys of the table `[server]` of a TOML file, each known."""
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
    for name in document:
        if name != FILE_TABLE:
            raise Rejected(f"{path}: {_unknown('table', name, [FILE_TABLE, *_FIELDS])}")
    table = document.get(FILE_TABLE, {})
    if not isinstance(table, dict):
        raise Rejected(f"{path}: expected [{FILE_TABLE}] to be a table, found {table!r}")
    for name in table:
        if name not in _FIELDS:
            raise Rejected(f"{path}: {_unknown('setting', name, _FIELDS)}")
    return _split_host(table)


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings among the variables, each known."""
    known = {variable(name): name for name in _FIELDS}
    found: dict[str, Any] = {}
    for name, value in environ.items():
        if name in known:
            found[known[name]] = value
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            raise Rejected(_unknown("variable", name, known))
    return _split_host(found)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def described() -> list[tuple[str, str, str]]:
    """Every setting for the reference: its name, its default as text, what it is for."""
    return [
        (
            setting.name,
            "" if setting.default in (None, MISSING, "") else str(setting.default),
            setting.metadata["doc"],
        )
        for setting in fields(Settings)
    ]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone; a name other than localhost no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _split_host(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer whose host may carry the port, which counts unless the layer names one itself."""
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


def _parse(name: str, value: Any) -> Any:
    kind = str(_FIELDS[name].type)
    if kind == "bool":
        return _parse_bool(name, value)
    if kind == "int":
        return _parse_int(name, value)
    if not isinstance(value, str | Path):
        raise Rejected(f"expected {name} to be text, found {value!r}")
    if kind.startswith("Path"):
        return Path(value) if str(value) or kind == "Path" else None
    return str(value)


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
    """What to say of a name nobody knows: the nearest known one, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"expected a known {what}, found {name}{hint}"
