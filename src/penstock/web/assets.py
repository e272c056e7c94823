"""The static files: read once, compressed once, named by their contents, cached for ever.

A module imports others by relative paths; these become names with hashes here, innermost first, so
that a changed file changes the name of all that use it.
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
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
"""What is served; other files (licences, notes) are not."""
_HASH_DIGITS: Final = 10
_GZIP_LEVEL: Final = 9
_GZIP_WINDOW: Final = 31
_PACKED: Final = (".woff2", ".png", ".ico")
_SCRIPTS: Final = (".js", ".mjs")
_STATIC: Final = re.compile(
    r"""((?:^|[\s;}])(?:import|export)\s*(?:[\w$*{][^'"`;()]*?\sfrom\s*|[{*][^'"`;()]*?\}?\s*from\s*)?)(["'])(\.{1,2}/[^"']+)\2""",
    re.MULTILINE,
)
_DYNAMIC: Final = re.compile(r"""(\bimport\s*\(\s*)(["'])(\.{1,2}/[^"']+)\2""")
_LOCATED: Final = re.compile(
    r"""(\bnew\s+URL\s*\(\s*)(["'])(\.{1,2}/[^"']+)\2(?=\s*,\s*import\.meta\.url)"""
)
_STYLED: Final = re.compile(r"""(\burl\(\s*)(["']?)((?!data:|https?:|#|/)[^"')\s]+)\2""")


class Asset(NamedTuple):
    """A file for browsers; `gzipped` is None if that would not be smaller."""

    path: str
    body: bytes
    gzipped: bytes | None
    content_type: bytes
    imports: tuple[str, ...]
    """The files that a browser loads with it at once, by their names in the source."""


class Assets:
    """All static files, by the paths under which they are served."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = {name: body for name, body in files.items() if kind_of(name) in TYPES}
        self._made: dict[str, Asset] = {}
        for name in sorted(self._files):
            self._make(name, ())
        self._by_path = {asset.path: asset for asset in self._made.values()}

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
        """A module and everything that it imports, in the order in which it is met."""
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop(0)
            if each not in found:
                found[each] = None
                waiting.extend(self[each].imports)
        return list(found)

    def _make(self, name: str, within: tuple[str, ...]) -> Asset:
        if name in self._made:
            return self._made[name]
        if name in within:
            raise Rejected(
                f"static files use each other in a circle: {' > '.join((*within, name))}"
            )
        if name not in self._files:
            raise Rejected(f"{within[-1]} uses {name}, which is not among the static files")
        body, imports = self._resolved(name, (*within, name))
        kind = kind_of(name)
        gzipped = None
        if kind not in _PACKED:
            gzipped = zlib.compress(body, _GZIP_LEVEL, _GZIP_WINDOW)
        if gzipped is not None and len(gzipped) >= len(body):
            gzipped = None
        digest = sha256(body).hexdigest()[:_HASH_DIGITS]
        path = f"{PREFIX}{name.removesuffix(kind)}.{digest}{kind}"
        asset = Asset(path, body, gzipped, TYPES[kind].encode(), tuple(imports))
        self._made[name] = asset
        return asset

    def _resolved(self, name: str, within: tuple[str, ...]) -> tuple[bytes, list[str]]:
        """The contents with the names of other files replaced, and the imports among them."""
        kind = kind_of(name)
        if kind not in (*_SCRIPTS, ".css"):
            return self._files[name], []
        imports: list[str] = []

        def replace(found: re.Match[str], *, at_once: bool = False) -> str:
            before, quote, target = found[1], found[2], found[3]
            target, mark, fragment = target.partition("#")
            other = resolve(name, target)
            if at_once:
                imports.append(other)
            path = self._make(other, within).path
            return f"{before}{quote}{path}{mark}{fragment}{quote}"

        text = self._files[name].decode()
        if kind in _SCRIPTS:
            text = _STATIC.sub(lambda found: replace(found, at_once=True), text)
            text = _DYNAMIC.sub(replace, text)
            text = _LOCATED.sub(replace, text)
        else:
            text = _STYLED.sub(replace, text)
        return text.encode(), imports


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
