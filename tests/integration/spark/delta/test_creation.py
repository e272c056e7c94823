"""What Spark says against a query when a table is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.tables.core.model import Mode
from tests.integration.spark.delta.shop import Shop

REFUSED = {
    "SELECT nothing(id) AS n FROM t": r"no function 'nothing' \(line 1, column 8: nothing\(id\)\)",
    "SELECT s, d * 2 AS n FROM t": r"type",
    "SELECT id FROM t WHERE s": r"filter|boolean|BOOLEAN",
    "SELECT id FROM t WHERE id = (SELECT id, s FROM t)": r"column",
    "SELECT id, count(*) AS n FROM t": r"GROUP BY|group by",
    "SELECT NULL AS x, id FROM t": r"column 'x' cannot be kept in the lake",
    "SELECT id, count(*), count(*) FROM t GROUP BY id": r"columns of different names",
    "SELECT id, n * d AS x FROM first_one": r"type",
}


@pytest.mark.parametrize("query", REFUSED)
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_a_query_that_spark_cannot_analyse_is_refused(shop: Shop, query: str, mode: str) -> None:
    shop.run("CREATE TABLE t (id INTEGER, d DATE, s VARCHAR)", "INSERT INTO t VALUES (1, NULL, '')")
    shop.warehouse.create("first_one", "SELECT id, d, id AS n FROM t WHERE d + 1 > d", mode="full")
    before = shop.lake.latest().id
    with pytest.raises(Rejected, match=REFUSED[query]) as refused:
        shop.warehouse.create("bad", query, mode=mode)
    assert "\n" not in refused.value.message
    assert [table.name for table in shop.warehouse.tables()] == ["first_one"]
    assert shop.lake.latest().id == before


def test_what_is_wrong_with_another_table_is_not_held_against_its_readers(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)")
    shop.create("well", "SELECT id, abs(id) AS n FROM t")
    shop.create("below", "SELECT n + 1 AS m FROM well")
    shop.settle(executed=Mode.FULL)
    shop.run("ALTER TABLE t RENAME id TO other")
    shop.warehouse.create("later", "SELECT id FROM well", mode="full")
    with pytest.raises(Rejected, match="no column 'id'"):
        shop.warehouse.create_or_replace("well", "SELECT id FROM t", mode="full")


def test_columns_that_the_next_refresh_adds_may_be_read(shop: Shop, tmp_path: Path) -> None:
    shop.run("CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)")
    shop.create("whole", "SELECT * FROM t")
    shop.settle(executed=Mode.FULL)
    shop.run("ALTER TABLE t ADD COLUMN more INTEGER")
    shop.warehouse.create("later", "SELECT more + 1 AS m FROM whole", mode="full")
    with pytest.raises(Rejected, match="no function 'nothing'"):
        shop.warehouse.create("bad", "SELECT nothing(more) AS m FROM whole", mode="full")
    (tmp_path / "whole.sql").write_text("SELECT id, id AS other FROM t")
    (tmp_path / "later.sql").write_text("SELECT abs(other) AS m FROM whole")
    shop.warehouse.apply(tmp_path)
    (tmp_path / "later.sql").write_text("SELECT asb(other) AS m FROM whole")
    with pytest.raises(Rejected, match="did you mean 'abs'"):
        shop.warehouse.apply(tmp_path)
