from __future__ import annotations

import pytest

from penstock.protocol.errors import MethodNotAllowed, NotFound
from penstock.server.api.app import ROUTES
from penstock.server.api.openapi import document


@pytest.mark.parametrize(
    ("method", "path", "handler", "name"),
    [
        ("PUT", "/v0/topics/a:b", "put_topic", "a:b"),
        ("POST", "/v0/topics/a", "write", "a"),
        ("POST", "/v0/topics/a/diff", "diff", "a"),
        ("GET", "/v0/topics/q/work", "open_work", "q"),
        ("GET", "/v0/topics", "list_topics", ""),
        ("GET", "/v0/routers/a>b", "show_router", "a>b"),
        ("GET", "/v0/watch/wid_x", "open_watch", "wid_x"),
        ("POST", "/v0/watch", "make_watch", ""),
        ("GET", "/healthz", "health", ""),
        ("HEAD", "/readyz", "ready", ""),
    ],
)
def test_a_path_leads_to_its_handler(method, path, handler, name):
    route, found = ROUTES.find(method, path)
    assert (route.name, found) == (handler, name)


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v0", "/v0/", "/v0/topics/", "/v0/topics//diff", "/v0/topics/a/", "/v0/topics/a/b",
     "/v0/topics/a/diff/x", "/v1/topics/a", "/topics/a", "/v0/healthz"],
)  # fmt: skip
def test_any_other_path_is_not_found(path):
    with pytest.raises(NotFound):
        ROUTES.find("GET", path)


def test_a_wrong_method_names_the_right_ones():
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTES.find("PATCH", "/v0/topics/a")
    assert caught.value.headers == ((b"allow", b"DELETE, GET, HEAD, POST, PUT"),)


def test_every_reference_of_the_document_leads_somewhere():
    made = document(ROUTES, "1.0")
    shapes = made["components"]["schemas"]

    def references(value):
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    found = set(references(made))
    assert found
    assert all(reference.rpartition("/")[2] in shapes for reference in found)


def headers_of(operation):
    return [param["name"] for param in operation.get("parameters", ()) if param["in"] == "header"]


def test_the_document_has_the_headers_that_a_client_may_send():
    paths = document(ROUTES, "1.0")["paths"]
    found = {
        made["operationId"]: headers_of(made)
        for methods in paths.values()
        for made in methods.values()
        if headers_of(made)
    }
    assert found == {
        "write": ["Idempotency-Key"],
        "write_many": ["Idempotency-Key"],
        "make_watch": ["X-Penstock-Name"],
        "open_watch": ["Last-Event-ID", "X-Penstock-Name"],
        "open_work": ["X-Penstock-Name"],
        "open_ws": ["X-Penstock-Name"],
        "watch_table": ["Last-Event-ID"],
        "live": ["Last-Event-ID"],
    }


def test_every_429_and_503_of_the_document_says_when_to_come_back():
    paths = document(ROUTES, "1.0")["paths"]
    responses = [made["responses"] for methods in paths.values() for made in methods.values()]
    told = {
        (status, "Retry-After" in each[status].get("headers", ()))
        for each in responses
        for status in each
    }
    assert {status for status, is_told in told if is_told} == {"429", "503"}
    assert not {("429", False), ("503", False)} & told


def test_every_route_is_in_the_document_under_a_name_of_its_own():
    paths = document(ROUTES, "1.0")["paths"]
    operations = [made["operationId"] for methods in paths.values() for made in methods.values()]
    assert len(operations) == len(set(operations)) == len(ROUTES.routes)
