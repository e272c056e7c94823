"""The OpenAPI document, generated from the route table and the structs of the protocol."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock.protocol.answers import ErrorAnswer
from penstock.protocol.errors import (
    CallError,
    Forbidden,
    ForeignHost,
    ForeignOrigin,
    Internal,
    InvalidRequest,
    NotReady,
    OutcomeUnknown,
    PayloadTooLarge,
    ShuttingDown,
    Throttled,
    Unauthorized,
    UnsupportedMediaType,
)
from penstock.protocol.requests import PREDICATE
from penstock.protocol.routes import NAME_SHAPES, READ, Param, Route, RouteTable, scope_names

Shape = dict[str, Any]

_TEXTS: Final = {
    101: "The connection becomes a WebSocket.",
    200: "Done.",
    201: "Done; the resource is new.",
    202: "Asked for; not done yet.",
}
_RETRY_AFTER: Final = {
    "description": "Seconds after which it is worth another try.",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}
_EVERYWHERE: Final = (Unauthorized, Forbidden, ForeignOrigin, ForeignHost, InvalidRequest)
_DATA: Final = (Internal, NotReady, ShuttingDown)
_CHANGES: Final = (OutcomeUnknown,)
_BODY: Final = (PayloadTooLarge, UnsupportedMediaType)


def document(table: RouteTable, version: str) -> dict[str, Any]:
    """OpenAPI 3.1 of all routes."""
    shapes, components = _schemas(table.routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in table.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, shapes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "Durable topics with live push, and tables that stay fresh.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def errors_of(route: Route) -> list[type[CallError]]:
    """Every error that a route may return."""
    found: list[type[CallError]] = [*_EVERYWHERE, *route.errors]
    found += _DATA if route.is_data else ()
    found += _CHANGES if route.is_data and route.scopes != READ and route.changes else ()
    found += _BODY if route.body is not None else ()
    found += (Throttled,) if route.guard == "key" else ()  # the requests of a key are limited
    return list(dict.fromkeys(found))


def _schemas(routes: Iterable[Route]) -> tuple[dict[Any, Shape], dict[str, Shape]]:
    """The schemas of bodies and answers, and the components they refer to."""
    answers = [route.answer for route in routes if route.answer is not None]
    bodies = [route.body for route in routes if route.body is not None]
    kinds = list(dict.fromkeys([*answers, *bodies, ErrorAnswer]))
    refs, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for kind in answers:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            components[kind.__name__]["required"] = _always_sent(kind)
    for shape in components.values():
        for member in shape.get("properties", {}).values():
            if "$ref" in member:
                member.pop("default", None)  # of an optional predicate, which is not null
    components["Predicate"] = dict(PREDICATE)
    return dict(zip(kinds, refs, strict=True)), components


def _always_sent(kind: type[msgspec.Struct]) -> list[str]:
    """The fields of an answer that this server always sends.

    Most have defaults only for clients of older servers. A field may be missing only if its default
    is null, or it is a payload.
    """
    return [
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if field.required
        or field.default not in (None, msgspec.UNSET, msgspec.NODEFAULT)
        or _is_plain(field)
    ]


def _is_plain(field: msgspec.structs.FieldInfo) -> bool:
    return field.default_factory in (list, dict)


def _operation(route: Route, shapes: dict[Any, Shape]) -> dict[str, Any]:
    """One route as an operation."""
    is_alias = not route.path.startswith("/v0")
    shown: dict[str, Any] = {
        "operationId": f"{route.name}_alias" if is_alias else route.name,
        "summary": route.summary,
        "responses": _responses(route, shapes),
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
    if route.body is not None:
        shown["requestBody"] = {
            "required": not route.body_optional,
            "content": {"application/json": {"schema": shapes[route.body]}},
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


def _responses(route: Route, shapes: dict[Any, Shape]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in route.statuses:
        responses[str(status)] = {"description": _TEXTS[status]}
        if route.media:
            responses[str(status)]["content"] = _content(route, shapes)
    by_status: dict[int, list[type[CallError]]] = {}
    for kind in errors_of(route):
        by_status.setdefault(kind.status, []).append(kind)
    for status, kinds in sorted(by_status.items()):
        codes = dict.fromkeys(kind.code for kind in kinds)
        responses[str(status)] = {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}.",
            "content": {"application/json": {"schema": shapes[ErrorAnswer]}},
        }
        if status in (429, 503):
            responses[str(status)]["headers"] = {"Retry-After": _RETRY_AFTER}
    return responses


def _content(route: Route, shapes: dict[Any, Shape]) -> dict[str, Any]:
    if route.answer is None:
        return {route.media: {"schema": {"type": "string"}}}
    content: dict[str, Any] = {route.media: {"schema": shapes[route.answer]}}
    for media in route.also:
        binary = {} if media.startswith("text/") else {"format": "binary"}
        content[media] = {"schema": {"type": "string", **binary}}
    return content
