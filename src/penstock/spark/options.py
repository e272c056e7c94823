"""Where Spark runs and how much of the machine it may have."""

# ruff: noqa: RUF009 -- `_option` is dataclasses.field with a text

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from penstock.kernel.errors import Rejected

_MASTER: Final = re.compile(r"local(\[(\d+|\*)\])?|spark://.+:\d+|k8s://.+|yarn")


class Archive(StrEnum):
    """What to do about the class archive that makes a JVM start faster.

    USE takes one that is there, BUILD makes it first where it is missing, OFF does without.
    """

    USE = "use"
    BUILD = "build"
    OFF = "off"


def _option(default: Any, doc: str, *, least: int = 0) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least, "most": None})


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """An embedded Spark (`master`), or one that already runs (`remote`, as `sc://host:port`).

    In the settings file they stand in the table `[spark]`, with `conf` as `[spark.conf]`.
    """

    master: str = _option(
        "local",
        "Where tasks run: `local`, `local[n]`, `spark://host:port`, `k8s://…` or `yarn`. The "
        "driver is started here.",
    )
    remote: str | None = _option(
        None, "A running Spark Connect server, `sc://host:port`; no Spark is started then."
    )
    cores: int | None = _option(
        None,
        "Most tasks at the same time; default with `local`: the machine's cores. With `spark://` "
        "it sets `spark.cores.max`.",
        least=1,
    )
    memory_mb: int = _option(2_048, "Heap size of the JVM started here.", least=512)
    driver_host: str | None = _option(
        None,
        "Address at which executors reach the driver; default for `spark://`: this machine's "
        "address on the route to the master.",
    )
    python: str | None = _option(
        None, "Python of the executors, with Penstock installed; default: the path of this one."
    )
    conf: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"doc": "Spark's own settings; they override those that Penstock sets."},
    )
    cache_dir: Path | None = _option(None, "Directory for files made once for faster starts.")
    java_home: Path | None = _option(
        None, "Java to use; default: JAVA_HOME, then PATH, then the system's."
    )
    archive: Archive = _option(
        Archive.USE,
        "Class archive for faster starts: `use` an existing one, `build` it first, or `off`.",
    )
    plain_files: bool = _option(True, "Write local files without checksums and mode changes.")
    start_timeout_ms: int = _option(120_000, "Longest time for Spark to start.", least=1)

    def __post_init__(self) -> None:
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise Rejected(f"a remote Spark is 'sc://host:port', not {self.remote!r}")
        if not _MASTER.fullmatch(self.master):
            raise Rejected(
                "expected Spark as sc://host:port, or a master: local, local[n], spark://…, "
                f"k8s://… or yarn; found {self.master!r}"
            )
        if self.cores is not None and self.cores < 1:
            raise Rejected(f"cores must be at least 1, not {self.cores}")
        if self.memory_mb < 512:
            raise Rejected(f"Spark's JVM needs at least 512 MB, not {self.memory_mb}")

    @property
    def is_local(self) -> bool:
        """Whether tasks run inside the embedded JVM."""
        return self.remote is None and is_local(self.master)

    def master_url(self, machine_cores: int) -> str:
        """The master as Spark takes it."""
        if self.master != "local":
            return self.master
        return f"local[{self.cores or machine_cores}]"


def is_local(master: str) -> bool:
    """Whether a master is the driver's own JVM."""
    return master.startswith("local")


def named(place: str | None) -> dict[str, str]:
    """The option that an address stands for: a running server, or a master.

    >>> named("sc://h:15002"), named("spark://h:7077"), named(None)
    ({'remote': 'sc://h:15002'}, {'master': 'spark://h:7077'}, {})
    """
    if not place:
        return {}
    return {"remote": place} if place.startswith("sc://") else {"master": place}


def masters(master: str) -> Iterator[tuple[str, int]]:
    """Host and port of each standalone master that a URL names.

    >>> list(masters("spark://a:7077,b:7078")), list(masters("yarn"))
    ([('a', 7077), ('b', 7078)], [])
    """
    if master.startswith("spark://"):
        for part in master.removeprefix("spark://").split(","):
            host, _, port = part.rpartition(":")
            yield host.strip("[]"), int(port) if port.isdecimal() else 0


def spark_options(found: Mapping[str, Any]) -> SparkOptions:
    """Options as JSON has them; an unknown one is refused."""
    known = {field.name for field in fields(SparkOptions)}
    strangers = sorted(set(found) - known)
    if strangers:
        raise Rejected(
            f"Spark has no option {', '.join(strangers)}; options are {', '.join(sorted(known))}"
        )
    made = dict(found)
    for name in ("cache_dir", "java_home"):
        if made.get(name) is not None:
            made[name] = Path(made[name])
    if "archive" in made:
        made["archive"] = _archive(made["archive"])
    return SparkOptions(**made)


def _archive(word: str) -> Archive:
    try:
        return Archive(word)
    except ValueError:
        known = ", ".join(Archive)
        raise Rejected(f"archive must be one of {known}, not {word!r}") from None


def plain_options(options: SparkOptions) -> dict[str, Any]:
    """Options as JSON takes them, without those that were not set."""
    default = asdict(SparkOptions())
    found = {key: value for key, value in asdict(options).items() if value != default[key]}
    return {key: str(v) if isinstance(v, Path) else v for key, v in found.items()}
