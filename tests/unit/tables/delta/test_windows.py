"""Windows whose order leaves ties: completing it must not change what the query allows.

Where an order is completed, contents come from the compiled text, so it has to be a result of the
query itself. These queries have one result only, and DuckDB says which.
"""

from __future__ import annotations

import pytest

from tests.unit.tables.delta.duck import Duck, Views

TABLE = {"t": {"id": "INTEGER", "k": "INTEGER", "n": "INTEGER", "s": "VARCHAR"}}
START = """INSERT INTO t VALUES (1, 1, 10, 'a'), (2, 1, 10, 'b'), (3, 1, 20, 'c'), (4, 2, 5, 'd'),
    (5, 2, 5, 'e'), (6, NULL, 1, 'f'), (7, 2, NULL, NULL)"""
BATCHES = (
    "UPDATE t SET n = 10 WHERE id = 3",
    "INSERT INTO t VALUES (8, 1, 10, 'z'), (9, 2, 6, 'y'); DELETE FROM t WHERE id = 4",
)
QUERIES = {
    "an extreme of the whole partition":
        "SELECT id, max_by(s, id) OVER (PARTITION BY k) AS x FROM t",
    "how many there are in the whole partition":
        "SELECT id, size(collect_list(s) OVER (PARTITION BY k)) AS x FROM t",
    "the last of the whole partition": """SELECT id, last_value(s) OVER (PARTITION BY k ORDER BY id
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS x FROM t""",
    "the last of a range that is the whole partition": """SELECT id, last_value(s) OVER (PARTITION
        BY k ORDER BY id RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS x FROM t""",
    "the first in an order":
        "SELECT id, first_value(s) OVER (PARTITION BY k ORDER BY id) AS x FROM t",
    "a sum over rows with ties": "SELECT id, sum(n) OVER (PARTITION BY k ORDER BY n) AS x FROM t",
    "a range of values": """SELECT id, sum(n) OVER (PARTITION BY k ORDER BY n RANGE BETWEEN 5
        PRECEDING AND CURRENT ROW) AS x FROM t""",
    "rows around": """SELECT id, sum(n) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 1 PRECEDING
        AND 1 FOLLOWING) AS x FROM t""",
}  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_a_window_is_what_its_query_says(name: str) -> None:
    query = QUERIES[name]
    duck = Duck(TABLE)
    duck.db.execute(START)
    for batch in BATCHES:
        duck.remember()
        assert duck.run(duck.compile(query).full(Views())) == duck.run(query)
        duck.db.execute(batch)
        assert duck.check(query)
