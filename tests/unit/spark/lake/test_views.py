from __future__ import annotations

import pytest

from penstock.protocol.errors import InvalidQuery
from penstock.spark.lake.views import bind


def test_only_names_of_relations_change() -> None:
    query = "SELECT  a.x /* main.a */, 'b.c' FROM a -- a\n JOIN `b`.C ON true"
    bound = bind(query, "v")
    assert bound.query == (
        "SELECT  a.x /* main.a */, 'b.c' FROM v_0 AS `a` -- a\n JOIN v_1 AS `C` ON true"
    )
    assert bound.views == {"a": "v_0", "b.c": "v_1"}


def test_an_alias_stays_and_a_schema_before_a_column_goes() -> None:
    bound = bind("SELECT o.id, sales.items.n, Main.K.z FROM sales.orders o, sales.items, k", "v")
    assert bound.query == ("SELECT o.id, `items`.n, `K`.z FROM v_0 o, v_1 AS `items`, v_2 AS `k`")


def test_one_relation_under_several_spellings_is_one_view() -> None:
    bound = bind("SELECT 1 FROM Orders a JOIN main.orders b JOIN `orders` c", "v")
    assert bound.views == {"orders": "v_0"}
    assert bound.query == "SELECT 1 FROM v_0 a JOIN v_0 b JOIN v_0 c"


def test_a_cte_is_no_relation_where_it_is_visible() -> None:
    bound = bind("WITH a AS (SELECT * FROM a), b AS (SELECT * FROM a) SELECT * FROM b, a", "v")
    assert bound.query == (
        "WITH a AS (SELECT * FROM v_0 AS `a`), b AS (SELECT * FROM a) SELECT * FROM b, a"
    )


def test_relations_in_subqueries_are_found() -> None:
    query = "SELECT (SELECT max(x) FROM a) FROM b WHERE EXISTS (SELECT 1 FROM c.d WHERE d.k = b.k)"
    assert set(bind(query).views) == {"a", "b", "c.d"}


def test_names_that_need_quotes_keep_them() -> None:
    bound = bind("SELECT `T t`.`x y` FROM `T t` JOIN topics.`Meters-7`", "v")
    assert bound.query == ("SELECT `T t`.`x y` FROM v_0 AS `T t` JOIN v_1 AS `Meters-7`")
    assert bound.views == {"t t": "v_0", "topics.Meters-7": "v_1"}


def test_more_than_one_statement_is_refused() -> None:
    with pytest.raises(InvalidQuery):
        bind("SELECT 1; DROP TABLE a")
