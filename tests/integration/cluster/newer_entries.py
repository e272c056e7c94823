"""Penstock as a release that writes the next version of entries: run as the program itself."""

from __future__ import annotations

from penstock.topics.core import codec

codec.VERSION_WRITTEN = codec.VERSION_READ_MAX = codec.VERSION_WRITTEN + 1  # type: ignore[misc]

if __name__ == "__main__":
    from penstock.cli import main

    main()
