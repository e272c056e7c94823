"""`python slow_disk.py BYTES serve`: a server on a disk that takes so many bytes a second."""

from __future__ import annotations

import sys
import time

from penstock.cli import main
from penstock.log.disk import OsFile

RATE = int(sys.argv.pop(1))
pwrite, pwrite_synced = OsFile.pwrite, OsFile.pwrite_synced


def slow_pwrite(self: OsFile, data: bytes | memoryview, offset: int) -> int:
    time.sleep(len(data) / RATE)
    return pwrite(self, data, offset)


def slow_pwrite_synced(self: OsFile, data: bytes, offset: int) -> int:
    time.sleep(len(data) / RATE)
    return pwrite_synced(self, data, offset)


OsFile.pwrite = slow_pwrite  # type: ignore[method-assign]
OsFile.pwrite_synced = slow_pwrite_synced  # type: ignore[method-assign]
OsFile.begin_synced = lambda _file, _data, _offset: None  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    main()
