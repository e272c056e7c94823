"""File paths: the catalog stores them relative to the table, schema or data path.

>>> joined("s3://bucket/lake/", "main/", "t/", "a.parquet")
's3://bucket/lake/main/t/a.parquet'
>>> relative_to("/lake/main/t/", "/lake/main/t/x/a.parquet"), relative_to("/lake/", "/else/a")
(('x/a.parquet', True), ('/else/a', False))
"""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")


def joined(base: str, *parts: str) -> str:
    """A path below a base; every directory ends with a slash."""
    for part in parts:
        base = directory(base) + part
    return base


def directory(path: str) -> str:
    """A path with the trailing slash of a directory."""
    return path if path.endswith("/") or not path else path + "/"


def relative_to(base: str, path: str) -> tuple[str, bool]:
    """A path as the catalog stores it: relative if below the base, else unchanged."""
    below = directory(base)
    return (path[len(below) :], True) if path.startswith(below) else (path, False)


def resolve(base: str, path: str, is_relative: bool) -> str:
    """The absolute path of a path from the catalog."""
    return joined(base, path) if is_relative else path


def directory_for(name: str, uuid: str) -> str:
    """The directory of a new schema or table: its name if that is a plain word, else its UUID."""
    return directory(name if _PLAIN.fullmatch(name) else uuid)
