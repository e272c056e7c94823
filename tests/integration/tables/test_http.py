"""Tables over HTTP: a running server beside a running coordinator, on one warehouse."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import AsyncClient, Client, RetryPolicy
from penstock.kernel.errors import Rejected, Unavailable
from penstock.protocol.errors import NoWarehouse
from penstock.server.api.app import ROUTES
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Answer, Api
from tests.integration.server.hostile import assert_envelope
from tests.integration.tables.place import Place

ARROW = "application/vnd.apache.arrow.stream"
KEYS = "reader:read,writer:write,boss:admin+read+delete,root"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("warehouse")
    made = Place(f"sqlite:{home}/catalog.sqlite", home / "place")
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(
        tmp_path_factory.mktemp("server"), CATALOG=place.address, API_KEYS=KEYS, STORE="memory"
    )
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def api(server: ServerProcess, place: Place) -> Iterator[Api]:
    yield Api(server.address, "root")
    for table in reversed(place.warehouse.tables()):
        place.warehouse.drop(table.name)


def put(api: Api, name: str, query: str, **more: Any) -> Answer:
    return api.request("PUT", f"/v0/tables/{name}", {"query": query, **more})


def progress_of(api: Api, job_id: int) -> Any:
    running = {job["job_id"]: job for job in api.get("/v0/warehouse").json["running"]}
    return running.get(job_id, {}).get("progress")


def refused(answer: Answer, status: int, code: str) -> str:
    assert answer.status == status, str(answer)
    assert_envelope(answer.json)
    assert answer.json["error"]["code"] == code
    return str(answer.json["error"]["message"])


def test_a_table_from_its_creation_to_its_drop(api: Api, place: Place) -> None:
    place.write("raw", [1, 2, 3])
    made = put(api, "A", "SELECT id FROM raw", schedule="1m", description="all of them")
    assert made.status == 201
    assert made.json["created"]
    told = made.json
    assert (told["name"], told["sources"], told["schedule"]) == ("a", ["raw"], "1m")
    assert put(api, "a", "SELECT id FROM raw").status == 200
    body = {"name": "b", "query": "SELECT sum(id)::BIGINT AS total FROM a"}
    assert api.request("POST", "/v0/tables", body).status == 201
    assert "there is a stream table 'b' already" in refused(
        api.request("POST", "/v0/tables", body), 409, "table_exists"
    )
    assert [row["name"] for row in api.get("/v0/tables").json["tables"]] == ["a", "b"]
    assert [row["name"] for row in api.get("/v0/tables", prefix="b").json["tables"]] == ["b"]
    altered = api.request("POST", "/v0/tables/a/alter", {"schedule": "5s", "mode": "full"})
    assert (altered.json["schedule"], altered.json["mode"]) == ("5s", "FULL")
    assert api.request("POST", "/v0/tables/a/pause").json["status"] == "PAUSED"
    assert api.get("/v0/tables/a/why").json["reason"] == "paused"
    assert api.request("POST", "/v0/tables/a/resume").json["status"] == "ACTIVE"
    explained = api.get("/v0/tables/b/explain").json
    assert explained["unit"] == {"key": "table:b", "kind": "singleton", "members": ["b"]}
    assert explained["differential"]["possible"] is True
    assert "cascade" in refused(api.request("DELETE", "/v0/tables/a"), 409, "table_in_use")
    gone = api.request("DELETE", "/v0/tables/a", cascade="true")
    assert gone.json["dropped"] == ["b", "a"]
    refused(api.get("/v0/tables/a"), 404, "table_not_found")


def test_a_table_and_a_query_that_is_none_are_explained(api: Api, place: Place) -> None:
    place.write("raw", [1, 2, 3])
    query = "SELECT id % 2 AS odd, count(*) AS n FROM raw GROUP BY id % 2"
    put(api, "a", query)
    explained = api.get("/v0/tables/a/explain").json
    asked = api.request("POST", "/v0/warehouse/explain", {"query": query}).json
    assert asked["plan"] == explained["plan"]
    assert asked["plan"]["state"] == {"keys": ["id % 2"], "kept": ["rows", "COUNT(*)"]}
    assert "raw@changes" in asked["plan"]["delta_sql"]
    assert asked["plan"]["tree"]["inputs"][0]["operator"] == "GROUP BY id % 2"
    full = api.request("POST", "/v0/warehouse/explain", {"query": "SELECT * FROM raw LIMIT 1"}).json
    assert full["plan"] is None
    assert full["differential"]["text"] == "LIMIT 1: without ORDER BY any rows may be the first"
    assert "no column 'nope'" in refused(
        api.request("POST", "/v0/warehouse/explain", {"query": "SELECT nope FROM raw"}),
        400, "invalid_query",
    )  # fmt: skip


def test_pages_of_the_list_follow_each_other(api: Api) -> None:
    for number in range(5):
        put(api, f"t{number}", "SELECT 1 AS one")
    seen, cursor = [], {}
    while True:
        page = api.get("/v0/tables", page_size=2, **cursor).json
        seen += [row["name"] for row in page["tables"]]
        if "next_cursor" not in page:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == [f"t{number}" for number in range(5)]


def test_mistakes_are_told_with_what_was_expected(api: Api) -> None:
    assert "did you mean 'schedule'" in refused(
        put(api, "x", "SELECT 1 AS one", scedule="1s"), 400, "invalid_request"
    )
    refused(put(api, "x", "SELEC 1"), 400, "invalid_query")
    refused(put(api, "x-y", "SELECT 1 AS one"), 400, "invalid_table")
    refused(put(api, "x", "SELECT 1 AS one", schedule="soon"), 400, "invalid_schedule")
    assert "in a cycle: x > x" in refused(put(api, "x", "SELECT * FROM x"), 409, "table_cycle")
    assert "no table 'nosuch'" in refused(
        put(api, "x", "SELECT * FROM nosuch"), 400, "invalid_query"
    )
    assert "LIMIT 1: without ORDER BY" in refused(
        put(api, "x", "SELECT 1 AS one LIMIT 1", mode="differential"), 400, "not_differentiable"
    )
    assert "was not declared" in refused(
        put(api, "x", "SELECT * FROM topics.nobody"), 400, "invalid_table"
    )
    refused(api.request("POST", "/v0/tables/x/refresh"), 404, "table_not_found")
    assert api.get("/v0/tables").json["tables"] == []


def test_without_a_coordinator_a_refresh_is_refused_and_health_says_so(
    api: Api, place: Place
) -> None:
    put(api, "a", "SELECT 1 AS one")
    answer = api.request("POST", "/v0/tables/a/refresh")
    assert "penstock table run" in refused(answer, 503, "not_coordinated")
    assert answer.headers["Retry-After"]
    assert api.get("/v0/warehouse").json["state"] == "not_running"
    assert "never" not in api.get("/v0/tables/a/why").json["text"]
    refused(api.get("/v0/tables/a/rows"), 409, "no_contents")


def test_the_coordinator_is_asked_watched_and_drained(api: Api, place: Place) -> None:
    place.write("raw", [7])
    put(api, "a", "SELECT id FROM raw", schedule="on demand")
    with place.warehouse.coordinator():
        place.until(lambda: api.get("/v0/warehouse").json["state"] == "ok", "a coordinator")
        done = api.request("POST", "/v0/tables/a/refresh", {"wait_ms": 30_000})
        assert (done.status, done.json["ok"], done.json["detail"]) == (200, True, "refreshed")
        place.fault("a", "hold")
        asked = api.request("POST", "/v0/tables/a/refresh", {"force": True})
        assert (asked.status, asked.json["done"]) == (202, False)
        place.until((place.faults / "a.held").exists, "the refresh to be under way")
        (job,) = api.get("/v0/warehouse/jobs", live="true").json["jobs"]
        assert (job["unit_key"], job["status"]) == ("table:a", "RUNNING")
        place.until(lambda: progress_of(api, job["job_id"]), "its progress")
        assert progress_of(api, job["job_id"])["tasks"] == 4
        drained = api.request("POST", "/v0/warehouse/drain", {"wait_ms": 20}).json
        assert (drained["draining"], drained["idle"]) == (True, False)
        place.fault("a", None)
        assert api.request("POST", "/v0/warehouse/drain", {"wait_ms": 30_000}).json["idle"]
        assert api.request("POST", "/v0/warehouse/drain", {"draining": False}).status == 200
        place.fault("a", "permanent")
        failed = api.request("POST", "/v0/tables/a/refresh", {"force": True, "wait_ms": 30_000})
        assert (failed.status, failed.json["ok"]) == (200, False)
        assert "is wrong" in failed.json["detail"]
        place.fault("a", None)
    told = api.get("/v0/tables/a/history", limit=2).json["refreshes"]
    assert [row["outcome"] for row in told] == ["failed", "succeeded"]
    assert told[1]["executed"] == "FULL"
    assert told[1]["configured"] == "AUTO"
    assert api.get("/v0/warehouse/history").json["refreshes"][0]["table"] == "a"


def test_a_gate_is_closed_and_opened(api: Api) -> None:
    closed = api.request("POST", "/v0/warehouse/gate", {"relation": "Raw", "detail": "mending"})
    assert closed.json["gates"] == ["raw"]
    assert api.get("/v0/warehouse").json["gates"] == ["raw"]
    opened = api.request("POST", "/v0/warehouse/gate", {"relation": "raw", "closed": False})
    assert opened.json["gates"] == []


def test_a_source_is_declared_and_taken_back(api: Api, server: ServerProcess) -> None:
    body = {"schema": "id BIGINT, at TIMESTAMP", "key": ["id"]}
    made = api.request("PUT", "/v0/sources/Orders:eu", body)
    assert made.status == 201
    assert made.json["relation"] == "topics.Orders:eu"
    assert made.json["url"] == server.address.url, "its own topics unless told otherwise"
    assert api.request("PUT", "/v0/sources/Orders:eu", body).status == 200
    assert len(api.get("/v0/sources").json["sources"]) == 1
    put(api, "a", "SELECT id FROM topics.`Orders:eu`")
    refused(api.request("DELETE", "/v0/sources/Orders:eu"), 409, "table_in_use")
    api.request("DELETE", "/v0/tables/a")
    assert api.request("DELETE", "/v0/sources/Orders:eu").json["dropped"]
    refused(api.get("/v0/sources/Orders:eu"), 404, "source_not_found")
    wrong = api.request("PUT", "/v0/sources/t", {"schema": "id NUMBERS OF SORTS"})
    refused(wrong, 400, "invalid_source")


# rows


def test_rows_come_in_pages_of_one_snapshot(api: Api, place: Place) -> None:
    first = place.write("numbers", range(10))
    place.write("numbers", range(10, 25))
    seen: list[int] = []
    at: dict[str, Any] = {"limit": 7}
    while True:
        page = api.get("/v0/tables/numbers/rows", **at).json
        seen += [row["id"] for row in page["rows"]]
        place.write("numbers", [99])  # changes nothing for who reads on at the snapshot
        if page["next_offset"] is None:
            break
        at = {"limit": 7, "snapshot": page["snapshot"], "offset": page["next_offset"]}
    assert sorted(seen) == list(range(25))
    assert page["rows_total"] == 25
    assert page["columns"] == [{"name": "id", "type": "int64"}]
    old = api.get("/v0/tables/numbers/rows", snapshot=first).json
    assert sorted(row["id"] for row in old["rows"]) == list(range(10))
    refused(api.get("/v0/tables/numbers/rows", snapshot=10**9), 400, "invalid_request")
    refused(api.get("/v0/tables/numbers/rows", snapshot=0), 404, "table_not_found")
    refused(api.get("/v0/tables/nobody/rows"), 404, "table_not_found")


def test_rows_are_json_csv_or_arrow(api: Api, place: Place) -> None:
    rows = pa.table(
        {
            "n": pa.array([1, None], pa.int32()),
            "price": pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2)),
            "at": pa.array([0, 1_500], pa.timestamp("ms", tz="UTC")),
            "tags": pa.array([["x", "y"], []], pa.list_(pa.string())),
        }
    )
    change = place.lake.begin()
    table = change.create_table(place.lake.schema("main"), "kinds", rows.schema)
    change.add_files(table, [place.lake.write(table, rows)])
    place.lake.commit(change)
    told = api.get("/v0/tables/kinds/rows").json["rows"]
    assert told[0] == {"n": 1, "price": "1.50", "at": "1970-01-01T00:00:00Z", "tags": ["x", "y"]}
    text = api.request("GET", "/v0/tables/kinds/rows", None, {"Accept": "text/csv"})
    assert text.headers["Content-Type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(text.body.decode())))
    assert [line["n"] for line in lines] == ["1", ""]
    assert lines[0]["tags"] == '["x","y"]'
    asked = api.request("GET", "/v0/tables/kinds/rows", None, {"Accept": ARROW}, columns="price,n")
    with pa.ipc.open_stream(asked.body) as stream:
        found = stream.read_all()
    assert found.to_pydict() == {
        "price": [Decimal("1.50"), Decimal("2.00")], "n": [1, None],
    }  # fmt: skip
    assert int(asked.headers["X-Penstock-Rows-Total"]) == 2
    assert api.get("/v0/tables/kinds/rows", format="csv").body == text.body
    refused(api.get("/v0/tables/kinds/rows", format="xml"), 400, "invalid_request")
    refused(api.get("/v0/tables/kinds/rows", columns="nope"), 400, "invalid_request")


# the client


def test_the_client_defines_reads_and_looks(api: Api, place: Place) -> None:
    place.write("some", range(12))
    with Client(api.address.url, api_key="root") as client:
        tables = client.tables
        assert tables.put("looked_at", "SELECT id FROM some", schedule="1m")["created"]
        assert tables.alter("looked_at", schedule="2m")["schedule"] == "2m"
        assert [row["name"] for row in tables.list()] == ["looked_at"]
        assert tables.pause("looked_at")["status"] == "PAUSED"
        assert tables.resume("looked_at")["status"] == "ACTIVE"
        assert tables.why("looked_at")["reason"] == "no_coordinator"
        assert tables.list()[0]["reason"] == "no_coordinator"
        assert tables.show("looked_at")["sources"] == ["some"]
        assert tables.health()["state"] == "not_running"
        assert tables.history("looked_at")["refreshes"] == []
        once = replace(client.settings, retry=RetryPolicy(tries_max=1))
        with Client(once) as asks_once, pytest.raises(Unavailable, match="penstock table run"):
            asks_once.tables.refresh("looked_at", wait_ms=100)
        assert tables.declare_topic("t", "id BIGINT", key=["id"])["key"] == ["id"]
        pages = list(tables.pages("some", page_rows=5))
        assert [page.num_rows for page in pages] == [5, 5, 2]
        assert sorted(tables.rows("some").column("id").to_pylist()) == list(range(12))
        assert tables.drop("looked_at")["dropped"] == ["looked_at"]
        with pytest.raises(Rejected, match="no stream table 'looked_at'"):
            tables.show("looked_at")


def test_the_async_client_reads_the_same(api: Api, place: Place) -> None:
    place.write("more", range(7))

    async def go() -> list[int]:
        async with AsyncClient(api.address.url, api_key="root") as client:
            rows = await client.tables.rows("more", columns=["id"], page_rows=3)
            return sorted(rows.column("id").to_pylist())

    assert asyncio.run(go()) == list(range(7))


# who may


def test_scopes_part_readers_writers_and_those_who_define(api: Api, place: Place) -> None:
    place.write("raw", [1])
    put(api, "a", "SELECT id FROM raw")
    reader, writer, boss = (api.with_key(key) for key in ("reader", "writer", "boss"))
    assert reader.get("/v0/tables/a").status == 200
    assert reader.get("/v0/tables/raw/rows").status == 200
    refused(put(reader, "b", "SELECT 1 AS one"), 403, "forbidden")
    refused(reader.request("POST", "/v0/tables/a/refresh"), 403, "forbidden")
    refused(writer.request("POST", "/v0/tables/a/refresh"), 503, "not_coordinated")
    refused(writer.get("/v0/tables/a"), 403, "forbidden")
    assert put(boss, "b", "SELECT 1 AS one").status == 201
    assert boss.request("DELETE", "/v0/tables/b").status == 200


TABLE_ROUTES = [route for route in ROUTES.routes if NoWarehouse in route.errors]


@pytest.mark.parametrize("route", TABLE_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_bodies_and_names_without_sense_are_refused(api: Api, route: Any) -> None:
    for name in ("no.such.name", "a%20b", "..", "x" * 300):
        path = route.path.replace("{name}", name)
        for body in (b"{", b"[]", b'{"query": 7, "schema": 7, "relation": []}', None):
            answer = api.request(route.method, path, body if route.body else None)
            assert answer.status < 500 or answer.json["error"]["code"] == "not_coordinated"
            if answer.status >= 400:
                assert_envelope(answer.json)


def test_the_server_never_loads_spark(api: Api, server: ServerProcess) -> None:
    put(api, "a", "SELECT 1 AS one")
    api.get("/v0/tables/a")
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "py4j" not in maps
    assert "grpc" not in maps


def test_rows_come_in_the_order_of_the_definition_whatever_refreshes_did(
    api: Api, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A refresh that writes only what differs leaves the rows of the table in another order.
    monkeypatch.setitem(place.options, "delta", True)
    place.write("digits", [3, 1, 2])
    query = "SELECT id, id % 3 AS third FROM digits ORDER BY third DESC NULLS LAST, id"
    put(api, "ordered", query, schedule="on demand")
    for more in ([9, 8, 7, 6], [0, 100], [50]):
        with place.open() as warehouse:
            assert warehouse.refresh("ordered", here=True).ok
        rows = place.lake.scan("digits").column("id").to_pylist()
        wanted = sorted(rows, key=lambda number: (-(number % 3), number))
        assert place.warehouse.query("ordered").column("id").to_pylist() == wanted
        seen: list[int] = []
        at: dict[str, Any] = {"limit": 2}
        while at.get("offset", 0) is not None:
            page = api.get("/v0/tables/ordered/rows", columns="id", **at).json
            seen += [row["id"] for row in page["rows"]]
            at |= {"offset": page["next_offset"], "snapshot": page["snapshot"]}
        assert seen == wanted
        place.write("digits", more)
    text = api.request("GET", "/v0/tables/ordered/rows", None, {"Accept": "text/csv"}).body
    assert text.decode().splitlines()[1:3] == ["2,2", "8,2"]
