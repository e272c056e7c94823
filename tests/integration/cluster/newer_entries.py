"""Penstock as the next release, which also reads and writes the next version of entries."""

from __future__ import annotations

from penstock.topics.core import versions

versions.NEWEST += 1  # type: ignore[misc]

if __name__ == "__main__":
    from penstock.cli import main

    main()
