"""A column that Spark cannot read, and a table that is very wide, keep no other column away."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.app.tables import Warehouse
from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.protocol.errors import InvalidQuery
from penstock.spark.jvm.embedded import EmbeddedSpark
from tests.integration.lake.duck import Duck

WIDE = 5_000


@pytest.fixture
def warehouse(lake: Catalog, address: str, embedded: EmbeddedSpark) -> Iterator[Warehouse]:
    with Warehouse.open(address, runner_options={"remote": embedded.url}) as opened:
        yield opened


@pytest.mark.parametrize("rows", [2, 20], ids=["inlined", "in files"])
def test_a_column_that_cannot_be_read_is_refused_by_name_and_the_others_are_read(
    warehouse: Warehouse, duck: Duck, rows: int
) -> None:
    duck.run("CREATE TABLE t (id BIGINT, span INTERVAL, spans STRUCT(a INTERVAL), odd VARIANT)")
    duck.run(
        "INSERT INTO t SELECT i, INTERVAL 1 DAY, {'a': INTERVAL 2 DAY}, i::VARIANT "
        f"FROM range({rows}) r(i)"
    )
    for name, query in (
        ("named", "SELECT id FROM t"),
        ("rest", "SELECT * EXCEPT (span, spans, odd) FROM t"),
        ("nested", "SELECT id FROM (SELECT * FROM t) WHERE id >= 0"),
    ):
        warehouse.create(name, query)
        answer = warehouse.refresh(name)
        assert answer.ok, answer.detail
        assert sorted(warehouse.query(name).column("id").to_pylist()) == list(range(rows))
    assert warehouse.query("SELECT count(*) AS n FROM t").to_pylist() == [{"n": rows}]
    for query in (
        "SELECT span FROM t",
        "SELECT id FROM t WHERE spans.a IS NULL",
        "SELECT odd FROM t",
        "SELECT * FROM t",
    ):
        with pytest.raises(InvalidQuery, match=r"has the type (INTERVAL|VARIANT), which cannot be"):
            warehouse.create("x", query)
        with pytest.raises(InvalidQuery, match="which cannot be read"):
            warehouse.query(query)
    assert warehouse.rows("t", columns=["id"]).rows.num_rows == rows


def test_a_column_whose_type_changed_after_the_table_was_defined_fails_with_one_line(
    warehouse: Warehouse, duck: Duck
) -> None:
    duck.run("CREATE TABLE t AS SELECT i AS id, i AS span FROM range(20) r(i)")
    warehouse.create("a", "SELECT * FROM t")
    duck.run("ALTER TABLE t DROP COLUMN span")
    duck.run("ALTER TABLE t ADD COLUMN span INTERVAL")
    answer = warehouse.refresh("a")
    assert not answer.ok
    assert answer.detail.startswith("column 'span' has the type INTERVAL, which cannot be read")


def test_a_table_of_thousands_of_columns_can_be_read_and_one_too_wide_is_refused_at_once(
    warehouse: Warehouse, duck: Duck
) -> None:
    duck.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    columns = ", ".join(f"{number} AS c{number}" for number in range(WIDE))
    duck.run(f"CREATE TABLE wide AS SELECT {columns}")
    warehouse.create("some", f"SELECT c0, c{WIDE - 1} AS last FROM wide")
    assert warehouse.refresh("some").ok
    assert warehouse.query("some").to_pylist() == [{"c0": 0, "last": WIDE - 1}]
    for query in ("SELECT * FROM wide", f"SELECT {columns}"):
        with pytest.raises(Rejected, match=r"5,000 columns is too wide: .* at most 1,997"):
            warehouse.create("x", query)


def test_a_table_as_wide_as_can_be_is_made_and_a_wider_one_is_not(lake: Catalog) -> None:
    most = lake.columns_max
    rows = pa.table({f"c{number}": [number] for number in range(most + 1)})
    change = lake.begin(reserve_ms=60_000)
    with pytest.raises(Rejected, match="1,998 columns is too wide"):
        change.create_table(lake.schema("main"), "wider", rows.schema)
    rows = rows.drop_columns([f"c{most}"])
    table = change.create_table(lake.schema("main"), "wide", rows.schema)
    change.add_files(table, [lake.write(table, rows, token=change.token)])
    lake.commit(change)
    assert lake.scan("wide").equals(rows)
