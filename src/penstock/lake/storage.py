"""File storage of the lake: a local directory, or anything pyarrow or fsspec can reach."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.kernel.errors import Rejected
from penstock.lake.s3 import check_credentials, is_s3


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as listed by storage."""

    path: str
    size_bytes: int
    changed_at_ms: int


class Storage:
    """Opens, lists and removes files by absolute path, as the catalog resolves them."""

    def __init__(self, root: str, filesystem: fs.FileSystem | None = None) -> None:
        self.root = root
        self._prefix = ""
        self.is_local = "://" not in root and filesystem is None
        if filesystem is not None:
            self.filesystem = filesystem
            return
        self.filesystem, inner = filesystem_of(root)
        if "://" in root:
            # pyarrow takes paths without the scheme; listing adds it back.
            self._prefix = root.removesuffix(inner.rstrip("/")) if root.endswith(inner) else ""
            self._prefix = self._prefix or root[: len(root.rstrip("/")) - len(inner.rstrip("/"))]

    def inner(self, path: str) -> str:
        """An absolute path as the filesystem takes it."""
        return path[len(self._prefix) :] if path.startswith(self._prefix) else path

    def create_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        self.filesystem.create_dir(self.inner(path).rstrip("/"), recursive=True)

    def open_input(self, path: str) -> Any:
        """Open a file for random access; memory-mapped if local."""
        if self.is_local:
            return pa.memory_map(path)
        return self.filesystem.open_input_file(self.inner(path))

    def open_output(self, path: str) -> Any:
        """Open a new file for writing."""
        return self.filesystem.open_output_stream(self.inner(path))

    def sync(self, path: str) -> None:
        """Sync a local file to disk, before the catalog references it."""
        if not self.is_local:
            return
        for name in (path, str(Path(path).parent)):
            handle = os.open(name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def size_bytes(self, path: str) -> int:
        """The size of a file."""
        if self.is_local:
            return Path(path).stat().st_size
        info = self.filesystem.get_file_info(self.inner(path))
        if info.type is not fs.FileType.File:
            raise Rejected(f"expected a file at {path!r}, found nothing there")
        return int(info.size)

    def files(self, directory: str) -> Iterator[StoredFile]:
        """Every file below a directory, at any depth."""
        selector = fs.FileSelector(
            self.inner(directory).rstrip("/") or "/", recursive=True, allow_not_found=True
        )
        for info in self.filesystem.get_file_info(selector):
            if info.type is fs.FileType.File:
                changed_at_ms = (info.mtime_ns or 0) // 1_000_000
                yield StoredFile(self._prefix + info.path, int(info.size), changed_at_ms)

    def remove(self, path: str) -> bool:
        """Remove a file; False if it did not exist."""
        try:
            self.filesystem.delete_file(self.inner(path))
        except FileNotFoundError:
            return False
        return True


def filesystem_of(root: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a path or URL, and the path in it: pyarrow's own, or fsspec's."""
    if "://" not in root:
        return fs.LocalFileSystem(), root
    if is_s3(root):
        check_credentials(root)  # without credentials pyarrow tries for many seconds
    try:
        found, inner = fs.FileSystem.from_uri(root)
        return found, str(inner)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        try:
            import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise Rejected(
                f"expected a data path that pyarrow can reach, found {root!r} ({error}); "
                "with fsspec installed more kinds are known"
            ) from error
        found, inner = fsspec.core.url_to_fs(root)
        return fs.PyFileSystem(fs.FSSpecHandler(found)), str(inner)
