"""The document of a running server drives it, with good data and bad: never a failure.

PENSTOCK_RUNS asks for more requests to each operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from penstock.server.api.app import ROUTES
from penstock.server.api.openapi import document
from penstock.testing.seeds import RUNS_VARIABLE
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api
from tests.integration.server.hostile import assert_envelope, assert_well, rss_bytes

EXAMPLES = int(os.environ.get(RUNS_VARIABLE) or 12)
STREAMS = ["open_watch", "open_work", "open_ws"]
GROWTH_MAX = 128 * 1_048_576
WAIT_MS_MAX = 100
"""Reads that wait longer would only make the test longer."""
LABELS = [
    found.ok().label
    for found in schemathesis.openapi.from_dict(document(ROUTES, "1"))
    .exclude(operation_id=STREAMS)
    .get_all_operations()
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"), MAX_TOPICS=2_000)
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture(scope="module")
def operations(server: ServerProcess) -> dict:
    """Every operation of the document that the server itself gives out."""
    told = Api(server.address).get("/v0/openapi.json").json
    told["components"]["schemas"]["DiffBody"]["properties"]["wait_ms"]["maximum"] = WAIT_MS_MAX
    schema = schemathesis.openapi.from_dict(told).exclude(operation_id=STREAMS)
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


VARIED = {
    f"{route.method} {route.path}"
    for route in ROUTES.routes
    if route.body or route.query or route.named
}
CASES = [
    pytest.param(label, mode, id=f"{label} {mode.value}")
    for label in LABELS
    for mode in GenerationMode
    if label in VARIED or mode is GenerationMode.POSITIVE  # else nothing of it can be wrong
]


@pytest.mark.parametrize(("label", "mode"), CASES)
def test_no_request_of_the_document_fails(server, operations, label, mode):
    before = rss_bytes(server)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operations[label].as_strategy(generation_mode=mode))
    def fuzz(case):
        answer = case.call(base_url=server.address.url, timeout=30)
        assert answer.status_code < 500, (answer.status_code, answer.text, case.as_curl_command())
        if answer.status_code >= 400:
            assert_envelope(answer.json())
        elif answer.headers["content-type"] == "application/json":
            answer.json()

    fuzz()
    assert_well(server, "bystander")
    assert "Traceback" not in server.log
    assert rss_bytes(server) - before < GROWTH_MAX


def test_the_document_is_the_one_of_the_routes(operations):
    assert list(operations) == LABELS
