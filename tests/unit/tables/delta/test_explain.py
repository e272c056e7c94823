"""What is told of a query: every operator with its strategy, in one tree."""

from __future__ import annotations

import sqlglot

from penstock.tables.delta.compiler import compile_query
from penstock.tables.delta.explain import explain, facts, pretty_sql

COLUMNS = {"o": ["id", "c", "amt"], "c": ["id", "name", "region"]}
OR = "or key-local where a sum cannot be taken back"
QUERY = """
SELECT region, count(*) AS n FROM o LEFT JOIN c ON o.c = c.id
WHERE NOT EXISTS (SELECT 1 FROM c x WHERE x.region = o.c) AND amt IN (SELECT id FROM c)
GROUP BY region ORDER BY n LIMIT 3
"""


def test_the_tree_names_operators_as_the_query_does() -> None:
    assert explain(compile_query(QUERY, COLUMNS)).text().splitlines() == [
        "ORDER BY COUNT(*) LIMIT 3: key-local, all rows are one key",
        "└─ SELECT region, COUNT(*): linear",
        f"   └─ GROUP BY region: stage (rows, COUNT(*)), {OR}",
        "      └─ SEMI JOIN ON amt = id: mark, counted by key",
        "         ├─ ANTI JOIN ON region = c: mark, counted by key",
        "         │  ├─ LEFT JOIN ON c = id: join, and a mark for rows without match",
        "         │  │  ├─ o: its changes, and its old rows for the keys that changed",
        "         │  │  └─ c: its changes, and its old rows for the keys that changed",
        "         │  └─ c: its changes, and its old rows for the keys that changed",
        "         └─ c: its changes, and its old rows for the keys that changed",
    ]


def test_what_is_linear_reads_changes_only() -> None:
    found = facts(compile_query("SELECT id + 1 AS x FROM o WHERE amt > 1", COLUMNS))
    assert found["text"].splitlines()[-1] == "   └─ o: its changes"
    assert "o@old" not in found["delta_sql"]
    assert found["state"] is None
    assert found["breaks_ties"] is False


def test_what_is_kept_of_each_aggregate_is_told() -> None:
    inner = "SELECT c, max(amt) AS m FROM o GROUP BY c"
    found = facts(compile_query(f"SELECT m, count(*) AS n FROM ({inner}) x GROUP BY m", COLUMNS))
    assert found["state"] == {"keys": ["MAX(amt)"], "kept": ["rows", "COUNT(*)"]}
    assert found["stages"] == [{"keys": ["c"], "kept": ["rows", "MAX(amt)"]}]


def test_the_delta_is_sql_that_can_be_parsed() -> None:
    found = facts(compile_query(QUERY, COLUMNS))
    assert found["breaks_ties"] is True
    assert sqlglot.parse_one(pretty_sql(found["delta_sql"]), read="spark")
    assert set(found["relations"]) == {"o", "c"}
