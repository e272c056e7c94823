"""Fetch what the dashboard brings along from npm into `web/static/vendor`: `make vendor`.

Nothing is fetched when Penstock is installed or run: the files are in the repository, and
`VENDOR.toml` beside them says of each where it is from, under which licence, and its SHA-256. A
version that is already written there must have the same hash again; only a new version gets a new
one. Browsers know no bare imports and our pages allow no inline import map, so `from "preact"`
becomes `from "./preact.js"`.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path("src/penstock/web/static")
VENDOR: Final = STATIC / "vendor"
MANIFEST: Final = VENDOR / "VENDOR.toml"
ICONS: Final = (
    "activity", "arrow-down", "boxes", "check", "chevron-right", "circle-alert",
    "clock", "code", "copy", "database", "download", "gauge", "history", "inbox", "info", "key",
    "link", "list-tree", "moon", "pause", "pencil", "play", "plug-zap", "plus", "radio",
    "refresh-cw", "search", "send", "server", "shuffle", "skull", "sun", "table-2",
    "trash-2", "triangle-alert", "users", "workflow", "x",
)  # fmt: skip
BARE: Final = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])([^."'/][^"']*)\2""")
SOURCE_MAP: Final = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


class Drop(NamedTuple):
    """A file of a package, and what it becomes."""

    source: str
    target: str
    change: Callable[[bytes], bytes] = bytes


class Package(NamedTuple):
    """A package of npm with the files that are taken from it."""

    name: str
    version: str
    licence: str
    drops: tuple[Drop, ...]


def module(source: bytes) -> bytes:
    """Make the imports of an ES module relative, and name no source map that is not served."""
    text = SOURCE_MAP.sub("\n", source.decode())
    return BARE.sub(lambda match: f'{match[1]}"./{MODULES[match[3]]}"', text).encode()


def module_of_global(name: str) -> Callable[[bytes], bytes]:
    """Export the global that a classic script defines: its minified build is the smaller one."""
    return lambda source: module(source) + f"export default {name};\n".encode()


MODULES: Final = {"preact": "preact.js", "preact/hooks": "hooks.js"}
PACKAGES: Final = (
    Package("preact", "11.2.0", "MIT", (
        Drop("dist/preact.mjs", "preact.js", module),
        Drop("hooks/dist/hooks.mjs", "hooks.js", module),
    )),
    Package("@preact/signals-core", "1.14.5", "MIT", (
        Drop("dist/signals-core.mjs", "signals.js", module),
    )),
    Package("htm", "3.1.1", "Apache-2.0", (Drop("dist/htm.mjs", "htm.js", module),)),
    Package("uplot", "1.6.32", "MIT", (
        Drop("dist/uPlot.iife.min.js", "uplot.js", module_of_global("uPlot")),
    )),
    Package("@dagrejs/dagre", "3.1.3", "MIT", (Drop("dist/dagre.esm.js", "dagre.js", module),)),
    Package("lucide-static", "1.62.0", "ISC", (
        *(Drop(f"icons/{icon}.svg", f"icons.svg#{icon}") for icon in ICONS),
    )),
    Package("@fontsource-variable/geist", "5.3.0", "OFL-1.1", (
        Drop("files/geist-latin-wght-normal.woff2", "geist.woff2"),
    )),
    Package("@fontsource-variable/geist-mono", "5.3.0", "OFL-1.1", (
        Drop("files/geist-mono-latin-wght-normal.woff2", "geist-mono.woff2"),
    )),
)  # fmt: skip


def sprite(icons: dict[str, bytes]) -> bytes:
    """One SVG with a symbol for each icon; stroke and size come from the style sheet."""
    symbols = [
        f'<symbol id="{name}" viewBox="0 0 24 24">{_shapes(svg.decode())}</symbol>\n'
        for name, svg in sorted(icons.items())
    ]
    return f'<svg xmlns="http://www.w3.org/2000/svg">\n{"".join(symbols)}</svg>\n'.encode()


def _shapes(svg: str) -> str:
    inside = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    return re.sub(r"\s*\n\s*", "", inside).replace(" />", "/>")


def licence_file(package: Package) -> str:
    """Where the text of a package's licence is, below the vendor directory."""
    return f"licences/{package.name.removeprefix('@').replace('/', '-')}.txt"


def unpack(package: Package, directory: Path) -> Path:
    """Fetch a package by name and version, and unpack it."""
    directory.mkdir()
    command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    (archive,) = directory.glob("*.tgz")
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return directory / "package"


def files_of(package: Package, root: Path) -> Iterator[tuple[str, bytes]]:
    """The files that a package becomes, its licence among them."""
    icons: dict[str, bytes] = {}
    for drop in package.drops:
        content = drop.change((root / drop.source).read_bytes())
        target, _, icon = drop.target.partition("#")
        if icon:
            icons[icon] = content
        else:
            yield target, content
    if icons:
        yield "icons.svg", sprite(icons)
    yield licence_file(package), (root / "LICENSE").read_bytes()


def entry(package: Package, files: dict[str, str]) -> str:
    """A package as a table of the manifest."""
    lines = [
        "[[package]]",
        f'name = "{package.name}"',
        f'version = "{package.version}"',
        f'licence = "{package.licence}"',
        f'licence_file = "{licence_file(package)}"',
        "",
        "[package.sha256]",
        *(f'"{name}" = "{digest}"' for name, digest in sorted(files.items())),
    ]
    return "\n".join(lines) + "\n"


def known() -> dict[tuple[str, str], dict[str, str]]:
    """The hashes that the manifest has, by name and version."""
    if not MANIFEST.exists():
        return {}
    packages = tomllib.loads(MANIFEST.read_text())["package"]
    return {(row["name"], row["version"]): row["sha256"] for row in packages}


def check(package: Package, files: dict[str, str]) -> None:
    """Refuse a version whose files are not those that were there before."""
    before = known().get((package.name, package.version), {})
    wrong = [name for name, digest in files.items() if before.get(name, digest) != digest]
    if package.name == "lucide-static":
        wrong = [name for name in wrong if name != "icons.svg"]  # it grows with the list of icons
    if wrong:
        raise SystemExit(
            f"vendor: {package.name} {package.version} has other contents than before: "
            f"{', '.join(wrong)}; look at the package, then remove its entry from {MANIFEST}"
        )


def main() -> None:
    """Fetch every package, check it, and write the files with their manifest."""
    entries = ["# Made by tools/vendor.py.\n"]
    with tempfile.TemporaryDirectory() as scratch:
        for number, package in enumerate(PACKAGES):
            print(f"{package.name} {package.version}", file=sys.stderr, flush=True)
            files = dict(files_of(package, unpack(package, Path(scratch, str(number)))))
            digests = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
            check(package, digests)
            for name, body in files.items():
                path = VENDOR / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
            entries.append(entry(package, digests))
    MANIFEST.write_text("\n".join(entries))


if __name__ == "__main__":
    main()
