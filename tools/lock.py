"""Resolve the requirements into pinned files with hashes and no addresses: `make lock`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

LOCKS: Final = {
    "run": ("pyproject.toml", "requirements/build.in", "--extra=spark", "--extra=demo"),
    "dev": ("pyproject.toml", "requirements/build.in", "--extra=dev", "--extra=spark",
            "--extra=rocksdb", "--extra=postgres"),
    "java": ("requirements/java.in",),
}  # fmt: skip
OPTIONS: Final = (
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-header",
    "--upgrade",
    "--quiet",
)


def main() -> None:
    """Write every lock."""
    uv = Path(sys.executable).with_name("uv")
    for name, sources in LOCKS.items():
        print(f"requirements/{name}.txt", flush=True)
        output = f"--output-file=requirements/{name}.txt"
        subprocess.run([uv, "pip", "compile", *OPTIONS, *sources, output], check=True)


if __name__ == "__main__":
    main()
