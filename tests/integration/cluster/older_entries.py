"""Penstock as a release before version 3 of entries: run as the program itself.

It reads and writes version 2 at most, says so to its peers and in what it logs, and refuses what
needs version 3. A release that far back did all of this but for the last: it had no such commands.
"""

from __future__ import annotations

from penstock.topics.core import versions

versions.NEWEST = 2  # type: ignore[misc]

if __name__ == "__main__":
    from penstock.cli import main

    main()
