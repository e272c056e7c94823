"""Batches that are easily got wrong, on Spark: large sums, odd keys, rows that are the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.lake.catalog import Catalog
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.tables.core.model import Mode
from tests.integration.lake.duck import Duck
from tests.integration.spark.delta import limited
from tests.integration.spark.delta.shop import Shop

LOOKED_UP = {
    "near_from_rows": 0, "near_part": 1, "file_from_rows": 1, "copy_from_rows": 0,
    "state_rows_max": 0,
}  # fmt: skip
"""Everything that is done for large tables is done for these small ones."""

TABLES = (
    """CREATE TABLE a AS SELECT i AS id, CASE WHEN i % 9 > 0 THEN i % 13 END AS k,
        CASE WHEN i % 7 > 0 THEN ['', ' ', 'ä', 'Ä', 'x', 'x ', '\u00df'][i % 7 + 1] END AS s,
        DATE '1969-12-25' + (i % 17)::INTEGER AS d,
        (i % 5 - 2) * 1000000000000007::BIGINT AS big, (i % 11 - 5)::INTEGER AS n,
        (i % 8 / 4.0)::DECIMAL(9, 2) AS p FROM range(300) r(i)""",
    """CREATE TABLE b AS SELECT CASE WHEN i % 10 > 0 THEN i % 15 END AS k, i AS id,
        ['x', 'ä', '', NULL][i % 4 + 1] AS s, DATE '1969-12-25' + (i % 20)::INTEGER AS d,
        (i % 9 / 4.0)::DECIMAL(9, 2) AS p FROM range(60) r(i)""",
)
VIEWS = {
    "same": "SELECT n % 2 AS m, 1 AS one FROM a WHERE id % 2 = 0",
    "sums": "SELECT s, sum(big) AS t, count(big) AS c, sum(n) AS u, avg(n) AS v FROM a GROUP BY s",
    "all_of": "SELECT sum(big) AS t, min(d) AS first, max(s) AS last FROM a",
    "ends": "SELECT k, min(d) AS first, max(s) AS last, min(big) AS low FROM a GROUP BY k",
    "by_text": "SELECT a.id, b.id AS other FROM a JOIN b ON a.s = b.s AND a.k = b.k",
    "by_date": "SELECT a.id, b.s FROM a LEFT JOIN b ON a.d = b.d AND b.id > 5",
    "by_price": "SELECT a.id, b.id AS other FROM a JOIN b ON a.p = b.p WHERE a.id < 40",
    "safe": "SELECT a.id, b.id AS other FROM a JOIN b ON a.k <=> b.k WHERE a.id % 5 = 0",
    "itself": "SELECT x.id, y.n FROM a x JOIN a y ON x.k = y.id",
    "without": "SELECT id, s FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "not_in": "SELECT id FROM a WHERE a.k NOT IN (SELECT k FROM b WHERE b.id > 3)",
    "newest": """SELECT id, d FROM (SELECT id, d, row_number() OVER (PARTITION BY d ORDER BY n, id)
        AS r FROM a) WHERE r <= 2""",
    "kinds": "SELECT DISTINCT s, p FROM a WHERE n > -3",
    "staged": """SELECT t.n, count(*) AS c FROM (SELECT k, count(*) AS n FROM a GROUP BY k) t
        JOIN b ON b.k = t.k GROUP BY t.n""",
}
DUCKS = {"safe": VIEWS["safe"].replace("<=>", "IS NOT DISTINCT FROM")}
BATCHES = (
    # An update that changes no column of a view, and one that swaps the rows of two ids.
    ("UPDATE a SET p = p + 1 WHERE id % 3 = 0",
     "UPDATE a SET id = CASE id WHEN 2 THEN 4 ELSE 2 END WHERE id IN (2, 4)"),
    # Parts of a sum are as large as they can be, with both signs, and leave again.
    ("UPDATE a SET big = (1 - id % 2 * 2) * 4611686018427387905 WHERE id BETWEEN 100 AND 113",),
    ("UPDATE a SET big = -1 WHERE id BETWEEN 100 AND 113", "DELETE FROM a WHERE s = ''"),
    # A row leaves and comes again as it was; of three equal rows two leave.
    ("INSERT INTO a SELECT * FROM a WHERE id = 50", "INSERT INTO a SELECT * FROM a WHERE id = 51",
     "DELETE FROM a WHERE id = 52", "INSERT INTO a VALUES (52, 0, 'x', '1969-12-26', 0, 0, 0)"),
    ("DELETE FROM a WHERE id = 50", "INSERT INTO a VALUES (50, 11, 'ä', '1970-01-10', 5, 1, 0.5)",
     "INSERT INTO a VALUES (50, 11, 'ä', '1970-01-10', 5, 1, 0.5)",
     "CALL ducklake_merge_adjacent_files('lake')"),
    # Keys are re-pointed to what comes in the same batch, from both sides.
    ("INSERT INTO b VALUES (77, 100, 'new', '2030-01-01', 7.5)", "UPDATE a SET k = 77 WHERE k = 3",
     "UPDATE b SET k = 3 WHERE k = 4", "UPDATE a SET d = '2030-01-01' WHERE id = 7"),
    # NULL comes into NOT IN in the batch in which the partner of others leaves.
    ("INSERT INTO b VALUES (NULL, 101, NULL, NULL, NULL)", "DELETE FROM b WHERE k = 5",
     "UPDATE a SET k = NULL, s = NULL, d = NULL, p = NULL WHERE id % 31 = 0"),
    ("DELETE FROM b WHERE k IS NULL", "UPDATE b SET s = NULL WHERE s = 'x'",
     "UPDATE a SET s = 'x ' WHERE s = 'x'"),
    # The extreme of every group leaves, and comes again in another row.
    ("CREATE OR REPLACE TEMP TABLE low AS SELECT k, min(big) AS big FROM a GROUP BY k",
     "UPDATE a SET big = 3 WHERE (k, big) IN (SELECT k, big FROM low) AND id % 2 = 0",
     "INSERT INTO a SELECT 900 + k, k, 'z', '1960-01-01', big, 0, 0 FROM low WHERE k % 2 = 0",
     "DROP TABLE low"),
    # Everything leaves and half of it comes again, in files of another order.
    ("CREATE OR REPLACE TEMP TABLE half AS SELECT * FROM a WHERE id % 2 = 1 ORDER BY s, id DESC",
     "DELETE FROM a", "INSERT INTO a SELECT * FROM half", "DROP TABLE half"),
    # Ten updates of the same rows, with the catalog's rows moved to files in between.
    (*(f"UPDATE a SET n = n + {step}, k = k + 1 WHERE id < 60" for step in range(5)),
     "CALL ducklake_flush_inlined_data('lake')",
     *(f"UPDATE a SET n = n - {step}, k = k - 1 WHERE id < 60" for step in range(5)),
     "CALL ducklake_rewrite_data_files('lake', 'a', delete_threshold => 0)"),
)  # fmt: skip


@pytest.fixture
def shop(embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck) -> Iterator[Shop]:
    options = {"remote": embedded.url, "limits": LOOKED_UP}
    made = Shop(address, lake, duck, options, runner=limited.NAME)
    yield made
    made.close()


@pytest.mark.slow
def test_nasty_batches_are_followed(shop: Shop) -> None:
    shop.run(*TABLES)
    for name, query in VIEWS.items():
        shop.create(name, query, duck=DUCKS.get(name))
    shop.settle(executed=Mode.FULL)
    for batch in BATCHES:
        shop.run(*batch)
        shop.settle()
