"""Aggregates kept as state: adding changes to it gives what recomputing gives."""

from __future__ import annotations

from random import Random

import pytest

from penstock.tables.delta.state import IS, REREAD, ROWS, WAS, State
from tests.unit.tables.delta.duck import Duck, Views

TABLES = {"t": {"k": "INT", "n": "INT"}, "u": {"k": "INT", "m": "INT"}}
QUERIES = {
    "sums": "SELECT k, sum(n) s, count(*) c, count(n) d, avg(n) a FROM t GROUP BY k",
    "filters": "SELECT k, sum(n) FILTER (WHERE n > 2) s, count(*) FILTER (WHERE k = n) c "
    "FROM t GROUP BY k",
    "having": "SELECT sum(n) + 1 AS s FROM t GROUP BY k HAVING count(*) > 1",
    "extremes": "SELECT k, min(n) a, max(n) b, max(n + k) c FROM t GROUP BY k",
    "join": "SELECT t.k, min(m) a, sum(n) s FROM t JOIN u ON t.k = u.k GROUP BY t.k",
    "variances": "SELECT k, var_pop(n) a, var_samp(n) b, stddev(n) c, stddev_pop(n) d FROM t "
    "GROUP BY k",
    "pairs": "SELECT t.k, covar_pop(n, m) a, covar_samp(m, n) b, "
    "corr(n, m) FILTER (WHERE m > 9) c, var_pop(m) FILTER (WHERE n > 2) d "
    "FROM t JOIN u ON t.k = u.k GROUP BY t.k",
    "all": "SELECT sum(n) s, min(n) a, count(*) c FROM t",
    "distinct": "SELECT DISTINCT k FROM t",
    "union": "SELECT k FROM t UNION SELECT m FROM u",
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_state_with_changes_added_is_the_state_of_the_new_rows(name: str) -> None:
    query = QUERIES[name]
    random = Random(name)
    duck = Duck(TABLES)
    root = duck.compile(query).root
    assert root is not None
    state = root.bind(["int"] * root.arguments)
    assert state is not None
    duck.remember()
    duck.keep("state", state.full(Views()))
    for _ in range(12):
        for table in TABLES:
            duck.delete_some(table, random.randint(0, 3), random.random())
            duck.insert(table, [_row(random) for _ in range(random.randint(0, 3))])
        changed = duck.changed()
        delta = state.delta(changed, Views(), broadcast=False)
        if delta is None:
            continue
        duck.keep("delta_state", delta)
        before = duck.run(shown(state, state.rowed("SELECT * FROM state"), IS))
        _add(duck, state, changed)
        assert duck.run(shown(state, state.rowed("SELECT * FROM state"), IS)) == duck.run(query)
        left = duck.run(shown(state, "SELECT * FROM merged", WAS))
        assert left <= before
        duck.remember()


def shown(state: State, text: str, which: str) -> str:
    """The query's rows among those of a state."""
    columns = ", ".join(f"{which}{place}" for place in range(len(state.root.columns)))
    return f"SELECT {columns} FROM ({text}) AS found WHERE {which}"


def _add(duck: Duck, state: State, changed: frozenset[str]) -> None:
    """Bring the stored state up to date, as a refresh does."""
    duck.keep("merged", state.step("state", "SELECT * FROM delta_state"))
    again = state.reread(changed, Views(), "lost", broadcast=False, ranges=duck)
    duck.keep("lost", f"SELECT * FROM merged WHERE {REREAD}")
    assert again is not None
    duck.keep("again", again)
    columns = ", ".join(column.name for column in state.columns)
    found = " AND ".join(f"s.{key} <=> d.{key}" for key in state.keys) or "TRUE"
    gone = f"NOT EXISTS (SELECT 1 FROM delta_state d WHERE {found})"
    kept = f"NOT {REREAD}" + (f" AND {ROWS} > 0" if state.keys else "")
    lost = "" if state.keys else f" WHERE EXISTS (SELECT 1 FROM merged WHERE {REREAD})"
    duck.keep(
        "next",
        f"SELECT {columns} FROM state s WHERE {gone} UNION ALL "
        f"SELECT {columns} FROM merged WHERE {kept} UNION ALL SELECT {columns} FROM again{lost}",
    )
    duck.keep("state", "SELECT * FROM next")


@pytest.mark.parametrize(
    ("query", "kind", "kept"),
    [
        ("SELECT sum(n) s FROM t", "bigint", True),
        ("SELECT sum(n) s FROM t", "double", False),
        ("SELECT avg(n) s FROM t", "float", False),
        ("SELECT sum(n) s FROM t", "decimal(26,2)", True),
        ("SELECT sum(n) s FROM t", "decimal(26,7)", True),
        ("SELECT sum(n) s FROM t", "decimal(27,7)", False),
        ("SELECT sum(n) s FROM t", "decimal(38,6)", True),
        ("SELECT avg(n) s FROM t", "decimal(18,11)", True),
        ("SELECT avg(n) s FROM t", "decimal(18,12)", False),
        ("SELECT avg(n) s FROM t", "decimal(19,2)", False),
        ("SELECT max(n) s FROM t", "double", True),
        ("SELECT stddev(n) s FROM t", "bigint", True),
        ("SELECT stddev(n) s FROM t", "double", False),
        ("SELECT var_pop(n) s FROM t", "decimal(15,6)", True),
        ("SELECT var_pop(n) s FROM t", "decimal(16,6)", False),
        ("SELECT var_pop(n) s FROM t", "decimal(15,7)", False),
        ("SELECT sum(n) s FROM t", "interval day to second", False),
    ],
)
def test_only_what_can_be_taken_back_exactly_is_kept(query: str, kind: str, kept: bool) -> None:
    root = Duck(TABLES).compile(query).root
    assert root is not None
    assert (root.bind([kind]) is not None) == kept


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, count(DISTINCT n) d FROM t GROUP BY k",
        "SELECT k, kurtosis(n) d FROM t GROUP BY k",
        "SELECT k, n FROM t",
        "SELECT k, s FROM (SELECT k, sum(n) s FROM t GROUP BY k) x ORDER BY s LIMIT 2",
    ],
)
def test_what_is_no_sum_count_or_extreme_at_the_end_has_no_state(query: str) -> None:
    assert Duck(TABLES).compile(query).root is None


@pytest.mark.parametrize(
    ("query", "source"),
    [
        ("SELECT k, sum(n) s FROM t GROUP BY k", ("t", ("k",))),
        ("SELECT k, sum(m) s FROM (SELECT k AS j, n FROM t) x JOIN u ON j = u.k GROUP BY k",
         ("u", ("k",))),
        ("SELECT j, sum(n) s FROM (SELECT k AS j, n FROM t WHERE n > 1) x GROUP BY j",
         ("t", ("k",))),
        ("SELECT k + 1 AS j, sum(n) s FROM t GROUP BY k + 1", None),
        ("SELECT t.k, m, sum(n) s FROM t JOIN u ON t.k = u.k GROUP BY t.k, m", None),
        ("SELECT a.k, sum(b.n) s FROM t a JOIN t b ON a.k = b.k GROUP BY a.k", None),
        ("SELECT k, e, count(*) c FROM t LATERAL VIEW explode(array(n, 1)) x AS e GROUP BY k, e",
         None),
        ("SELECT sum(n) s FROM t JOIN u ON t.k = u.k", ("t", ())),
    ],
)  # fmt: skip
def test_keys_that_a_relation_has_are_known_before_the_query_runs(query, source) -> None:
    root = Duck(TABLES).compile(query).root
    assert root is not None
    state = root.bind(["int"] * root.arguments)
    assert state is not None
    assert state.key_source() == source


def _row(random: Random) -> tuple[int | None, ...]:
    return tuple(random.choice([None, 1, 1, 2, 3, 4, 5]) for _ in range(2))
