"""The names that are resolved without Spark, against Spark: nothing it accepts may be refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from sqlglot import tokenize

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.spark.refresh import query_frame
from penstock.tables.query.resolve import RelationShape, resolve
from penstock.tables.query.sources import read_sources
from tests.unit.tables.query.corpus import ACCEPTED, REFUSED, SCHEMAS, TPCH, TPCH_SCHEMAS

KNOWN = {name: RelationShape(tuple(schema.names)) for name, schema in SCHEMAS.items()}
TABLES = {name: pa.Table.from_pylist([{}], schema) for name, schema in SCHEMAS.items()}
TPCH_TABLES = {name: pa.Table.from_pylist([{}], schema) for name, schema in TPCH_SCHEMAS.items()}
WORDS = sorted({name for schema in SCHEMAS.values() for name in schema.names if " " not in name})
MUTANTS = 150


def said_by_spark(
    spark: Any, lake: Catalog, query: str, tables: dict[str, pa.Table] = TABLES
) -> str | None:
    """What Spark says against a query, or None; nothing is run."""
    from pyspark.errors import PySparkException

    sources = read_sources(query)
    if not set(sources) <= set(tables):
        return "TABLE_OR_VIEW_NOT_FOUND"
    try:
        query_frame(spark, lake, query, {name: tables[name] for name in sources}).schema  # noqa: B018
    except PySparkException as error:
        return str(error.getCondition())
    return None


def mutants(random: Random) -> Iterator[str]:
    """Queries with another name somewhere, or with one more part of a name."""
    while True:
        query = random.choice(ACCEPTED)
        names = [token for token in tokenize(query, read="spark") if token.text in WORDS]
        if not names:
            continue
        at, word = random.choice(names), random.choice([*WORDS, "o", "p", "t", "orders", "people"])
        before, name, after = query[: at.start], query[at.start : at.end + 1], query[at.end + 1 :]
        yield before + random.choice([word, word, f"{word}.{name}", f"{name}.{word}"]) + after


def is_refused_for_a_name(query: str) -> bool:
    try:
        resolve(query, KNOWN)
    except Rejected as error:
        return error.message.startswith(("no ", "topic "))  # others cannot be parsed
    return False


@pytest.mark.slow
def test_spark_agrees_with_the_lists_of_what_is_accepted_and_what_is_refused(
    spark: Any, lake: Catalog
) -> None:
    said = {query: said_by_spark(spark, lake, query) for query in ACCEPTED}
    assert {query: found for query, found in said.items() if found is not None} == {}
    accepted = [query for query, *_ in REFUSED if said_by_spark(spark, lake, query) is None]
    assert accepted == []
    said = {query: said_by_spark(spark, lake, query, TPCH_TABLES) for query in TPCH}
    assert {query: found for query, found in said.items() if found is not None} == {}


def test_nothing_that_spark_accepts_is_refused_whatever_the_names_are(
    spark: Any, lake: Catalog
) -> None:
    refused = islice(filter(is_refused_for_a_name, mutants(Random(17))), MUTANTS)
    assert [query for query in refused if said_by_spark(spark, lake, query) is None] == []
