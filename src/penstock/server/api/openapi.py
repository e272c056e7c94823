"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

from typing import Any, Final

from penstock.server.api.auth import scope_names
from penstock.server.api.queries import ARROW
from penstock.server.api.routes import NAME_SHAPES
from penstock.server.api.routing import Param, Route, RouteTable
from penstock.server.api.schemas import COMPONENTS, ref
from penstock.server.api.tables_schemas import TABLE_COMPONENTS

_TEXTS: Final = {
    101: "The connection becomes a WebSocket.",
    200: "Done.",
    201: "Done; the resource is new.",
    202: "Asked for; not done yet.",
    400: "The request is wrong.",
    401: "No known key was presented.",
    403: "The key does not reach as far, or a web page of another origin asks for a change.",
    404: "There is no such thing.",
    406: "The client does not take an event stream.",
    409: "What exists cannot become what was asked for.",
    410: "What is needed to tell has left.",
    412: "What was asked for is not so, and never will be.",
    413: "The body is too large.",
    415: "The body is not declared to be JSON.",
    421: "The Host is not one that a server without keys answers to.",
    422: "The topic is full.",
    429: "A limit is reached; try again after `Retry-After` seconds.",
    500: "The server failed.",
    503: "The server is starting or ending.",
}
_RETRY_AFTER: Final = {
    "description": "Seconds after which it is worth another try.",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}


def document(table: RouteTable, version: str) -> dict[str, Any]:
    """OpenAPI 3.1 of all routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in table.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "Durable topics with live push, and tables that stay fresh.",
        },
        "paths": paths,
        "components": {
            "schemas": {**COMPONENTS, **TABLE_COMPONENTS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def operation(route: Route) -> dict[str, Any]:
    """One route as an operation."""
    is_alias = not route.path.startswith("/v0")
    shown: dict[str, Any] = {
        "operationId": f"{route.handler}_alias" if is_alias else route.handler,
        "summary": route.summary,
        "responses": _responses(route),
    }
    if route.scopes:
        shown["description"] = f"Needs the scope {scope_names(route.scopes)}."
    parameters = [_parameter(param, "query") for param in route.query]
    parameters += [_parameter(param, "header") for param in route.headers]
    if route.named:
        named = {"name": "name", "in": "path", "required": True, "schema": NAME_SHAPES[route.named]}
        parameters.insert(0, named)
    if "{id}" in route.path:
        entity = {"name": "id", "in": "path", "required": True, "schema": NAME_SHAPES["entity"]}
        parameters.insert(1, entity)
    if parameters:
        shown["parameters"] = parameters
    if route.body:
        shown["requestBody"] = {
            "required": not route.body_optional,
            "content": {"application/json": {"schema": ref(route.body)}},
        }
    return shown


def _parameter(param: Param, place: str) -> dict[str, Any]:
    return {
        "name": param.name,
        "in": place,
        "required": param.required,
        "description": param.text,
        "schema": param.shape,
    }


def _responses(route: Route) -> dict[str, Any]:
    common: tuple[int, ...] = (401, 403, 421, 500, 503) if route.is_data else (401, 403, 421)
    if route.guard == "key":
        common += (429,)  # a key may have only so many requests under way
    of_body: tuple[int, ...] = (400, 413, 415) if route.body else (400,)
    responses: dict[str, Any] = {}
    for status in route.statuses:
        responses[str(status)] = {"description": _TEXTS[status]}
        if route.media:
            responses[str(status)]["content"] = _content(route)
    for status in sorted({*common, *of_body, *route.errors}):
        responses[str(status)] = {
            "description": _TEXTS[status],
            "content": {"application/json": {"schema": ref("Error")}},
        }
        if status in (429, 503):
            responses[str(status)]["headers"] = {"Retry-After": _RETRY_AFTER}
    return responses


def _content(route: Route) -> dict[str, Any]:
    if not route.answer:
        return {route.media: {"schema": {"type": "string"}}}
    content: dict[str, Any] = {route.media: {"schema": ref(route.answer)}}
    if route.handler == "metrics":
        content["text/plain"] = {"schema": {"type": "string"}}
    if route.handler == "diff":
        content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
    if route.handler == "table_rows":
        content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
        content["text/csv"] = {"schema": {"type": "string"}}
    return content
