"""What a route is, and finding the one of a request: two dict look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.protocol.errors import MethodNotAllowed, NotFound
from penstock.server.api.schemas import Schema


class Param(NamedTuple):
    """A value in the query, or a header."""

    name: str
    shape: Schema
    text: str = ""
    required: bool = False


class Route(NamedTuple):
    """One method on one path. `named` is what the name in the path stands for, if it has one.

    An `{id}` in the path is that of an entity.

    `guard` says who checks the key: the application before anything else ("key"), the handler
    ("own"), or nobody unless asked to ("probe"). `is_data` routes wait for the replay.
    """

    method: str
    path: str
    handler: str
    summary: str
    answer: str
    scopes: int = 0
    named: str = ""
    body: str = ""
    body_optional: bool = False
    query: tuple[Param, ...] = ()
    statuses: tuple[int, ...] = (200,)
    errors: tuple[int, ...] = ()
    guard: str = "key"
    is_data: bool = True
    media: str = "application/json"
    headers: tuple[Param, ...] = ()

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a connection that stays open."""
        return self.handler.startswith("open_")

    @property
    def changes(self) -> bool:
        """Whether a call may change something; streams take leases and move cursors."""
        return self.method != "GET" or self.is_stream


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._named: dict[tuple[str, str], dict[str, Route]] = {}
        for route in routes:
            parts = route.path.split("/")
            if "{name}" in parts:
                key = (parts[2], "/".join(parts[4:]))
                self._named.setdefault(key, {})[route.method] = route
            else:
                self._exact.setdefault(route.path, {})[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, str]:
        """The route and the name in its path, or `NotFound`, or `MethodNotAllowed`."""
        name = ""
        methods = self._exact.get(path)
        if methods is None:
            parts = path.split("/")
            if 4 <= len(parts) <= 7 and parts[1] == "v0" and parts[3]:
                name = parts[3]
                if len(parts) > 5 and parts[5]:
                    parts[5] = "{id}"
                if len(parts) == 4 or parts[4]:
                    methods = self._named.get((parts[2], "/".join(parts[4:])))
        if methods is None:
            raise NotFound(f"expected a known path, found {path}")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed(method, methods)
        return route, name
