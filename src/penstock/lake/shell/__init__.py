"""The lake's touch of the world: databases, files, threads."""

from __future__ import annotations

from penstock.lake.shell.catalog import Catalog, open_catalog
from penstock.lake.shell.commit import Committed
from penstock.lake.shell.compact import Compacted, compact
from penstock.lake.shell.expire import Expired, clean, expire, sweep
from penstock.lake.shell.parquet import describe_file, write_delete_file, write_file
from penstock.lake.shell.ranges import ChangeRange
from penstock.lake.shell.storage import Storage

__all__ = [
    "Catalog",
    "ChangeRange",
    "Committed",
    "Compacted",
    "Expired",
    "Storage",
    "clean",
    "compact",
    "describe_file",
    "expire",
    "open_catalog",
    "sweep",
    "write_delete_file",
    "write_file",
]
