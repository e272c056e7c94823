"""The same schedules as in the property tests, over HTTP, several spaces on one server."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from penstock.testing.seeds import seeded, seeds
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Answer, Api
from tests.property.commits.naive import MISSING, Naive, Scribe

RUNS = 30
COMMITS = 20


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    try:
        yield Api(process.start().address)
    finally:
        process.close()


def verdict_of(answer: Answer) -> str:
    if answer.status == 200:
        return "replayed" if answer.json["replayed"] else "accepted"
    error = answer.json["error"]
    reason = error.get("detail", {}).get("reason")
    return {"invalid_request": "invalid"}.get(error["code"], reason or error["code"])


def run(api: Api, connection: HTTPConnection, seed: int, counts: Counter[str]) -> None:
    space = f"/v0/spaces/h-{uuid.uuid4().hex[:12]}"
    with seeded(seed) as random:
        model, scribe = Naive(), Scribe(random)
        for _ in range(COMMITS):
            commit = scribe.next(model)
            expected = model.verdict(commit)
            answer = api.exchange(connection, "POST", f"{space}/commits", commit)
            found = verdict_of(answer)
            counts[found] += 1
            if (found, expected) != ("conflict", "accepted"):  # it may refuse more than it must
                assert found == expected, (commit, str(answer))
            if found == "accepted":
                assert answer.json["seq"] == model.take(commit)
        listed = api.exchange(connection, "GET", f"{space}/entities").json
        assert listed["head"] == model.head
        documents = {row["entity"]: row["doc"] for row in listed["entities"]}
        assert documents == {name: doc for name, doc in model.docs.items() if doc != MISSING}
        for seq in random.sample(range(model.head + 1), min(4, model.head)):
            past = api.exchange(connection, "GET", f"{space}/entities?at={seq}").json
            assert {row["entity"]: row["doc"] for row in past["entities"]} == as_of(model, seq)


def as_of(model: Naive, seq: int) -> dict[str, object]:
    """Every document after a seq."""
    found = {step.write["entity"]: step.after for step in model.steps if step.seq <= seq}
    return {name: doc for name, doc in found.items() if doc != MISSING}


def test_a_server_accepts_nothing_that_the_model_refuses(api: Api) -> None:
    counts: Counter[str] = Counter()
    found = seeds(RUNS)
    connection = api.connect()
    for seed in found:
        run(api, connection, seed, counts)
    connection.close()
    if len(found) == RUNS:
        floors = {"accepted": 150, "conflict": 80, "replayed": 5, "invalid": 2}
        assert all(counts[verdict] >= floor for verdict, floor in floors.items()), counts
