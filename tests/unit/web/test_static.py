"""The files that a browser gets: what they may contain, and how much there is of them."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.javascript import STATIC

OURS: Final = sorted((STATIC / "js").glob("*.js"))
VENDOR: Final = STATIC / "vendor"
SHELL: Final = json.loads((STATIC / "shell.json").read_text())
IMPORT: Final = re.compile(r"""(?:^import\s[^;]*?from\s*|\bimport\()"([^"]+)\"""", re.MULTILINE)
STATIC_IMPORT: Final = re.compile(r"""(?:^|;|\})import\s*[^;"]*?from\s*"([^"]+)\"""", re.MULTILINE)
FORBIDDEN: Final = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "document.write",
    "eval(", "new Function", 'style="', "https://",
)  # fmt: skip
BYTES_MAX: Final = 200_000
REQUESTS_MAX: Final = 20
WHEEL_BYTES_MAX: Final = 400_000


def closure(module: Path) -> set[Path]:
    """A module and all that it imports before it runs."""
    found, todo = set(), [module]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [path.parent / name for name in STATIC_IMPORT.findall(path.read_text())]
            todo = [path.resolve() for path in todo]
    return found


def manifest() -> list[dict[str, object]]:
    return tomllib.loads((VENDOR / "VENDOR.toml").read_text())["package"]


def test_every_vendored_file_is_the_one_whose_hash_is_written_down() -> None:
    listed = {name: digest for package in manifest() for name, digest in package["sha256"].items()}
    there = {
        str(path.relative_to(VENDOR)): sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name != "VENDOR.toml"
    }
    assert there == listed


@pytest.mark.parametrize("package", manifest(), ids=lambda package: package["name"])
def test_every_vendored_package_has_its_licence(package: dict[str, str]) -> None:
    assert package["licence"] in {"MIT", "Apache-2.0", "ISC", "OFL-1.1"}
    assert (VENDOR / package["licence_file"]).read_text().strip()


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_module_is_short_and_needs_nothing_that_the_policy_forbids(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 300
    for forbidden in FORBIDDEN:
        assert forbidden not in text


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_what_a_module_imports_is_there(path: Path) -> None:
    for name in IMPORT.findall(path.read_text()):
        assert name.startswith(("./", "../"))
        assert (path.parent / name).is_file(), name


def test_every_icon_that_is_drawn_is_in_the_sprite_and_no_other() -> None:
    sprite = set(re.findall(r'<symbol id="([^"]+)"', (VENDOR / "icons.svg").read_text()))
    text = "\n".join(path.read_text() for path in OURS)
    words = set(re.findall(r'"([a-z][a-z0-9-]*)"', text))
    named = set(re.findall(r'(?:Icon\} name|icon)="([^"$]+)"', text))
    assert named <= sprite
    assert sprite <= words, f"not used: {sorted(sprite - words)}"


def test_the_shell_names_files_that_are_there() -> None:
    names = [*SHELL["css"], *SHELL["classic"], *SHELL["preload"], SHELL["icon"]]
    assert all((STATIC / name).is_file() for name in [*names, *SHELL["js"].values()])


@pytest.mark.parametrize("page", SHELL["js"])
def test_a_page_loads_in_few_requests_and_few_bytes(page: str) -> None:
    """The document (10 kB), the stream, the sprite, the style, the fonts and the modules."""
    modules = closure((STATIC / SHELL["js"][page]).resolve())
    texts = [*modules, *(STATIC / name for name in (*SHELL["css"], *SHELL["classic"]))]
    worker = "new Worker(" in (STATIC / SHELL["js"][page]).read_text()
    if worker:
        texts += closure((STATIC / "js/layout.js").resolve())
    texts.append(VENDOR / "icons.svg")
    fonts = [STATIC / name for name in SHELL["preload"]]
    size = sum(len(gzip.compress(path.read_bytes())) for path in texts)
    size += sum(path.stat().st_size for path in fonts) + 10_000
    assert len(texts) + len(fonts) + 2 <= REQUESTS_MAX
    assert size <= BYTES_MAX


def test_the_wheel_grows_little() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= WHEEL_BYTES_MAX
