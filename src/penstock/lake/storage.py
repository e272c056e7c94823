"""File storage of the lake: a local directory, or anything pyarrow or fsspec can reach.

Credentials for S3 are checked early: without them pyarrow takes many seconds to fail.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa
from pyarrow import fs

from penstock.kernel.errors import Rejected

_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
HADOOP_CLASSES: Final = {"s3": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
"""The file system of Hadoop that Spark needs for a scheme of data paths."""
_METADATA: Final = "http://169.254.169.254/latest"
_METADATA_TIMEOUT_S: Final = 0.5
_SYNC_THREADS: Final = 4
ADVICE: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; and AWS_REGION, or "
    "AWS_ENDPOINT_URL for a store that is not Amazon's"
)


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

    def sync(self, *paths: str) -> None:
        """Sync local files to disk, before the catalog references them."""
        if not self.is_local or not paths:
            return
        if len(paths) < _SYNC_THREADS:
            for path in paths:
                _sync(path)
        else:  # the file system syncs several at once in hardly more time than one
            with ThreadPoolExecutor(_SYNC_THREADS) as pool:
                deque(pool.map(_sync, paths), maxlen=0)
        for directory in {str(Path(path).parent) for path in paths}:
            _sync(directory)

    def size_bytes(self, path: str) -> int:
        """The size of a file."""
        if self.is_local:
            return Path(path).stat().st_size
        info = self.filesystem.get_file_info(self.inner(path))
        if info.type is not fs.FileType.File:
            raise Rejected(f"there is no file at {path!r}")
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


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def filesystem_of(root: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a path or URL, and the path in it: pyarrow's own, or fsspec's."""
    if "://" not in root:
        return fs.LocalFileSystem(), root
    check_credentials(root)  # without them pyarrow tries for many seconds
    try:
        found, inner = fs.FileSystem.from_uri(root)
        return found, str(inner)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        try:
            import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise Rejected(
                f"pyarrow cannot reach the data path {root!r} ({error}); install fsspec for more "
                "kinds of paths"
            ) from error
        found, inner = fsspec.core.url_to_fs(root)
        return fs.PyFileSystem(fs.FSSpecHandler(found)), str(inner)


def is_s3(root: str | None) -> bool:
    """Whether a data path is on S3."""
    return root is not None and root.startswith("s3://")


def check_credentials(root: str) -> None:
    """Reject a data path on S3 if no credentials can be found."""
    if is_s3(root) and not has_credentials(root):
        raise Rejected(f"there are no credentials for {_plain(root)}: {ADVICE}")


def has_credentials(root: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether credentials exist: in the path, the environment, a file, or an instance role."""
    environ = os.environ if environ is None else environ
    if urlsplit(root).username or any(environ.get(name) for name in _VARIABLES):
        return True
    home = Path(environ.get("HOME", "/"))
    files = (
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials",
        environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config",
    )
    if any(Path(file).exists() for file in files):
        return True
    return environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true" and _has_role()


def _has_role() -> bool:
    """Whether this is an EC2 instance with a role; elsewhere the request soon times out."""
    ask = Request(
        f"{_METADATA}/api/token", method="PUT",
        headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
    )  # fmt: skip
    try:
        with urlopen(ask, timeout=_METADATA_TIMEOUT_S) as answer:
            token = answer.read().decode()
        roles = Request(
            f"{_METADATA}/meta-data/iam/security-credentials/",
            headers={"X-aws-ec2-metadata-token": token},
        )
        with urlopen(roles, timeout=_METADATA_TIMEOUT_S) as answer:
            return bool(answer.read().strip())
    except (URLError, OSError, ValueError):
        return False


def _plain(root: str) -> str:
    """A path without any credentials in it."""
    parts = urlsplit(root)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
