"""What is made once for a machine and speeds Spark up: a small jar and an archive of classes.

Both are optional. They lie in a cache directory under names that change with everything they
depend on, and appear there whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

from penstock.spark.jvm.java import Java

_LOG: Final = logging.getLogger(__name__)
_COMPILE_TIMEOUT_S: Final = 120
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_TRAINING: Final = 2
"""The version of the jobs in `training`: an archive made by other jobs is recreated."""


def cache_dir(given: Path | None = None) -> Path:
    """The directory for what is made once, by default in the user's cache."""
    if given is not None:
        return given
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock" / "spark"


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Only one process makes a file; others wait, and find it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sources() -> list[Path]:
    """The Java sources that come with this package."""
    return sorted(Path(str(files("penstock.spark.jvm").joinpath("sources"))).rglob("*.java"))


def filesystem_jar(cache: Path, java: Java, jars_dir: Path) -> Path | None:
    """The jar with a local file system that starts no processes: as shipped, or compiled here once.

    None where there is no compiler, or it fails: Spark then works as it comes, with more time for
    each small write.
    """
    name = jar_name(jars_dir)
    for jar in (Path(str(files("penstock.spark.jvm").joinpath(name))), cache / name):
        if jar.exists():
            return jar
    if java.compiler is None:
        _LOG.warning(
            "Spark writes small files more slowly here: this installation has no classes for its "
            "version, and %s has no compiler; install a JDK, or Penstock from its wheel", java.home,
        )  # fmt: skip
        return None
    try:
        return build_jar(java.compiler, jars_dir, cache)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        _LOG.warning("Spark writes small files more slowly here: building %s failed: %s", jar, said)
        return None


def build_jar(compiler: Path, jars_dir: Path, target: Path) -> Path:
    """Compile our Java sources for the Spark with these jars, into a jar in a directory."""
    jar = target / jar_name(jars_dir)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        _compile(compiler, _hadoop(jars_dir), Path(scratch))
        _pack(Path(scratch), jar)
    return jar


def jar_name(jars_dir: Path) -> str:
    """What the jar is called: other sources, or another Hadoop, make another name."""
    names = [path.name for path in _hadoop(jars_dir)]
    return f"penstock-fs-{_digest(*(path.read_bytes() for path in sources()), names)}.jar"


def _hadoop(jars_dir: Path) -> list[Path]:
    return sorted(jars_dir.glob("hadoop-client-*.jar"))


def archive_path(cache: Path, java: Java, class_path: Iterable[str]) -> Path:
    """Where the archive of classes for exactly this Java and these jars belongs."""
    facts = [f"training {_TRAINING}"]
    for entry in class_path:
        status = Path(entry).stat()
        facts.append(f"{entry} {status.st_size} {status.st_mtime_ns}")
    return cache / f"classes-{_digest(str(java.home), java.version, facts)}.jsa"


def _compile(compiler: Path, hadoop: list[Path], target: Path) -> None:
    subprocess.run(
        [
            compiler, "--release", "17", "-nowarn", "-cp", ":".join(map(str, hadoop)),
            "-d", target, *sources(),
        ],
        check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _pack(classes: Path, jar: Path) -> None:
    """A jar is a zip; its name appears when it is complete."""
    draft = classes / "draft.jar"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(classes.rglob("*.class")):
            entry = zipfile.ZipInfo(str(path.relative_to(classes)), _EPOCH)
            opened.writestr(entry, path.read_bytes())
    draft.replace(jar)


def _digest(*parts: bytes | str | list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        text = "\n".join(part) if isinstance(part, list) else part
        digest.update(text if isinstance(text, bytes) else text.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]
