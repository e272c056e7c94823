"""The OpenAPI document drives the server: whatever it allows, the server answers as it says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.app.server import Server
from penstock.config import Settings
from penstock.server.api.app import ROUTES
from penstock.server.api.openapi import document

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
STREAMS = ["open_watch", "open_work", "open_ws"]

told = deepcopy(document(ROUTES, "1.0"))
# Reads that wait longer would only make the test longer.
told["components"]["schemas"]["DiffBody"]["properties"]["wait_ms"]["maximum"] = 100
schema = schemathesis.openapi.from_dict(told).exclude(operation_id=STREAMS)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a loop in a thread of its own."""
    found: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve(path: Path) -> None:
        loops.append(asyncio.get_running_loop())
        catalog = f"sqlite:{path}/warehouse.sqlite"
        server = Server(
            Settings(
                port=0, store="memory", data_dir=path, log="off", drain_ms=1_000, catalog=catalog
            )
        )
        host, port = await server.listen()
        await server.open()
        found.append(f"http://{host}:{port}")
        ready.set()
        await stop.wait()
        await server.close()

    path = tmp_path_factory.mktemp("server")
    thread = threading.Thread(target=lambda: asyncio.run(serve(path)))
    thread.start()
    try:
        assert ready.wait(20)
        yield found[0]
    finally:
        if loops:
            loops[0].call_soon_threadsafe(stop.set)
        thread.join(20)


OPERATIONS = {found.ok().label: found.ok() for found in schema.get_all_operations()}


@pytest.mark.parametrize("label", OPERATIONS)
def test_the_server_answers_as_its_document_says(label, address):
    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy())
    def answers(case):
        case.call_and_validate(base_url=address, checks=CHECKS, timeout=10)

    answers()
