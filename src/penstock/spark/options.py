"""Where Spark runs and how much of the machine it may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from penstock.kernel.errors import Rejected

_MASTER: Final = re.compile(r"local(\[(\d+|\*)\])?|(spark|k8s)://.+|yarn")


class Archive(StrEnum):
    """What to do about the class archive that makes a JVM start faster.

    USE takes one that is there, BUILD makes it first where it is missing, OFF does without.
    """

    USE = "use"
    BUILD = "build"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """A Spark of our own (`master`), or one that runs already (`remote`, as `sc://host:port`).

    `cores` is how many tasks run at the same time where the master is `local`; None is as many as
    the machine has. `conf` goes over everything that Penstock sets.
    """

    master: str = "local"
    remote: str | None = None
    cores: int | None = None
    memory_mb: int = 2_048
    conf: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path | None = None
    java_home: Path | None = None
    archive: Archive = Archive.USE
    plain_files: bool = True
    start_timeout_ms: int = 120_000

    def __post_init__(self) -> None:
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise Rejected(f"expected a remote Spark as 'sc://host:port', found {self.remote!r}")
        if not _MASTER.fullmatch(self.master):
            raise Rejected(
                "expected the master to be local, local[n], spark://…, k8s://… or yarn, "
                f"found {self.master!r}"
            )
        if self.cores is not None and self.cores < 1:
            raise Rejected(f"expected at least 1 core, found {self.cores}")
        if self.memory_mb < 512:
            raise Rejected(f"expected at least 512 MB for Spark's JVM, found {self.memory_mb}")

    @property
    def is_local(self) -> bool:
        """Whether tasks run inside the JVM that we start."""
        return self.remote is None and self.master.startswith("local")

    def master_url(self, machine_cores: int) -> str:
        """The master as Spark takes it."""
        if self.master != "local":
            return self.master
        return f"local[{self.cores or machine_cores}]"


def spark_options(found: Mapping[str, Any]) -> SparkOptions:
    """Options as JSON has them; an unknown one is refused."""
    known = {field.name for field in fields(SparkOptions)}
    strangers = sorted(set(found) - known)
    if strangers:
        raise Rejected(
            f"expected options of Spark among {', '.join(sorted(known))}, "
            f"found {', '.join(strangers)}"
        )
    made = dict(found)
    for name in ("cache_dir", "java_home"):
        if made.get(name) is not None:
            made[name] = Path(made[name])
    if "archive" in made:
        made["archive"] = Archive(made["archive"])
    return SparkOptions(**made)


def plain_options(options: SparkOptions) -> dict[str, Any]:
    """Options as JSON takes them, without those that nobody set."""
    default = asdict(SparkOptions())
    found = {key: value for key, value in asdict(options).items() if value != default[key]}
    return {key: str(v) if isinstance(v, Path) else v for key, v in found.items()}


def client_options(options: SparkOptions, url: str) -> dict[str, Any]:
    """Options, as JSON takes them, for a client of a Spark that was started with these."""
    return {"remote": url, **({"conf": dict(options.conf)} if options.conf else {})}
