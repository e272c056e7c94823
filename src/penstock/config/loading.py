"""Settings from flags, environment and file: the only reader of files and the environment.

A flag wins over the environment, the environment over the file, the file over the default. In the
file the keys are in the tables `[server]`, `[cluster]`, `[ingest]`, `[tables]` and `[spark]`; in
the environment each is `PENSTOCK_`, for tables other than the first with their name as in
`PENSTOCK_INGEST_`, and its name in capitals. An unknown name is refused with the nearest known one.

>>> settings = load({"PENSTOCK_HOST": "127.0.0.1:0", "PENSTOCK_MAX_BODY_BYTES": "1 MiB"})
>>> settings.host, settings.port, settings.max_body_bytes
('127.0.0.1', 0, 1048576)
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.config.settings import (
    PREFIX,
    ClusterSettings,
    IngestSettings,
    Settings,
    TablesSettings,
    check,
)
from penstock.kernel.errors import Rejected
from penstock.kernel.units import parse_bytes
from penstock.spark.options import SparkOptions, named, spark_options

FILE_NAME: Final = "penstock.toml"
FILE_TABLE: Final = "server"
CLUSTER_TABLE: Final = "cluster"
INGEST_TABLE: Final = "ingest"
TABLES_TABLE: Final = "tables"
SPARK_TABLE: Final = "spark"
OTHER_VARIABLES: Final = frozenset(
    {"PENSTOCK_CONFIG", "PENSTOCK_URL", "PENSTOCK_API_KEY", "PENSTOCK_CA_FILE",
     "PENSTOCK_RUNNER", "PENSTOCK_RUNNER_OPTIONS", "PENSTOCK_SPARK",
     "PENSTOCK_COMPILE", "PENSTOCK_REWRITE", "PENSTOCK_RUNS", "PENSTOCK_SEED"}
)  # fmt: skip
"""Variables with our prefix that are not settings: file path, clients, engine, tests."""

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off", ""})

_KINDS: Final[dict[str, type[Any]]] = {
    FILE_TABLE: Settings, CLUSTER_TABLE: ClusterSettings, INGEST_TABLE: IngestSettings,
    TABLES_TABLE: TablesSettings, SPARK_TABLE: SparkOptions,
}  # fmt: skip
_PREFIXES: Final = {
    FILE_TABLE: PREFIX, CLUSTER_TABLE: f"{PREFIX}CLUSTER_", INGEST_TABLE: f"{PREFIX}INGEST_",
    TABLES_TABLE: f"{PREFIX}TABLES_",
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


def load_cluster(
    environ: Mapping[str, str] | None = None,
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
) -> ClusterSettings:
    """As `load`, for a node of a cluster.

    >>> load_cluster({"PENSTOCK_CLUSTER_PEER_LISTEN": "127.0.0.1:4100"}).listens_on
    ('127.0.0.1', 4100)
    """
    return ClusterSettings(**_merged(CLUSTER_TABLE, environ, file, flags))


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
    flags: Mapping[str, Any] | None = None,
) -> SparkOptions:
    """As `load`, for Spark; `place` is a server that runs or a master, and counts before both.

    `conf` among the flags is added to that of the file and the environment.

    >>> load_spark({"PENSTOCK_SPARK_CONF": '{"spark.cores.max": 4}'}, place="local[2]").conf
    {'spark.cores.max': '4'}
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    more = given.pop("conf", {})
    found = spark_options(_merged(SPARK_TABLE, environ, file, named(place) | given))
    if more:
        found = replace(found, conf={**found.conf, **more})
    if place and found.remote and not named(place).get("remote"):
        found = replace(found, remote=None)  # the file's server, although a master was requested
    check(found)
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
            raise Rejected(f"there is no settings file {path}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"cannot read the settings file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise Rejected(f"{path} is not TOML: {error}") from error
    for name, found in document.items():
        _check_table(path, name, found)
    return _split_host(document.get(table, {}))


def _check_table(path: Path, name: str, found: Any) -> None:
    """Refuse an unknown table or key; for a key outside of a table, name the right table."""
    if name not in _KINDS:
        homes = " or ".join(f"[{kind}]" for kind in _KINDS if name in _FIELDS_OF[kind])
        if homes:
            raise Rejected(f"{path}: {name} stands in no table: move it into {homes}")
        raise Rejected(f"{path}: {_unknown('table', name, [*_KINDS, *_FIELDS])}")
    if not isinstance(found, dict):
        raise Rejected(f"{path}: [{name}] must be a table, not {found!r}")
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


class Described(NamedTuple):
    """A setting as flags and the reference show it."""

    name: str
    kind: str
    default: str
    """Empty if it has none."""
    doc: str
    choices: tuple[str, ...]


def described(table: str = FILE_TABLE) -> dict[str, Described]:
    """Every setting of a table, by name."""
    return {
        name: Described(
            name,
            str(setting.type),
            "" if setting.default in (None, MISSING, "", ()) else str(setting.default),
            setting.metadata["doc"],
            setting.metadata.get("choices", ()),
        )
        for name, setting in _FIELDS_OF[table].items()
    }


def child_environ(own: Mapping[str, str], *, inherit: bool = True) -> dict[str, str]:
    """The environment of a child process; without `inherit`, our own variables are removed."""
    kept = {key: text for key, text in os.environ.items() if inherit or not key.startswith(PREFIX)}
    return {**kept, **own}


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
        raise Rejected(f"{name} must be text, not {value!r}")
    if kind.startswith("Path"):
        return Path(value) if str(value) or kind == "Path" else None
    return str(value)


def _parse_mapping(name: str, value: Any, within: str = "") -> Iterator[tuple[str, str]]:
    """Names and strings; nested tables, made by dots in a TOML file's names, are flattened."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise Rejected(f"{name} is not a JSON object: {error}") from error
    if not isinstance(value, Mapping):
        raise Rejected(f"{name} must be a table, not {value!r}")
    for key, found in value.items():
        if isinstance(found, Mapping):
            yield from _parse_mapping(name, found, f"{within}{key}.")
        elif isinstance(found, str | int | float):
            text = str(found).lower() if isinstance(found, bool) else str(found)
            yield f"{within}{key}", text
        else:
            raise Rejected(f"{name}.{within}{key} must be text, not {found!r}")


def _parse_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise Rejected(f"{name} must be true or false, not {value!r}")


def _parse_int(name: str, value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            return parse_bytes(value) if name.endswith("_bytes") else int(value)
        except (ValueError, Rejected):
            pass
    raise Rejected(f"{name} must be a whole number, not {value!r}")


def _parse_words(name: str, value: Any) -> tuple[str, ...]:
    """Words, as a list or joined by commas."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise Rejected(f"{name} must be a list of texts, not {value!r}")
    return tuple(part.strip() for word in words for part in word.split(",") if part.strip())


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: suggests the nearest known one, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown {what} {name}{hint}"
