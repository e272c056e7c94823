"""The verdict and what waits, of a real server beside a real warehouse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.client import Client
from tests.conformance.servers import ServerProcess
from tests.integration.tables.place import Place
from tests.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(f"sqlite:{tmp_path}/catalog.sqlite", tmp_path / "place")
    yield made
    made.close()


@pytest.fixture
def server(place: Place, tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path, CATALOG=place.address, STORE="memory")
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(f"http://{server.address.host}:{server.address.port}") as made:
        yield made


def test_the_verdict_follows_the_tables(place: Place, client: Client) -> None:
    assert client.verdict().sentence == "All is well."
    place.write("raw", [1, 2])
    place.warehouse.create("a", "SELECT id FROM raw", schedule="1s")
    wait_until(lambda: client.verdict().level == "away", "no coordinator refreshes the table")
    told = client.verdict()
    assert told.sentence == "Topics are served. Tables are not refreshed."
    assert [fact.code for fact in told.facts] == ["tables_away"]
    with place.warehouse.coordinator():
        wait_until(lambda: client.verdict().level == "ok", "the table is refreshed")


def test_what_waits_says_why_and_what_would_help(place: Place, client: Client) -> None:
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule="1h")
    place.warehouse.create("b", "SELECT id FROM raw", schedule="1s")
    place.warehouse.pause("a")
    client.put_topic("jobs", type="queue")
    client.write("jobs", [{"job": 1}])
    wait_until(lambda: len(client.waiting().waiting) == 3, "the job has waited for a second")
    found = {each.name: each for each in client.waiting().waiting}
    assert found["a"].help == "penstock table resume a"
    assert (found["a"].state, found["a"].reason) == ("paused", "paused")
    assert (found["b"].state, found["b"].help) == ("away", "penstock table run")
    jobs = found["jobs"]
    assert (jobs.kind, jobs.reason, jobs.link) == ("queue", "no_worker", "/queues/jobs")
    assert jobs.for_ms is not None
    assert jobs.for_ms >= 1_000


def test_the_command_says_the_same_and_its_exit_code_follows(
    place: Place, server: ServerProcess, client: Client
) -> None:
    url = f"http://{server.address.host}:{server.address.port}"
    command = [sys.executable, "-m", "penstock", "status", "--url", url, "--json"]

    def status() -> tuple[int, dict[str, object]]:
        done = subprocess.run(command, capture_output=True, check=False)
        return done.returncode, msgspec.json.decode(done.stdout)["verdict"]

    code, told = status()
    assert (code, told["sentence"]) == (0, client.verdict().sentence)
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule="1s")
    wait_until(lambda: client.verdict().level == "away", "no coordinator refreshes the table")
    code, told = status()
    assert (code, told["level"]) == (1, "away")
    server.close()
    code, told = status()
    assert (code, told["sentence"]) == (1, "The server does not answer.")


def test_a_key_with_prefixes_sees_its_own_topics_only(place: Place, tmp_path: Path) -> None:
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule="1s")
    home = tmp_path / "keyed"
    home.mkdir()
    keys = "root,mine:read+write:mine"
    process = ServerProcess(home, CATALOG=place.address, STORE="memory", API_KEYS=keys)
    try:
        address = process.start().address
        url = f"http://{address.host}:{address.port}"
        with Client(url, api_key="root") as root, Client(url, api_key="mine") as mine:
            for name in ("mine.jobs", "other.jobs"):
                root.put_topic(name, type="queue")
                root.write(name, [{"job": 1}])
            wait_until(lambda: len(root.waiting().waiting) == 3, "two queues and a table wait")
            assert [each.name for each in mine.waiting().waiting] == ["mine.jobs"]
            wait_until(lambda: root.verdict().level == "away", "the warehouse is open")
            assert mine.verdict().level == "ok"
    finally:
        process.close()


def test_graph_and_outcomes_of_real_tables(place: Place, client: Client) -> None:
    place.write("raw", [1, 2, 3])
    place.write("other", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule="1h")
    assert place.warehouse.refresh("a").ok
    nodes = {node.id: node for node in client.graph().nodes}
    assert {name: node.kind for name, node in nodes.items()} == {
        "raw": "lake", "other": "lake", "a": "table",
    }  # fmt: skip
    assert nodes["a"].rows == nodes["raw"].rows == 3
    assert [(edge.source, edge.target) for edge in client.graph().edges] == [("raw", "a")]
    listed = client.tables.list(history=40)[0]
    assert listed["state"] == "away", "it has a schedule and no coordinator"
    outcomes = listed["outcomes"]
    assert (outcomes["outcome"], outcomes["mode"]) == (["succeeded"], ["FULL"])
    assert "outcomes" not in client.tables.list()[0]


def test_jobs_since_a_time_are_those_that_ended_after_it(place: Place, client: Client) -> None:
    place.write("raw", [1])
    place.warehouse.create("a", "SELECT id FROM raw", schedule="1h")
    assert place.warehouse.refresh("a").ok
    ended_ms = place.warehouse.jobs()[0].finished_at_ms
    assert ended_ms is not None
    assert len(place.warehouse.jobs(since_ms=ended_ms - 1)) == 1
    assert place.warehouse.jobs(since_ms=ended_ms) == []


def test_what_is_read_together_is_as_of_one_time_and_the_next_reading_sees_changes(
    place: Place,
) -> None:
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule="1h")
    with warehouse.together():
        first = warehouse.status()
        warehouse.pause("a")
        assert warehouse.status() is first
        assert warehouse.why("a").reason is first[0].reason
    [row] = warehouse.status()
    assert row.reason is not first[0].reason
    with warehouse.together():
        assert warehouse.status()[0].reason is row.reason
