"""What has no rule is refused with its cause, and the piece of the query is named."""

from __future__ import annotations

import pytest

from penstock.protocol.errors import NotDifferentiable
from penstock.tables.delta import compiler
from penstock.tables.delta.compiler import compile_query
from tests.unit.tables.delta.duck import Views

COLUMNS = {"t": ["k", "n", "xs"], "u": ["k", "m"], "odd": ["a", "__w"]}
REFUSED = {
    "WITH RECURSIVE tree AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM tree) SELECT n FROM tree":
        ("recursive", "WITH RECURSIVE tree: recursive queries are recomputed in full"),
    "SELECT k, rand() FROM t": ("volatile", "rand() may answer differently"),
    "SELECT k FROM t WHERE n > unix_timestamp()": ("volatile", "current_timestamp()"),
    "SELECT k FROM t TABLESAMPLE (10 PERCENT)": ("sampled", "tablesample()"),
    "SELECT k FROM t LIMIT 5": ("order_dependent", "LIMIT 5: without ORDER BY"),
    "SELECT k FROM t OFFSET 2": ("order_dependent", "OFFSET 2: without ORDER BY"),
    "SELECT k FROM (SELECT k FROM t LIMIT 1) x": ("order_dependent", "LIMIT 1"),
    "SELECT k, first(n) FROM t GROUP BY k": ("order_dependent", "FIRST(t.n)"),
    "SELECT k, collect_list(n) FROM t GROUP BY k": ("order_dependent", "COLLECT_LIST(t.n)"),
    "SELECT listagg(k) WITHIN GROUP (ORDER BY n) FROM t": ("order_dependent", "LISTAGG(t.k)"),
    "SELECT k, max_by(n, k) FROM t GROUP BY k": ("order_dependent", "MAX_BY"),
    "SELECT k, approx_percentile(n, 0.5) FROM t GROUP BY k": ("order_dependent", "PERCENTILE"),
    "SELECT row_number() OVER (ORDER BY n) FROM t": ("whole_window", "ROW_NUMBER() OVER"),
    "SELECT last_value(n) OVER (PARTITION BY k ORDER BY n) FROM t":
        ("order_dependent", "share a RANGE frame"),
    "SELECT nth_value(n, 2) OVER (PARTITION BY k ORDER BY n) FROM t":
        ("order_dependent", "share a RANGE frame"),
    "SELECT first_value(xs) OVER (PARTITION BY k ORDER BY n RANGE BETWEEN 5 PRECEDING AND "
    "CURRENT ROW) FROM t": ("order_dependent", "share a RANGE frame"),
    "SELECT first_value(xs) IGNORE NULLS OVER (PARTITION BY k ORDER BY n) FROM t":
        ("order_dependent", "share a RANGE frame"),
    "SELECT sum(n) OVER () FROM t": ("whole_window", "without PARTITION BY"),
    "SELECT k FROM t WHERE n > ALL (SELECT m FROM u)": ("unsupported", "ALL and ANY"),
    "SELECT * FROM t PIVOT (sum(n) FOR k IN (1, 2))": ("unsupported", "PIVOT"),
    "SELECT t.k FROM t, LATERAL (SELECT m FROM u WHERE u.k = t.k) x": ("correlated", "LATERAL"),
    "SELECT (SELECT m FROM u WHERE u.k = t.k ORDER BY m LIMIT 1) FROM t": ("correlated", "LIMIT"),
    "SELECT k FROM t WHERE EXISTS (SELECT count(*) FROM u WHERE u.k = t.k)":
        ("correlated", "an aggregate of a correlated EXISTS"),
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE EXISTS "
    "(SELECT 1 FROM u v WHERE v.k = t.k))": ("correlated", "further out than the next"),
    "SELECT k FROM t WHERE n IN (SELECT max(m) FROM u WHERE u.k = t.k)":
        ("correlated", "an aggregate of a correlated"),
    "SELECT a.k FROM t a CROSS JOIN u b RIGHT JOIN u c ON b.k = c.k":
        ("unsupported", "a RIGHT join after a comma"),
    "SELECT t.k FROM t LEFT JOIN u ON t.k = u.k AND EXISTS (SELECT 1 FROM u c WHERE c.m = 2)":
        ("correlated", "the condition of a LEFT JOIN: a subquery has no rule there"),
    "SELECT k FROM t LEFT JOIN (u RIGHT JOIN t w USING (k)) USING (k)":
        ("unsupported", "has no rule in parentheses"),
    "SELECT n AS `all`, k FROM t ORDER BY ALL LIMIT 2":
        ("unsupported", "ORDER BY ALL: there is a column of that name"),
    "SELECT count(*) FROM t GROUP BY GROUPING SETS ((), ())": ("unsupported", "by nothing twice"),
    "SELECT to_json(struct(*)) AS j FROM u": ("unsupported", "name the columns instead of *"),
    "SELECT k, hash(*) AS h FROM t": ("unsupported", "HASH(*): name the columns instead of *"),
    "SELECT count(DISTINCT *) AS c FROM u": ("unsupported", "DISTINCT *: name the columns"),
    "SELECT count(u.*) AS c FROM u": ("unsupported", "COUNT(u.*): name the columns instead of *"),
    "SELECT x.k FROM elsewhere x": ("unknown_columns", "elsewhere"),
    "SELECT id FROM explode(array(1, 2)) AS x(id)": ("unsupported", "table function"),
    "SELECT k COLLATE UTF8_LCASE AS k FROM t": ("unsupported", "equal by a collation"),
    "SELECT collate(k, 'UTF8_LCASE') AS k FROM t": ("unsupported", "equal by a collation"),
    "SELECT TIME '10:00:00' AS x FROM t": ("unsupported", "TIME"),
    "SELECT n AS `__W` FROM t": ("unsupported", "__W: refreshes from changes need the name"),
    "SELECT n AS _penstock_weight FROM t": ("unsupported", "rename the column"),
    "SELECT a FROM odd": ("unsupported", "odd.__w: refreshes from changes need the name"),
    "SELECT k, posexplode(xs) FROM t": ("unsupported", "use LATERAL VIEW"),
    "SELECT k, json_tuple(xs, 'a', 'b') FROM t": ("unsupported", "use LATERAL VIEW"),
    "SELECT * FROM range(3)": ("unresolved", "its columns are not known"),
    "SELECT k, localtime() FROM t": ("volatile", "localtime()"),
    "SELECT aes_encrypt(k, 'abcdefghijklmnop') FROM t": ("volatile", "aes_encrypt()"),
    "SELECT k, n FROM t SORT BY n": ("unsupported", "SORT BY"),
    "SELECT k, count(*) FROM t GROUP BY k, session_window(n, '5 minutes')":
        ("unsupported", "SESSION_WINDOW(n, '5 minutes'): a row may join or extend the windows"),
    "SELECT session_window(n, '5 minutes') AS w, k FROM t": ("unsupported", "SESSION_WINDOW"),
    "SELECT k, posexplode(xs) AS (p, e) FROM t": ("unsupported", "use LATERAL VIEW"),
    "SELECT k FROM t WHERE window(n, '5 minutes').start > k": ("unsupported", "WINDOW(n,"),
    "SELECT k, sum(window(n, '5 minutes').start) FROM t GROUP BY k": ("unsupported", "WINDOW(n,"),
    "SELECT n:a AS x FROM t": ("unsupported", "v:path: has no rule"),
    "SELECT k, posexplode_outer(xs) FROM t": ("unsupported", "use LATERAL VIEW"),
    "SELECT k FROM t WHERE n < 'today'": ("volatile", "current_date()"),
    "SELECT k, localtime FROM t": ("volatile", "localtime()"),
    "SELECT k, user FROM t": ("unresolved", "'user'"),
    "SELECT theta_sketch_agg(n) AS s FROM t": ("order_dependent", "THETA_SKETCH_AGG"),
    "SELECT k, any(n > 1), first(n, true) AS x FROM t GROUP BY k":
        ("order_dependent", "FIRST(t.n) IGNORE NULLS"),
}  # fmt: skip


@pytest.mark.parametrize("query", REFUSED)
def test_what_has_no_rule_is_refused_by_name(query: str) -> None:
    cause, said = REFUSED[query]
    with pytest.raises(NotDifferentiable) as refused:
        compile_query(query, COLUMNS)
    assert refused.value.detail["cause"] == cause
    assert said in refused.value.message
    assert refused.value.message.endswith("; use mode AUTO or FULL")
    assert refused.value.code == "not_differentiable"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, sort_array(collect_list(n)) AS l FROM t GROUP BY k",
        "SELECT listagg(CAST(n AS STRING), ',') WITHIN GROUP (ORDER BY n DESC) l FROM t GROUP BY k",
        "SELECT string_agg(DISTINCT k) WITHIN GROUP (ORDER BY k) FILTER (WHERE n > 1) l FROM t",
        "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k LIMIT 1)",
        "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u a JOIN u b ON a.k = b.m AND b.k = t.k)",
        "SELECT t.*, x.k AS l FROM t JOIN (SELECT * EXCEPT (m) FROM u) x ON t.k = x.k",
        "SELECT k, count(*) FILTER (WHERE n > 1) AS c FROM t GROUP BY k HAVING count(*) > 1",
        "SELECT k FROM t WHERE EXISTS (SELECT * FROM u) OR 1 < (SELECT count(*) FROM u)",
        "SELECT k FROM t ORDER BY n",
        "SELECT k, n, row_number() OVER w AS r FROM t WINDOW w AS (PARTITION BY k ORDER BY n)",
        "SELECT k, n FROM t QUALIFY rank() OVER (PARTITION BY k ORDER BY n) = 1",
        "SELECT id FROM range(10) WHERE id IN (SELECT k FROM t)",
        "SELECT v.a, t.k FROM VALUES (1, 'x'), (2, 'y') AS v(a, b) JOIN t ON t.k = v.a",
        "SELECT main.t.k FROM main.t",
        "SELECT `K` AS `a b` FROM T",
        "SELECT 1 AS one",
        "SELECT struct(k, n) AS s, xs[0] AS x FROM t WHERE k BETWEEN 1 AND 3",
        "(SELECT k FROM t ORDER BY n LIMIT 2) UNION ALL (SELECT m FROM u ORDER BY m LIMIT 1)",
        "SELECT count(*) FROM t HAVING count(*) > 1",
        "SELECT k % 2 AS p, count(*) AS n FROM t GROUP BY p HAVING n > 1 ORDER BY n LIMIT 3",
        "SELECT /*+ BROADCAST(u) */ t.k FROM t JOIN u USING (k)",
    ],
)
def test_what_only_looks_difficult_is_taken(query: str) -> None:
    compile_query(query, COLUMNS)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT window.start, window.end AS e, sum(n) AS s FROM t GROUP BY window(k, '5 minutes')",
        "SELECT window, sum(n) AS s FROM t GROUP BY window(k, '5 minutes') ORDER BY window.start",
        "SELECT sum(n) AS s FROM t GROUP BY xs, window(k, '5 minutes') HAVING window.end > sum(n)",
        "SELECT window(k, '5 minutes').start, sum(n) AS s FROM t GROUP BY window(k, '5 minutes')",
        "SELECT window(k, '5 minutes') AS w, sum(n) AS s FROM t GROUP BY w",
    ],
)
def test_a_time_window_is_a_key_of_its_rows(query: str) -> None:
    text = compile_query(query, COLUMNS).full(Views())
    assert "WINDOW(c1, '5 minutes') AS c" in text
    assert text.count("WINDOW(") == 1


def test_a_column_called_window_is_that_column() -> None:
    columns = {"t": ["k", "window"]}
    compiled = compile_query("SELECT window, count(*) AS n FROM t GROUP BY window", columns)
    assert "`window` AS c2" in compiled.full(Views())
    with pytest.raises(NotDifferentiable, match="window"):
        compile_query("SELECT window, count(*) AS n FROM t GROUP BY window(k, '1 day')", columns)


@pytest.mark.parametrize("made", ["window(n, '10 minutes', '5 minutes')", "explode(xs)"])
def test_what_makes_rows_stays_even_if_nothing_uses_it(made: str) -> None:
    compiled = compile_query(f"SELECT k FROM (SELECT k, {made} AS w FROM t)", COLUMNS)
    assert made.partition("(")[0].upper() in compiled.full(Views())


def test_a_query_that_the_compiler_fails_on_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(compiler, "pruned", fail)
    with pytest.raises(
        NotDifferentiable, match=r"the compiler failed \(ValueError: odd\)"
    ) as found:
        compile_query("SELECT k AS never_seen_before FROM t", COLUMNS)
    assert found.value.detail["cause"] == "unsupported"
    assert "never_seen_before" in caplog.text


def test_fields_of_structs_keep_their_spelling() -> None:
    compiled = compile_query("SELECT struct(n AS MyN, `K`, n + 1) AS s FROM t", COLUMNS)
    assert "NAMED_STRUCT('MyN', c2, 'K', c1, 'col3', c2 + 1)" in compiled.full(Views())


@pytest.mark.parametrize(
    "call",
    [
        "TO_CHAR(n, '99G999')",
        "INSTR(xs, 'b', -1, 2)",
        "PARSE_JSON(xs)",
        "UNIX_DATE(k)",
        "CURRENT_CATALOG()",
        "LOG10(n)",
        "LOG2(n)",
        "TO_DATE(k, 'y')",
        "TO_TIMESTAMP(k, '%j')",
        "UNIX_TIMESTAMP(k, 'y')",
        "DATE_FORMAT(k, 'y')",
        "FROM_UNIXTIME(k, 'y-D')",
        "ELEMENT_AT(xs, 1)",
        "DECODE(k, 'UTF-8')",
        "ARRAY_SORT(xs)",
        "NVL2(k, 'a', 'b')",
    ],
)
def test_functions_that_the_parser_would_write_as_others_stay(call: str) -> None:
    text = compile_query(f"SELECT {call} AS x FROM t", COLUMNS).full(Views())
    name, arguments = call[:-1].split("(", 1)
    constants = arguments.partition(",")[2]
    assert f"{name}(" in text
    assert f"{constants})" in text


def test_texts_are_those_that_spark_reads() -> None:
    """`''` is a quote in a text in quotes of its kind; two texts side by side are one."""
    for written, read in {
        "'O''Brien'": r"'O\'Brien'",
        '"a""b"': "'a\"b'",
        "'a\"\"b'": "'a\"\"b'",
        "\"a''b\"": r"'a\'\'b'",
        r"'it\'s'": r"'it\'s'",
        "''": "''",
        "''''": r"'\''",
        "'a' 'b'": "CONCAT('a', 'b')",
        "'a''' 'b'": r"CONCAT('a\'', 'b')",
        r"r'a\b'": r"'a\\b'",
    }.items():
        text = compile_query(f"SELECT k FROM t WHERE n = {written}", COLUMNS).full(Views())
        assert f" = {read})" in text, (written, text)


def test_a_column_stays_where_a_function_takes_a_keyword_too() -> None:
    text = compile_query("SELECT trunc(k, n) AS x FROM t", COLUMNS).full(Views())
    assert "TRUNC(c1, c2)" in text


def test_an_exact_percentile_stays_exact() -> None:
    query = "SELECT k, percentile_cont(0.25) WITHIN GROUP (ORDER BY n) AS p FROM t GROUP BY k"
    assert "PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY" in compile_query(query, COLUMNS).full(
        Views()
    )


def test_names_come_from_the_query_or_from_who_knows_better() -> None:
    assert compile_query("SELECT `K`, n AS `My n` FROM t", COLUMNS).columns == ("K", "My n")
    named = compile_query("SELECT k, n + 1 FROM t", COLUMNS, ["k", "(n + 1)"])
    assert named.columns == ("k", "(n + 1)")
    with pytest.raises(NotDifferentiable, match="has 1 columns, not 2"):
        compile_query("SELECT k FROM t", COLUMNS, ["a", "b"])
