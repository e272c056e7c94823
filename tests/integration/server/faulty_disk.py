"""`python faulty_disk.py FILE serve`: a server whose next sync does what FILE says.

`fail`: the bytes are written, and the sync reports an error, as a disk does that loses power.
`full`: nothing is written, as on a full disk.
`hold`: the bytes are synced, and the call does not return while FILE says so; FILE with `.held`
behind it is there from then on. Without FILE all is well.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

from penstock.cli import main
from penstock.log.disk import OsFile

FAULT = Path(sys.argv.pop(1))
HELD = FAULT.with_name(f"{FAULT.name}.held")
pwrite, pwrite_synced, fdatasync = OsFile.pwrite, OsFile.pwrite_synced, OsFile.fdatasync


def after_sync() -> None:
    while says("hold"):
        HELD.touch()
        time.sleep(0.005)
    if says("fail"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def before_write() -> None:
    if says("full"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def says(word: str) -> bool:
    return FAULT.exists() and FAULT.read_text() == word


def faulty_pwrite_synced(self: OsFile, data: bytes, offset: int) -> int:
    before_write()
    done = pwrite_synced(self, data, offset)
    after_sync()
    return done


def faulty_pwrite(self: OsFile, data: bytes | memoryview, offset: int) -> int:
    before_write()
    return pwrite(self, data, offset)


def faulty_fdatasync(self: OsFile) -> None:
    fdatasync(self)
    after_sync()


OsFile.pwrite = faulty_pwrite  # type: ignore[method-assign]
OsFile.pwrite_synced = faulty_pwrite_synced  # type: ignore[method-assign]
OsFile.fdatasync = faulty_fdatasync  # type: ignore[method-assign]
OsFile.begin_synced = lambda _file, _data, _offset: None  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    main()
