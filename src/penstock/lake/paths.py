"""Where files lie: paths in the catalog are relative to table, schema and data path in turn.

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
    """A path below a base, where every directory ends with a slash."""
    for part in parts:
        base = directory(base) + part
    return base


def directory(path: str) -> str:
    """A path with the slash that marks a directory."""
    return path if path.endswith("/") or not path else path + "/"


def relative_to(base: str, path: str) -> tuple[str, bool]:
    """A path as the catalog keeps it: below the base and relative, or as it is."""
    below = directory(base)
    return (path[len(below) :], True) if path.startswith(below) else (path, False)


def resolve(base: str, path: str, is_relative: bool) -> str:
    """The whole path of what the catalog names."""
    return joined(base, path) if is_relative else path


def directory_for(name: str, uuid: str) -> str:
    """The directory of a new schema or table: its name where that is a plain word."""
    return directory(name if _PLAIN.fullmatch(name) else uuid)
