"""Which calls change something: the client and the server's routes agree."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock.client import calls, lake_calls, space_calls, table_calls, view_calls
from penstock.client.calls import ApiCall
from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.errors import OutcomeUnknown
from penstock.protocol.requests import RouterBody, WatchBody
from penstock.server.api.app import ROUTES
from penstock.server.api.openapi import errors_of

MODULES = (calls, lake_calls, space_calls, table_calls, view_calls)
COMMIT = Commit(session="s", local_seq=1, writes=(CommitWrite("e", set=1),))
GIVEN: dict[str, Any] = {
    "body": {
        "put_router": RouterBody(source="a", dest="b"),
        "create_watch": WatchBody(topics={}),
        "write_encoded": b"{}",
        "change": None,
    },
    "action": "hold", "at_seq": None, "before": None, "cascade": False, "columns": None,
    "commit": COMMIT, "count": 1, "delay_ms": 0, "directory": "d", "entity": "e", "force": False,
    "idempotency_key": None, "jobs": [1], "key": (), "lease_ms": 1, "lenient": False, "limit": 1,
    "name": "a", "node": "n", "offset": 0, "options": {}, "prefix": "p", "query": "SELECT 1",
    "queue": "q", "records": [1], "return_seqs": True, "router": "r", "schema": "a INT",
    "snapshot": None,
    "space": "s", "stage": "parse", "text": "SELECT 1", "topic": "t", "url": None,
    "verb": "pause", "wait_ms": 0, "writes": {"t": [1]},
}  # fmt: skip


def every_call() -> list[tuple[str, ApiCall[Any]]]:
    found = []
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(function)
            returned = str(signature.return_annotation)
            is_here = function.__module__ == module.__name__
            if is_here and returned.startswith("ApiCall[") and not returned.endswith("None"):
                found.append((f"{module.__name__}.{name}", made(name, function, signature)))
    return found


def made(name: str, function: Any, signature: inspect.Signature) -> ApiCall[Any]:
    """A call with something for each argument that it needs."""
    given = {}
    for parameter in signature.parameters.values():
        is_needed = parameter.default is parameter.empty
        if is_needed and parameter.kind is not parameter.VAR_KEYWORD:
            value = GIVEN[parameter.name]
            given[parameter.name] = value[name] if parameter.name == "body" else value
    call: ApiCall[Any] = function(**given)
    return call


CALLS = [each for each in every_call() if not each[0].endswith(".ingest_status")]


def test_every_module_has_calls() -> None:
    assert len(CALLS) > 50
    assert sum(call.changes for _, call in CALLS) > 20


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_a_call_changes_something_if_its_route_may_leave_that_open(
    name: str, call: ApiCall[Any]
) -> None:
    path = call.request.target.partition("?")[0]
    route, _ = ROUTES.find(call.request.method, path)
    if route.scopes == 0 or path == "/v0/watch":
        assert not call.changes
    else:
        assert call.changes == (OutcomeUnknown in errors_of(route)) or not route.is_data
