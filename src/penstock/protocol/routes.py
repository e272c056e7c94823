"""What a route is, and finding the route of a request: two dict look-ups.

A route is declared where its handler is, with its answer, scope and errors:

>>> table = RouteTable()
>>> @table.post("/v0/topics/{name}/claim", scope=READ | WRITE, named="topic")
... def claim(call):
...     "Lease jobs of a queue."
>>> route, name = table.find("POST", "/v0/topics/jobs/claim")
>>> route.name, route.summary, name, scope_names(route.scopes)
('claim', 'Lease jobs of a queue.', 'jobs', 'read+write')
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from typing import Any, Final, NamedTuple, TypeVar

from penstock.protocol.errors import CallError, MethodNotAllowed, NotFound
from penstock.protocol.limits import LIMITS, PAGE_SIZE, PAGE_SIZE_MAX
from penstock.protocol.values import ROUTER_NAME, TOPIC_NAME, U64_MAX, Schema
from penstock.protocol.watchers import NAME_BYTES_MAX, NAME_HEADER

F = TypeVar("F", bound=Callable[..., Any])

READ: Final = 1
WRITE: Final = 2
DELETE: Final = 4
ADMIN: Final = 8
EVERYTHING: Final = READ | WRITE | DELETE | ADMIN
_SCOPE_NAMES: Final = ((READ, "read"), (WRITE, "write"), (DELETE, "delete"), (ADMIN, "admin"))

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
ARROW: Final = "application/vnd.apache.arrow.stream"


def scope_names(scopes: int) -> str:
    """Scopes as people write them."""
    return "+".join(name for scope, name in _SCOPE_NAMES if scopes & scope)


class Param(NamedTuple):
    """A value in the query, or a header."""

    name: str
    shape: Schema
    text: str = ""
    required: bool = False


TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": U64_MAX}
KEY: Final[Schema] = {"type": "string", "maxLength": LIMITS.key_bytes_max}
PAGES: Final = (
    Param("prefix", TEXT, "Only names that begin like this."),
    Param("page_size", NUMBER, f"Rows of a page, 1 to {PAGE_SIZE_MAX}; {PAGE_SIZE} if not said."),
    Param("cursor", TEXT, "`next_cursor` of the page before."),
)
NAMED: Final = Param(
    NAME_HEADER,
    {"type": "string", "maxLength": NAME_BYTES_MAX},
    "What the client calls itself, where the readers of a topic are listed.",
)
IDEMPOTENCY_KEY: Final = Param(
    "Idempotency-Key",
    KEY,
    "For every write that names no `idempotency_key` itself: the same again lands once.",
)

NAME_SHAPES: Final[dict[str, Schema]] = {
    "topic": {"type": "string", "pattern": TOPIC_NAME},
    "router": {"type": "string", "pattern": ROUTER_NAME},
    "entity": {"type": "string", "pattern": TOPIC_NAME},
    "table": {
        "type": "string",
        "pattern": r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$",
        "maxLength": 120,
    },
    "source": {"type": "string", "pattern": TOPIC_NAME},
    "member": {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,64}$"},
    "stage": {"type": "string", "pattern": r"^[a-z][a-z_]{0,63}$"},
    "session": {"type": "string", "pattern": r"^wid_[A-Za-z0-9_-]{22}$"},
}
"""What the name in a path may refer to."""


class Route(NamedTuple):
    """One method on one path. `named` is what the name in the path refers to, if it has one.

    An `{id}` in the path is that of an entity. `guard` says what checks the API key: the
    application before anything else ("key"), the handler itself ("own"), or nothing unless
    configured ("probe"). `is_data` routes wait until the log is replayed.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[..., Any] | None = None
    """None for the routes that the application answers on its fast path."""
    answer: Any = None
    """The type of the answer's body; None if no schema describes it."""
    scopes: int = 0
    named: str = ""
    body: Any = None
    """The type of the request's body; None if it has none."""
    body_optional: bool = False
    query: tuple[Param, ...] = ()
    headers: tuple[Param, ...] = ()
    statuses: tuple[int, ...] = (200,)
    errors: tuple[type[CallError], ...] = ()
    """Errors besides those that every route may return."""
    guard: str = "key"
    is_data: bool = True
    media: str = JSON
    also: tuple[str, ...] = ()
    """Other media types that a client may request."""
    key_in_query: bool = False
    """Whether the API key may be in the query, for browsers, which cannot send headers there."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a connection that stays open."""
        return self.media == EVENT_STREAM or 101 in self.statuses

    @property
    def changes(self) -> bool:
        """Whether a call may change something; streams take leases and move cursors."""
        return self.method != "GET" or self.is_stream


class RouteTable:
    """Every route of a server, and finding the route of a request."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self._exact: dict[str, dict[str, Route]] = {}
        self._named: dict[tuple[str, str], dict[str, Route]] = {}
        self._deep: dict[tuple[str, str], dict[str, Route]] = {}  # the name is the fourth part

    def add(self, route: Route) -> Route:
        """Add a route."""
        self.routes.append(route)
        parts = route.path.split("/")
        if parts[4:5] == ["{name}"]:
            key = ("/".join(parts[2:4]), "/".join(parts[5:]))
            self._deep.setdefault(key, {})[route.method] = route
        elif "{name}" in parts:
            key = (parts[2], "/".join(parts[4:]))
            self._named.setdefault(key, {})[route.method] = route
        else:
            self._exact.setdefault(route.path, {})[route.method] = route
        return route

    def route(
        self, method: str, path: str, /, *more: str, scope: int = 0, **facts: Any
    ) -> Callable[[F], F]:
        """Declare the decorated function as the handler of a path; its docstring is the summary."""

        def declare(handler: F) -> F:
            summary = (getdoc(handler) or "").partition("\n")[0]
            for each in (path, *more):
                name = handler.__name__
                self.add(Route(method, each, name, summary, handler, scopes=scope, **facts))
            return handler

        return declare

    def get(self, path: str, /, *more: str, **facts: Any) -> Callable[[F], F]:
        """Declare a handler of GET."""
        return self.route("GET", path, *more, **facts)

    def put(self, path: str, /, **facts: Any) -> Callable[[F], F]:
        """Declare a handler of PUT."""
        return self.route("PUT", path, **facts)

    def post(self, path: str, /, **facts: Any) -> Callable[[F], F]:
        """Declare a handler of POST."""
        return self.route("POST", path, **facts)

    def delete(self, path: str, /, **facts: Any) -> Callable[[F], F]:
        """Declare a handler of DELETE."""
        return self.route("DELETE", path, **facts)

    def find(self, method: str, path: str) -> tuple[Route, str]:
        """The route and the name in its path, or `NotFound`, or `MethodNotAllowed`."""
        name = ""
        methods = self._exact.get(path)
        if methods is None:
            parts = path.split("/")
            if len(parts) > 4 and parts[1] == "v0" and parts[4]:
                name = parts[4]
                methods = self._deep.get(("/".join(parts[2:4]), "/".join(parts[5:])))
            if methods is None and 4 <= len(parts) <= 7 and parts[1] == "v0" and parts[3]:
                name = parts[3]
                if len(parts) > 5 and parts[5]:
                    parts[5] = "{id}"
                if len(parts) == 4 or parts[4]:
                    methods = self._named.get((parts[2], "/".join(parts[4:])))
        if methods is None:
            raise NotFound(f"there is no route {path}")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed(method, methods)
        return route, name


_WRITES: Final = "/v0/topics/"


def is_write(method: str, path: str) -> bool:
    """Whether a request appends to one topic.

    Such requests reach the engine in order of arrival, whenever they are answered. Any other
    request begins only when the requests before it are answered, and delays those after it.
    """
    return method == "POST" and path.startswith(_WRITES) and path.find("/", len(_WRITES)) < 0
