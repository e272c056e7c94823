"""Requests that the server makes to itself: the sections of a page, by their routes' own handlers.

So a page, its stream and `/v0` can never tell different things, and a key that may not read
something does not find it on a page either.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote, urlencode

import msgspec

from penstock.protocol.errors import CallError, NotFound
from penstock.protocol.pages import HISTORY_MS, NAV, TABLES, Section, Source
from penstock.protocol.routes import JSON
from penstock.server.api.auth import Grant
from penstock.server.api.call import ROUTES, Call, Context, check_access
from penstock.server.api.errors import told
from penstock.server.http.message import Answer, Exchange, Request
from penstock.server.live.frames import is_error

OLDEST_TABLES: Final = 8
_HEADERS: Final = {"accept": JSON}
_VOLATILE: Final = ("performance", "at")
"""Members of answers that no section has: the twin says once of when it is."""
T = TypeVar("T")
_decode: Final = msgspec.json.Decoder().decode


async def ask(
    context: Context,
    grant: Grant | None,
    path: str,
    query: str = "",
    behalf_of: Request | None = None,
) -> dict[str, Any]:
    """The answer of a GET route, decoded; raises what the route raises.

    `behalf_of` is the request that asks for it, for routes that look at headers and sender.
    """
    route, name = ROUTES.find("GET", path)
    if route.handler is None or route.is_stream:
        raise NotFound(f"{path} has no answer that a page can show")
    check_access(context, route, name, grant)
    request = Request("GET", path, query, _HEADERS, b"")
    if behalf_of is not None:
        request.headers = {**behalf_of.headers, **_HEADERS}
        request.sender = behalf_of.sender
    exchange = cast(Exchange, _InnerExchange(request))
    result = route.handler(Call(context, exchange, name, grant, context.clock.monotonic_ns()))
    answer: Answer = result if isinstance(result, Answer) else await result
    found: dict[str, Any] = _decode(answer.body)
    return found


async def section(
    context: Context, grant: Grant | None, source: Source, *, since_ms: int | None = None
) -> Any:
    """A section of a page; `{"error": …}` if it cannot be told.

    `since_ms` counts for sections that take a time; the default is what a twin shows.
    """
    return trimmed(source.section, await answer_to(context, grant, source, since_ms=since_ms))


async def answer_to(
    context: Context, grant: Grant | None, source: Source, *, since_ms: int | None = None
) -> dict[str, Any]:
    """What the route of a section answers; `{"error": …}` if it refuses or fails."""
    shown = source.section
    if since_ms is None:
        since_ms = context.clock.now_ms() - HISTORY_MS
    since = urlencode({shown.since: max(0, since_ms)}) if shown.since else ""
    query = "&".join(filter(None, (source.query, since)))
    try:
        if shown.kind == NAV:
            return await _counts(context, grant)
        return await ask(context, grant, plain_path(source.path), query)
    except Exception as error:
        context.tell(f"section {shown.name} of a page", error)
        return error_of(context, error)


def trimmed(shown: Section, answer: dict[str, Any]) -> dict[str, Any]:
    """What a section shows of an answer, which stays as it is: other sections may show it too."""
    if is_error(answer):
        return answer
    if shown.kind == TABLES:
        return oldest_tables(answer)
    if shown.keeps:
        return {name: answer[name] for name in shown.keeps if name in answer}
    return {
        name: value
        for name, value in answer.items()
        if name not in _VOLATILE and name not in shown.omits
    }


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits for nothing; `WouldWait` if it does, and it is given up.

    Most sections come from counters. A task for each, and the loop's turns for those, cost more
    than the answers: 30 of 50 µs.
    """
    try:
        work.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    work.close()
    raise WouldWait


class WouldWait(Exception):
    """Work was to be done at once, and waits for something."""


def error_of(context: Context, error: Exception) -> dict[str, Any]:
    """An error in place of a section."""
    _, code, message, _ = told(error, context.hide)
    return {"error": {"code": code, "message": message}}


def plain_path(path: str) -> str:
    """A path as the transport passes it on: decoded, except slashes.

    >>> plain_path("/v0/topics/a%3Cb%2Fc")
    '/v0/topics/a<b%2Fc'
    """
    return "%2F".join(unquote(part) for part in path.replace("%2f", "%2F").split("%2F"))


def oldest_tables(graph: Mapping[str, Any]) -> dict[str, Any]:
    """The stream tables of a graph that have not been fresh for longest, and how many are how."""
    tables = [node for node in graph["nodes"] if node["kind"] == "table"]
    by_state: dict[str, int] = {}
    for node in tables:
        by_state[node["state"]] = by_state.get(node["state"], 0) + 1
    tables.sort(key=lambda node: (node.get("fresh_ms") or 0, node["id"]))
    return {"tables": tables[:OLDEST_TABLES], "by_state": by_state, "total": len(tables)}


async def _counts(context: Context, grant: Grant | None) -> dict[str, int | None]:
    """How many there are of what the navigation lists; None where the caller may not know."""
    found: dict[str, int | None] = {}
    for (path, query), counted in _COUNTED.items():
        try:
            answer = await ask(context, grant, path, query)
        except CallError:
            found |= dict.fromkeys(counted)
        else:
            found |= {name: count(answer) for name, count in counted.items()}
    return found


def _tables_in(*states: str) -> Callable[[dict[str, Any]], int]:
    def count(graph: dict[str, Any]) -> int:
        nodes = (node for node in graph["nodes"] if node["kind"] == "table")
        return sum(not states or node["state"] in states for node in nodes)

    return count


_COUNTED: Final[dict[tuple[str, str], dict[str, Callable[[dict[str, Any]], int]]]] = {
    ("/v0/metrics", "names=topics,queue_topics"): {
        "topics": lambda answer: answer["topics"],
        "queues": lambda answer: answer["queue_topics"],
    },
    ("/v0/graph", ""): {
        "tables": _tables_in(),
        "late": _tables_in("late"),
        "failing": _tables_in("error"),
    },
    ("/v0/spaces", ""): {"spaces": lambda answer: answer["count"]},
}


class _InnerExchange:
    """What a handler sees of a request that no connection carried."""

    is_head = False
    is_gone = may_be_gone = False
    peer = ""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.on_gone: Callable[[], None] | None = None
