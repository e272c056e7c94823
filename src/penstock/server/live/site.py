"""Pages and assets of the dashboard over HTTP. How they look is the site's business, handed in.

A page is HTML for browsers and its twin for programs: `Accept: application/json`, or
`?format=json`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from penstock.protocol.errors import (
    CallError,
    MethodNotAllowed,
    NotFound,
    Replaying,
    ShuttingDown,
    Unauthorized,
)
from penstock.protocol.pages import chosen, find_page
from penstock.protocol.routes import JSON, READ
from penstock.server.api.answers import encode
from penstock.server.api.auth import Grant
from penstock.server.api.call import Context
from penstock.server.api.queries import preferred
from penstock.server.http.compression import accepts_gzip
from penstock.server.http.message import Answer, Headers, Request
from penstock.server.live.ask import ask
from penstock.server.live.channels import Address
from penstock.server.live.stream import canonical

HTML: Final = "text/html"
ASSETS: Final = "/assets/"
SESSION: Final = "/v0/session"
_DATA: Final = ((b"cache-control", b"no-store"), (b"vary", b"Accept, Cookie"))
_GZIP: Final = ((b"content-encoding", b"gzip"),)
_decode: Final = msgspec.json.Decoder().decode
Identify = Callable[[Request], Grant | None]


class Asset(Protocol):
    """A file for browsers; `gzipped` is None if that would not be smaller."""

    @property
    def body(self) -> bytes:
        """Its bytes."""

    @property
    def gzipped(self) -> bytes | None:
        """The same, compressed."""

    @property
    def content_type(self) -> bytes:
        """Its media type."""


class Site(Protocol):
    """What draws pages."""

    @property
    def headers(self) -> Headers:
        """Headers of every page and asset: what a browser may do with them."""

    @property
    def asset_headers(self) -> Headers:
        """Further headers of assets."""

    def asset(self, path: str) -> Asset | None:
        """The asset at a path."""

    def page(self, twin: Mapping[str, Any]) -> bytes:
        """A page as HTML."""


class SiteDoor:
    """Answers requests outside of `/v0`."""

    def __init__(self, context: Context, site: Site, identify: Identify) -> None:
        self._context, self._site, self._identify = context, site, identify

    def answer(self, request: Request) -> Answer | Awaitable[Answer] | None:
        """The answer to a request; None if it is not for a page or an asset."""
        path = request.path
        if path.startswith(ASSETS):
            self._check_method(request)
            return self._asset(request)
        found = find_page(path)
        if found is None:
            return None
        self._check_method(request)
        page, names = found
        address = canonical(page, names, chosen(page, request.query))
        return self._page(request, address)

    @staticmethod
    def _check_method(request: Request) -> None:
        if request.method != "GET":
            raise MethodNotAllowed(request.method, ["GET"])

    def _asset(self, request: Request) -> Answer:
        found = self._site.asset(request.path)
        if found is None:
            raise NotFound(f"there is no file {request.path}")
        headers = (*self._site.headers, *self._site.asset_headers)
        body = found.body
        if found.gzipped is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
            body, headers = found.gzipped, (*headers, *_GZIP)
        return Answer(200, body, found.content_type, headers)

    async def _page(self, request: Request, address: Address) -> Answer:
        wants_html = wants_page(request)
        try:
            twin = await self._twin(request, address)
        except (Unauthorized, Replaying, ShuttingDown) as error:
            if not wants_html:
                raise
            twin = self._bare(address, error)
        if not wants_html:
            return Answer(200, encode(twin), headers=(*self._site.headers, *_DATA))
        # What is shown went through JSON, so that no page can show what its twin does not have.
        body = self._site.page(_decode(encode(twin)))
        kind = f"{HTML}; charset=utf-8".encode()
        return Answer(200, body, kind, (*self._site.headers, *_DATA))

    async def _twin(self, request: Request, address: Address) -> dict[str, Any]:
        context = self._context
        grant = self._identify(request)
        if grant is not None:
            grant.check(READ)
        if context.draining:
            raise ShuttingDown
        if not context.engine.ready:
            raise Replaying(context.engine.replay_progress)
        assert context.live is not None, "a site has a hub"
        twin = await context.live.twins.twin(address, grant)
        return {**twin, "session": await self._session(request, grant)}

    async def _session(self, request: Request, grant: Grant | None) -> dict[str, Any] | None:
        """What the caller may do; None if the server does not tell."""
        try:
            told = await ask(self._context, grant, SESSION, behalf_of=request)
        except CallError:
            return None
        told.pop("performance", None)
        return told

    def _bare(self, address: Address, error: Unauthorized | Replaying | ShuttingDown) -> Any:
        """A page without data: for browsers that must sign in first, or come again."""
        assert self._context.live is not None, "a site has a hub"
        facts = self._context.live.twins.facts(address)
        told = {"sign_in": True} if isinstance(error, Unauthorized) else {"away": error.message}
        return {"on": address.on, **facts, **told, "sections": {}}


def wants_page(request: Request) -> bool:
    """Whether a request is for HTML rather than for the twin."""
    if dict(parse_qsl(request.query)).get("format") == "json":
        return False
    return preferred(request.headers.get("accept", ""), (HTML, JSON)) == HTML
