"""The lake over HTTP: what it holds, and a SELECT that can do nothing but read its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.protocol.errors import InvalidQuery, QueryTooLarge, RelationNotFound
from penstock.server.overview import select as selecting
from penstock.server.overview.select import check_select
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api
from tests.integration.tables.place import Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("lake")
    made = Place(f"sqlite:{home}/catalog.sqlite", home / "place")
    made.write("raw", [1, 2, 3])
    made.write("raw", range(10, 1_510))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("server")
    process = ServerProcess(home, CATALOG=place.address, STORE="memory")
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(f"http://{server.address.host}:{server.address.port}") as made:
        yield made


def test_what_the_lake_holds(place: Place, client: Client) -> None:
    newest = place.lake.latest().id
    state = client.lake.show()
    assert (state.snapshot, state.tables, state.rows) == (newest, 1, 1_503)
    assert f"SNAPSHOT_VERSION {newest}" in state.command
    page = client.lake.snapshots(limit=1)
    assert (page.snapshots[0].snapshot, page.next_before) == (newest, newest)
    assert client.lake.snapshots(before=newest).snapshots[0].snapshot == newest - 1
    table = client.lake.table("raw")
    assert [(column.name, column.type) for column in table.columns] == [("id", "int64")]
    listed = client.lake.tables().tables
    assert [(each.name, each.rows, each.files) for each in listed] == [("raw", 1_503, table.files)]
    assert client.lake.table("raw", snapshot=newest - 1).rows == 3
    files = client.lake.files("raw")
    assert sum(file.rows for file in files.files) == 1_503
    assert not any(file.path.startswith("/") for file in files.files)
    with pytest.raises(RelationNotFound):
        client.lake.table("nothing")


def test_a_select_over_one_snapshot(place: Place, client: Client) -> None:
    newest = place.lake.latest().id
    found = client.lake.query("SELECT count(*) AS n, sum(id)::BIGINT AS total FROM raw")
    assert found.rows == [{"n": 1_503, "total": sum([1, 2, 3, *range(10, 1_510)])}]
    assert (found.snapshot, found.engine, found.truncated) == (newest, "duckdb", False)
    before = client.lake.query("SELECT * FROM main.raw ORDER BY id", snapshot=newest - 1)
    assert [row["id"] for row in before.rows] == [1, 2, 3]
    joined = (
        "WITH few AS (SELECT id FROM raw WHERE id < 3) SELECT f.id FROM few f JOIN raw USING (id)"
    )
    assert len(client.lake.query(joined).rows) == 2


@pytest.mark.parametrize(("rows", "truncated"), [(1_000, False), (1_001, True)])
def test_a_thousand_rows_at_most(client: Client, rows: int, truncated: bool) -> None:
    found = client.lake.query(f"SELECT id FROM raw ORDER BY id LIMIT {rows}")
    assert (len(found.rows), found.truncated) == (1_000, truncated)


def test_rows_as_csv_and_arrow(server: ServerProcess) -> None:
    api = Api(server.address)
    body = {"query": "SELECT id FROM raw ORDER BY id LIMIT 2"}
    csv = api.request("POST", "/v0/query?format=csv", body)
    assert csv.body.decode().split() == ['"id"', "1", "2"]
    arrow = api.request("POST", "/v0/query?format=arrow", body)
    with pa.ipc.open_stream(arrow.body) as reader:
        assert reader.read_all().to_pydict() == {"id": [1, 2]}


HOSTILE = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM glob('/*')",
    "SELECT * FROM parquet_scan('/x')",
    "SELECT * FROM sqlite_scan('/x', 'y')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('raw')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM pragma_database_list()",
    "SELECT current_setting('threads')",
    "SELECT getvariable('x') FROM raw",
    "ATTACH '/tmp/x.db' AS x",
    "COPY raw TO '/tmp/penstock-hostile.csv'",
    "COPY (SELECT 1) TO '/tmp/penstock-hostile.csv'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET threads = 8",
    "RESET threads",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CREATE TABLE x AS SELECT 1",
    "INSERT INTO raw VALUES (1)",
    "DELETE FROM raw",
    "DROP TABLE raw",
    "UPDATE raw SET id = 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE raw",
    "SELECT id FROM raw) TO '/tmp/penstock-hostile.csv'; --",
    "SELECT id FROM raw); ATTACH '/tmp/x.db' AS x; SELECT (1",
    "SELECT * FROM raw, LATERAL (SELECT * FROM read_csv('/etc/passwd'))",
    "SELECT (SELECT count(*) FROM read_text('/etc/hostname')) FROM raw",
    "WITH x AS (SELECT * FROM read_blob('/etc/hostname')) SELECT * FROM x",
    "FROM read_csv('/etc/passwd')",
    "EXPORT DATABASE '/tmp/x'",
    "EXPLAIN ANALYZE SELECT 1",
    "SUMMARIZE raw",
    "VACUUM",
    "PREPARE x AS SELECT 1",
    "SELECT * FROM other.main.raw",
    "",
    "not sql at all (",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_but_a_select_over_lake_tables_gets_through(client: Client, text: str) -> None:
    with pytest.raises((InvalidQuery, RelationNotFound)):
        client.lake.query(text)
    assert not Path("/tmp/penstock-hostile.csv").exists()
    assert not Path("/tmp/x.db").exists()


def test_a_query_ends_after_its_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "QUERY_MS_MAX", 300)
    text = "SELECT count(*) FROM raw a, raw b, raw c, raw d WHERE a.id + b.id + c.id = d.id"
    with pytest.raises(selecting.QueryTooSlow):
        selecting.select(place.warehouse, text, None, duckdb=True)


def test_tables_that_are_too_large_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(file.size_bytes for file in place.lake.table_at("raw").files)
    monkeypatch.setattr(selecting, "SCAN_BYTES_MAX", size)
    assert selecting.select(place.warehouse, "SELECT 1 FROM raw", None, duckdb=True).rows.num_rows
    monkeypatch.setattr(selecting, "SCAN_BYTES_MAX", size - 1)
    with pytest.raises(QueryTooLarge):
        selecting.select(place.warehouse, "SELECT 1 FROM raw", None, duckdb=True)


def test_without_duckdb_the_engine_of_the_warehouse_answers(place: Place) -> None:
    found = selecting.select(place.warehouse, "SELECT count(id) AS n FROM raw", None, duckdb=False)
    assert (found.rows.to_pylist(), found.engine) == ([{"n": 1_503}], "engine")
    with pytest.raises(InvalidQuery, match="install duckdb"):
        selecting.select(place.warehouse, "SELECT id FROM raw", 1, duckdb=False)


def test_names_of_a_query_are_those_of_its_columns() -> None:
    checked = check_select("SELECT a.Id FROM raw AS a", "duckdb")
    assert (checked.relations, checked.whole) == (("raw",), False)
    assert "id" in checked.names
    assert check_select("SELECT * FROM raw", "duckdb").whole
