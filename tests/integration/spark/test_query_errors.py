"""Whatever Spark says against a query is one line: what, where in the text, what was meant."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.kernel.errors import PenstockError
from penstock.lake.catalog import Catalog
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.spark.options import SparkOptions
from penstock.spark.refresh import SparkEngine
from penstock.tables.core.failures import FailureKind
from penstock.tables.worker.outcomes import detail_of, kind_of

WRONG = FailureKind.PERMANENT
MAY_PASS = FailureKind.RETRYABLE
SAID = [
    ("SELECT id, nmae FROM sales.t", WRONG,
     r"no column 'nmae' \(line 1, column 12: nmae\): did you mean 'name'\? there are .*id"),
    ("SELECT id,\n  sales.t.nmae\nFROM sales.t", WRONG, r"\(line 2, column 3: sales\.t\.nmae\)"),
    ("SELECT conut(id) AS n FROM sales.t", WRONG,
     r"no function 'conut' \(line 1, column 8: conut\(id\)\): did you mean 'count'\?"),
    ("SELECT s.naem FROM sales.t", WRONG, r"[Nn]o such struct field `naem` .*\(line 1, column 8"),
    ("SELECT a.id FROM sales.t a JOIN sales.t b ON id = 1", WRONG,
     r"`id` is ambiguous, could be: .* \(line 1, column 46: id\)"),
    ("SELECT name * DATE'2020-01-01' AS x FROM sales.t", WRONG,
     r"data type mismatch.*\(line 1, column 8: name \* DATE'2020-01-01'\)"),
    ("SELECT id, count(*) AS n FROM sales.t", WRONG, r"GROUP BY clause"),
    ("SELECT id FROM sales.t UNION SELECT id, name FROM sales.t", WRONG,
     r"same number of columns.*\(line 1, column 1: SELECT id FROM sales\.t UNION SELECT"),
    ("SELECT id FROM sales.t WHERE id RLIKE", WRONG, r"line 1, column"),
    ("SELECT INTERVAL 1 NOTHING FROM sales.t", WRONG, r"\(line 1, column \d+"),
    ("SELECT 7 AS seven, 1 / (id - 1) AS x FROM sales.t", MAY_PASS,
     r"^Division by zero\. Use `try_divide` .* instead \(line 1, column 20: 1 / \(id - 1\)\)$"),
    ("SELECT CAST(name AS INT) AS x FROM sales.t", MAY_PASS,
     r"The value 'a' .* cannot be cast to \"INT\".*\(line 1, column 8: CAST\(name AS INT\)\)"),
    ("SELECT id * 9223372036854775807 AS x FROM sales.t", WRONG,
     r"overflow.*\(line 1, column 8: id \* 9223372036854775807\)"),
    ("SELECT sum(id + 9223372036854775000) AS x FROM sales.t", WRONG, r"^overflow\..* instead$"),
    ("SELECT (SELECT id FROM sales.t) AS x", MAY_PASS, r"More than one row .*\(line 1, column 8"),
    ("SELECT raise_error('my\nown') AS x FROM sales.t", MAY_PASS, r"^my own"),
    ("SELECT to_date(name, 'yyyy') AS x FROM sales.t", MAY_PASS, r"could not be parsed"),
]  # fmt: skip


@pytest.fixture(scope="module")
def engine(
    embedded: EmbeddedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SparkEngine, Catalog]]:
    from penstock.lake.catalog import open_catalog

    home = tmp_path_factory.mktemp("saying")
    with open_catalog(f"sqlite:{home}/catalog.sqlite", str(home / "data")) as lake:
        rows = pa.table({"id": [1, 2], "name": ["a", "b"], "s": [{"name": 1}, {"name": 2}]})
        change = lake.begin(reserve_ms=60_000)
        table = change.create_table(change.create_schema("sales"), "t", rows.schema)
        change.add_files(table, [lake.write(table, rows, token=change.token)])
        lake.commit(change)
        made = SparkEngine(lake, SparkOptions(remote=embedded.url))
        yield made, lake
        made.close()


@pytest.mark.parametrize(("query", "kind", "line"), SAID)
def test_what_spark_says_is_one_line_with_the_place_in_the_text_as_it_was_written(
    engine: tuple[SparkEngine, Catalog],
    capfd: pytest.CaptureFixture[str],
    query: str,
    kind: FailureKind,
    line: str,
) -> None:
    spark, lake = engine
    with pytest.raises(PenstockError) as failed:
        spark.query(query, {"sales.t": lake.table_at("sales.t")})
    assert re.search(line, failed.value.message), failed.value.message
    assert detail_of(failed.value) == failed.value.message, "one line, and not too long"
    for noise in ("SQLSTATE", "org.apache", "penstock_", "stacktrace", "+-"):
        assert noise not in failed.value.message
    assert kind_of(failed.value) is kind
    assert capfd.readouterr() == ("", ""), "pyspark says nothing by itself"


def run(embedded: EmbeddedSpark, lake: Catalog, *words: str) -> subprocess.CompletedProcess[str]:
    place = ("--catalog", f"sqlite:{lake.database.path}", "--spark", embedded.url)
    command = [sys.executable, "-m", "penstock", *words, *place]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_command_that_spark_refuses_prints_one_line_and_leaves_the_reason_with_the_table(
    engine: tuple[SparkEngine, Catalog], embedded: EmbeddedSpark
) -> None:
    _, lake = engine
    asked = run(embedded, lake, "query", "SELECT conut(id) AS n FROM sales.t")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == (
        "Error: no function 'conut' (line 1, column 8: conut(id)): did you mean 'count'?\n"
    )
    query = "SELECT 1 / (id - 1) AS x FROM sales.t"
    made = run(embedded, lake, "table", "create", "ratios", query, "--wait")
    assert made.returncode == 1
    lines = [line for line in made.stderr.splitlines() if line.startswith("Error: ")]
    assert lines == made.stderr.splitlines()[-1:], made.stderr
    assert "Division by zero" in lines[0]
    status = json.loads(run(embedded, lake, "table", "status").stdout)
    assert status["status"] == "ERROR"
    assert "Division by zero" in status["waiting_for"]
    why = json.loads(run(embedded, lake, "table", "why", "ratios").stdout)
    assert "(line 1, column 8: 1 / (id - 1))" in why["text"]
    history = json.loads(run(embedded, lake, "table", "history", "ratios").stdout)
    assert history["reason_text"] == lines[0].removeprefix("Error: ")
