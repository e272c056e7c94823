"""The shell of every page: one small document with the twin as data and as plain HTML."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.kernel.errors import Rejected
from penstock.protocol.pages import PAGES, page_of
from penstock.web.assets import IMMUTABLE, Asset, Assets
from penstock.web.twin_html import sections_html

STATIC: Final = Path(__file__).with_name("static")
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
NAVIGATION: Final = (
    "overview", "topics", "pipeline", "tables", "entities", "lake", "cluster",
)  # fmt: skip
"""The pages that a person goes to without a name."""
_SAFE: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_encode: Final = msgspec.json.Encoder().encode


class Shell(Struct, frozen=True, forbid_unknown_fields=True):
    """What a page loads, as `static/shell.json` names it."""

    css: tuple[str, ...] = ()
    js: dict[str, str] = {}
    """The module of each page."""
    classic: tuple[str, ...] = ()
    """Scripts that run before anything is drawn."""
    preload: tuple[str, ...] = ()
    """Fonts."""
    icon: str | None = None


class Dashboard:
    """Every page and asset."""

    headers = HEADERS
    asset_headers = IMMUTABLE

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.assets = Assets(files)
        self.shell = msgspec.json.decode(files.get("shell.json", b"{}"), type=Shell)
        self._heads = {page.name: self._head(page.name) for page in PAGES}

    def asset(self, path: str) -> Asset | None:
        """The asset at a path."""
        return self.assets.find(path)

    def page(self, twin: Mapping[str, Any]) -> bytes:
        """A page as HTML: shell, twin as data, twin as plain HTML."""
        name, title = twin["page"], escape(twin["title"])
        data = _encode(twin).decode().translate(_SAFE)
        # A document without a page's own title would be the same in every tab.
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f"<title>{title} · Penstock</title>{self._heads[name]}</head>"
            f'<body><a class="skip" href="#main">Skip to content</a><div id="app">'
            f'<nav aria-label="Pages">{_links()}</nav>'
            f'<main id="main" data-page="{name}" tabindex="0">{plain(twin)}</main></div>'
            f'<script type="application/json" id="twin">{data}</script></body></html>'
        ).encode()

    def _head(self, page: str) -> str:
        assets, shell = self.assets, self.shell
        parts = [
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
        ]
        if shell.icon is not None:
            coded = b64encode(assets[shell.icon].body).decode()
            parts.append(f'<link rel="icon" href="data:image/svg+xml;base64,{coded}">')
        parts += [f'<script src="{assets.path_of(name)}"></script>' for name in shell.classic]
        parts += [f'<link rel="stylesheet" href="{assets.path_of(name)}">' for name in shell.css]
        parts += [
            f'<link rel="preload" as="font" type="font/woff2" href="{assets.path_of(name)}" '
            "crossorigin>"
            for name in shell.preload
        ]
        module = shell.js.get(page)
        if module is not None:
            parts += [
                f'<link rel="modulepreload" href="{assets.path_of(name)}">'
                for name in assets.closure(module)[1:]
            ]
            parts.append(f'<script type="module" src="{assets.path_of(module)}"></script>')
        return "".join(parts)


def plain(twin: Mapping[str, Any]) -> str:
    """What stands in `<main>` until the modules of the page replace it."""
    sections = dict(twin["sections"])
    page = page_of(twin["page"])
    question = "" if page is None else f"<p>{escape(page.question)}</p>"
    if twin.get("sign_in"):
        said = "<p>Sign in with an API key to see it. This needs JavaScript.</p>"
        return f"<h1>{escape(twin['title'])}</h1>{question}{said}"
    if twin.get("away"):
        return f"<h1>{escape(twin['title'])}</h1><p>{escape(twin['away'])}</p>"
    verdict = sections.get("verdict") or {}
    sentence = ""
    if "sentence" in verdict:
        sentence = (
            f"<p><strong>{escape(verdict['sentence'])}</strong> {escape(verdict['line'])}</p>"
        )
    return f"<h1>{escape(twin['title'])}</h1>{question}{sentence}{sections_html(sections)}"


def _links() -> str:
    pages = [page for page in PAGES if page.name in NAVIGATION]
    return " ".join(f'<a href="{page.path}">{escape(page.title)}</a>' for page in pages)


def read_dashboard(static: Path = STATIC) -> Dashboard:
    """The dashboard of the installed package; everything is read now."""
    files = {
        path.relative_to(static).as_posix(): path.read_bytes()
        for path in sorted(static.rglob("*"))
        if path.is_file()
    }
    if not files:
        raise Rejected(f"the dashboard's files are missing below {static}: install penstock again")
    return Dashboard(files)
