"""Paths in a document (RFC 6901), which of them a write touches, and whether a read meets them.

>>> parse_path("/a~1b/0")
('a/b', '0')
>>> touched({"a": {"b": 1}, "c": 2}, {"a": {"b": 2}, "c": None})
(('a', 'b'), ('c',))
>>> meet(("a",), ("a", "b")), meet(("a",), ("a", "b"), shallow=True), meet(("a",), ("c",))
(True, False, False)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.protocol.errors import InvalidRequest

Path = tuple[str, ...]
ROOT: Final[Path] = ()
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


def parse_path(pointer: str) -> Path:
    """The segments of a JSON pointer; empty for the whole document."""
    if not pointer:
        return ROOT
    if not pointer.startswith("/") or _BAD_ESCAPE.search(pointer):
        raise InvalidRequest(
            "expected a path that is empty or a JSON pointer such as /a/b, with ~0 for ~ and ~1 "
            f"for /, found {pointer!r}"
        )
    return tuple(
        segment.replace("~1", "/").replace("~0", "~") for segment in pointer[1:].split("/")
    )


def show_path(path: Path) -> str:
    """Segments as a JSON pointer."""
    return "".join("/" + each.replace("~", "~0").replace("/", "~1") for each in path)


def value_at(document: Any, path: Path, missing: Any = None) -> Any:
    """The value at a path in a document."""
    for segment in path:
        if isinstance(document, dict) and segment in document:
            document = document[segment]
        elif isinstance(document, list) and _is_index(segment) and int(segment) < len(document):
            document = document[int(segment)]
        else:
            return missing
    return document


def touched(document: Any, patch: Any) -> tuple[Path, ...]:
    """The paths that a merge patch changes or may change in a document.

    Where the patch descends into a value that is not an object, the whole value is replaced: the
    path itself is touched, and so is everything below it.
    """
    return tuple(_touched(document, patch, ROOT))


def meet(read: Path, write: Path, *, shallow: bool = False) -> bool:
    """Whether a write at one path may change what was read at another.

    It may at the same path, above it, and below it; a shallow read has not looked below.
    """
    if len(write) <= len(read):
        return read[: len(write)] == write
    return not shallow and write[: len(read)] == read


def any_meet(read: Path, writes: Sequence[Path], *, shallow: bool = False) -> bool:
    """Whether a read meets any of several touched paths."""
    return any(meet(read, write, shallow=shallow) for write in writes)


def _touched(document: Any, patch: Any, here: Path) -> Iterator[Path]:
    if not isinstance(patch, dict) or not isinstance(document, dict) or not patch:
        yield here
        return
    for key, value in patch.items():
        yield from _touched(document.get(key), value, (*here, key))


def _is_index(segment: str) -> bool:
    return segment.isascii() and segment.isdigit() and (segment == "0" or segment[0] != "0")
