"""Inner aggregates that become tables of their own, and the rest of the query over them."""

from __future__ import annotations

import pytest

from penstock.tables.delta.algebra import relations
from penstock.tables.delta.compiler import compile_query
from penstock.tables.delta.stages import Staged, staged

COLUMNS = {"o": ["id", "c", "amt"], "c": ["id", "name"]}
GROUPED = "SELECT c, sum(amt) s FROM o GROUP BY c"


def planned(query: str, kind: str = "int") -> Staged:
    return staged(compile_query(query, COLUMNS), lambda root: (kind,) * root.arguments)


@pytest.mark.parametrize(
    ("query", "stages", "read"),
    [
        (f"SELECT s, count(*) n FROM ({GROUPED}) x GROUP BY s", 1, set()),
        ("SELECT id FROM o WHERE amt > (SELECT avg(amt) FROM o b WHERE b.c = o.c)", 1, {"o"}),
        (f"SELECT a.c FROM ({GROUPED}) a JOIN ({GROUPED}) b ON a.s = b.s", 1, set()),
        (f"SELECT a.c FROM ({GROUPED}) a JOIN ({GROUPED.replace('sum', 'min')}) b ON a.s = b.s",
         2, set()),
        (f"WITH x AS ({GROUPED}) SELECT c FROM x WHERE s = (SELECT max(s) FROM x)", 2, set()),
        (GROUPED, 0, {"o"}),
        ("SELECT n FROM (SELECT c, count(DISTINCT amt) n FROM o GROUP BY c) x WHERE n > 1",
         0, {"o"}),
        ("SELECT count(*) FROM (SELECT DISTINCT c FROM o) x", 0, {"o"}),
        ("SELECT id FROM c, (SELECT max(x) m FROM (VALUES (1), (2)) AS v(x)) y WHERE id < m",
         0, {"c"}),
    ],
)  # fmt: skip
def test_inner_aggregates_of_sums_are_stages(query: str, stages: int, read: set[str]) -> None:
    plan = planned(query)
    assert len(plan.stages) == stages
    names = {kept.relation for kept in plan.stages}
    assert plan.rest.relations - names == read


def test_a_stage_may_read_another_and_is_filled_from_inputs() -> None:
    plan = planned(f"WITH x AS ({GROUPED}) SELECT c FROM x WHERE s = (SELECT max(s) FROM x)")
    first, second = plan.stages
    assert relations(first.state.root.aggregate) == {"o"}
    assert relations(second.state.root.aggregate) == {first.relation}
    assert relations(second.whole.root.aggregate) == {"o"}
    assert plan.root is None


def test_what_cannot_be_taken_back_stays_in_the_query() -> None:
    query = f"SELECT s, count(*) n FROM ({GROUPED}) x GROUP BY s"
    plan = planned(query, "double")
    assert plan.stages == ()
    assert plan.rest.relations == {"o"}
    assert plan.root is not None


def test_a_stage_keeps_its_name_whatever_else_the_query_does() -> None:
    one = planned(f"SELECT s, count(*) n FROM ({GROUPED}) x GROUP BY s")
    other = planned(f"SELECT c.name, x.s FROM c JOIN ({GROUPED}) x ON x.c = c.id")
    assert [kept.part for kept in one.stages] == [kept.part for kept in other.stages]
    more = planned(f"SELECT s, count(*) n FROM ({GROUPED.replace('amt', 'amt + 1')}) x GROUP BY s")
    assert [kept.part for kept in one.stages] != [kept.part for kept in more.stages]
