"""The log stores: one interface (`store.py`), four implementations."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from penstock.kernel.errors import Rejected
from penstock.log.store import LogStore

_OPENERS: Final = {
    "memory": ("memory", "open_memory"),
    "rocksdb": ("rocksdb", "open_rocksdb"),
    "segment": ("segment", "open_segment"),
    "sqlite": ("sqlite", "open_sqlite"),
}
KINDS: Final = tuple(_OPENERS)


def open_store(kind: str, path: str | Path, **options: Any) -> LogStore:
    """Open or create a store of a kind in a directory; only that kind's engine is imported.

    Options depend on the kind: `SegmentOptions`, `SqliteOptions`, none for the others.
    """
    if kind not in _OPENERS:
        raise Rejected(f"unknown store {kind!r}: choose one of {', '.join(KINDS)}")
    if kind != "memory" and Path(path).exists() and not Path(path).is_dir():
        raise Rejected(f"{path} is a file: a store needs a directory")
    module, name = _OPENERS[kind]
    opener = getattr(import_module(f"{__name__}.{module}"), name)
    return cast(Callable[..., LogStore], opener)(path, **options)
