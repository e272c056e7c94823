"""The static files: read once, compressed once, cached by browsers for ever.

They are served below a directory that is named by the contents of all of them. So relative imports,
fonts and workers need no rewriting, and no browser ever mixes files of two versions.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from penstock.kernel.errors import Rejected

PREFIX: Final = "/assets/"
IMMUTABLE: Final = ((b"cache-control", b"public, max-age=31536000, immutable"),)
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""What is served; other files (licences, lists) are not."""
_HASH_DIGITS: Final = 12
_GZIP_LEVEL: Final = 9
_GZIP_WINDOW: Final = 31
_IMPORT: Final = re.compile(
    r"""^(?:import|export)\b(?:[^'";()]*?\bfrom)?\s*["'](\.{1,2}/[^"']+)["']""", re.MULTILINE
)
_URL: Final = re.compile(r"""\burl\(\s*["']?(\.{1,2}/[^"')#]+)""")


class Asset(NamedTuple):
    """A file for browsers; `gzipped` is None if that would not be smaller."""

    path: str
    body: bytes
    gzipped: bytes | None
    content_type: bytes


class Assets:
    """All static files, by the paths under which they are served."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        served = {name: body for name, body in sorted(files.items()) if kind_of(name) in TYPES}
        digest = sha256()
        for name, body in served.items():
            digest.update(b"%b %d\n%b" % (name.encode(), len(body), body))
        self._root = f"{PREFIX}{digest.hexdigest()[:_HASH_DIGITS]}/"
        self._made = {name: self._make(name, body) for name, body in served.items()}
        self._by_path = {asset.path: asset for asset in self._made.values()}
        for name in served:
            for other in self._uses(name):
                if other not in served:
                    raise Rejected(f"{name} uses {other}, which is not among the static files")

    def find(self, path: str) -> Asset | None:
        """The asset at a path."""
        return self._by_path.get(path)

    def path_of(self, name: str) -> str:
        """Under which path a file is served."""
        return self[name].path

    def __getitem__(self, name: str) -> Asset:
        if name not in self._made:
            raise Rejected(f"there is no static file {name}")
        return self._made[name]

    def __contains__(self, name: str) -> bool:
        return name in self._made

    def closure(self, name: str) -> list[str]:
        """A module and everything that it imports at once, in the order in which it is met."""
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop(0)
            if each not in found:
                found[each] = None
                waiting.extend(self._uses(each))
        return list(found)

    def _uses(self, name: str) -> list[str]:
        """The files that a browser loads because of another one, without being asked to later."""
        shape = {".js": _IMPORT, ".css": _URL}.get(kind_of(name))
        text = self[name].body.decode() if shape is not None else ""
        return [resolve(name, found[1]) for found in shape.finditer(text)] if shape else []

    def _make(self, name: str, body: bytes) -> Asset:
        kind = kind_of(name)
        gzipped = zlib.compress(body, _GZIP_LEVEL, _GZIP_WINDOW)
        smaller = gzipped if len(gzipped) < len(body) else None
        return Asset(f"{self._root}{name}", body, smaller, TYPES[kind].encode())


def kind_of(name: str) -> str:
    """The ending of a file's name."""
    return PurePosixPath(name).suffix


def resolve(name: str, target: str) -> str:
    """The file that a relative path in another file means.

    >>> resolve("js/pages/topic.js", "../../vendor/preact.js")
    'vendor/preact.js'
    """
    parts: list[str] = []
    for part in (PurePosixPath(name).parent / target).parts:
        if part == "..":
            if not parts:
                raise Rejected(f"{name} uses {target}, which is outside of the static files")
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
