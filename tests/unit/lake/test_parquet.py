from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.lake.columns import columns_of
from penstock.lake.parquet import write_delete_file, write_file
from penstock.lake.storage import Storage

ROWS = pa.table({"n": pa.array(range(100_000), pa.int64())})


@contextmanager
def no_room() -> Iterator[None]:
    """The disk takes a kilobyte of each file, as one that is full takes none.

    Not a fixture: pytest writes its own output before it ends one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_without_room_is_said_as_such(tmp_path: Path) -> None:
    """It was hidden behind an error about the footer."""
    storage, root = Storage(str(tmp_path)), str(tmp_path)
    with no_room(), pytest.raises(OSError, match="File too large"):
        write_file(storage, root, columns_of(ROWS.schema), ROWS)
    positions = np.sort(np.random.default_rng(1).choice(1_000_000, 100_000, replace=False))
    with no_room(), pytest.raises(OSError, match="File too large"):
        write_delete_file(storage, root, "a", positions, snapshots=positions)
