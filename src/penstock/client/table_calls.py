"""Calls about stream tables as data: the request, its decoder, whether it can be repeated.

>>> call = refresh("daily", force=True, wait_ms=5_000)
>>> call.request.method, call.request.target, call.wait_ms
('POST', '/v0/tables/daily/refresh', 5000)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from penstock.client.calls import ApiCall, query_text, reads
from penstock.client.errors import NotPenstock
from penstock.client.wire import HttpAnswer, HttpRequest
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.requests import ExplainBody, RefreshBody, SourceBody
from penstock.protocol.routes import ARROW, EVENT_STREAM

Facts = dict[str, Any]


class RowsPage(NamedTuple):
    """Rows of a table as an Arrow stream, and where the next page begins."""

    body: bytes
    snapshot: int
    next_offset: int | None


def list_tables(
    prefix: str = "", *, cursor: str | None = None, history: int | None = None
) -> ApiCall[Facts]:
    """One page of tables with their status."""
    query = query_text(prefix=prefix or None, cursor=cursor, page_size=1_000, history=history)
    return ApiCall(HttpRequest("GET", f"/v0/tables{query}"), _facts)


def put(name: str, query: str, options: Facts) -> ApiCall[Facts]:
    """Create a table, or replace its definition."""
    body = msgspec.json.encode({"query": query, **options})
    return ApiCall(HttpRequest("PUT", _table(name), body), _facts)


def show(name: str, part: str = "", **query: Any) -> ApiCall[Facts]:
    """All that is known of a table, or one part: why, explain, history."""
    tail = f"/{part}" if part else ""
    return ApiCall(HttpRequest("GET", f"{_table(name)}{tail}{query_text(**query)}"), _facts)


def change(name: str, verb: str, body: Facts | None = None) -> ApiCall[Facts]:
    """Alter, pause or resume a table."""
    raw = b"" if body is None else msgspec.json.encode(body)
    return ApiCall(HttpRequest("POST", f"{_table(name)}/{verb}", raw), _facts)


def drop(name: str, *, cascade: bool) -> ApiCall[Facts]:
    """Drop a table. Not repeatable: a second drop would not find it."""
    request = HttpRequest("DELETE", f"{_table(name)}{query_text(cascade=cascade or None)}")
    return ApiCall(request, _facts, repeatable=False)


def refresh(name: str, *, force: bool, wait_ms: int) -> ApiCall[Facts]:
    """Have a table refreshed."""
    body = msgspec.json.encode(RefreshBody(force=force, wait_ms=wait_ms))
    return ApiCall(HttpRequest("POST", f"{_table(name)}/refresh", body), _facts, wait_ms=wait_ms)


def explain_query(query: str) -> ApiCall[Facts]:
    """Whether and how a query would be brought up to date from changes."""
    body = msgspec.json.encode(ExplainBody(query=query))
    return ApiCall(HttpRequest("POST", "/v0/warehouse/explain", body), _facts, only_reads=True)


def warehouse(part: str = "", **query: Any) -> ApiCall[Facts]:
    """Health, workers and running jobs; or a part: jobs, history."""
    tail = f"/{part}" if part else ""
    return ApiCall(HttpRequest("GET", f"/v0/warehouse{tail}{query_text(**query)}"), _facts)


def put_source(topic: str, schema: str, *, key: Sequence[str], url: str | None) -> ApiCall[Facts]:
    """Declare the columns of a topic's records."""
    body = msgspec.json.encode(SourceBody(schema=schema, key=list(key), url=url))
    return ApiCall(HttpRequest("PUT", f"/v0/sources/{quote(topic, safe=':')}", body), _facts)


def rows(
    name: str,
    *,
    offset: int,
    limit: int,
    snapshot: int | None,
    columns: Sequence[str] | None,
) -> ApiCall[RowsPage]:
    """One page of rows, as Arrow."""
    query = query_text(
        offset=offset or None,
        limit=limit,
        snapshot=snapshot,
        columns=None if columns is None else ",".join(columns),
    )
    headers = f"Accept: {ARROW};compression=lz4\r\n"
    return ApiCall(HttpRequest("GET", f"{_table(name)}/rows{query}", headers=headers), _rows)


def watch_request(name: str, after: str | None) -> HttpRequest:
    """Open the stream of a table; `after` is the position of an earlier one."""
    headers = f"Accept: {EVENT_STREAM}\r\n"
    return HttpRequest("GET", f"{_table(name)}/watch{query_text(after=after)}", headers=headers)


def _table(name: str) -> str:
    if not name:
        raise InvalidRequest("the name is empty")
    return f"/v0/tables/{quote(name, safe='')}"


_facts: Final = reads(dict[str, Any])


def _rows(answer: HttpAnswer) -> RowsPage:
    kind = answer.headers.get("content-type", "nothing")
    if not kind.startswith(ARROW):
        raise NotPenstock(f"the server answered with {kind} instead of {ARROW}")
    after = answer.headers.get("x-penstock-next-offset", "null")
    return RowsPage(
        answer.body,
        int(answer.headers.get("x-penstock-snapshot", "0")),
        None if after == "null" else int(after),
    )
