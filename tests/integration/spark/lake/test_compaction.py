"""Compaction of files that Spark's tasks wrote: below and above its limits no value changes."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest

from penstock.lake.catalog import Catalog
from penstock.lake.compact import CompactionPolicy, compact
from penstock.spark.lake.types import lake_schema
from penstock.spark.lake.writing import write_table
from penstock.spark.refresh import query_frame
from tests.integration.lake.duck import Duck
from tests.integration.spark.agree import THERE_ONLY, assert_agree
from tests.integration.spark.lake.test_task_files import BOTH, sources
from tests.integration.spark.refreshing import refresh, versions


def frame_of(spark: Any, lake: Catalog, query: str) -> Any:
    return query_frame(spark, lake, query, versions(lake, query))


@pytest.mark.parametrize("query", [f"SELECT o.s, i.l, i.m, o.city, i.id {BOTH}",
                                   f"SELECT o.city, o.s, i.id {BOTH}"])  # fmt: skip
def test_compaction_of_what_tasks_wrote_changes_no_value(
    spark: Any, lake: Catalog, duck: Duck, query: str
) -> None:
    """With deleted rows, into several files: more than one may hold."""
    sources(duck)
    names = ", ".join(lake_schema(frame_of(spark, lake, query).schema).names)
    wide = f"SELECT /*+ REPARTITION(12) */ {names} FROM ({query})"
    refresh(spark, lake, "made", wide, collect_rows_max=-1, small_bytes=1)
    duck.run("DELETE FROM made WHERE id % 5 = 0")
    before = assert_agree(spark, lake, duck, "made")
    files = lake.table_at("made").files
    assert len(files) > 8
    some = 4 * max(file.size_bytes for file in files)
    done = compact(lake, "made", CompactionPolicy(target_bytes=some, small_bytes=some, files_min=2))
    assert done.files_rewritten + done.files_merged > 0
    assert 1 < len(lake.table_at("made").files) < len(files)
    assert assert_agree(spark, lake, duck, "made") == before


@pytest.mark.slow
def test_compaction_at_its_own_limits_changes_no_value(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    """Files of tasks below and above the size that is merged, as the defaults have it."""
    policy = CompactionPolicy(files_min=2)
    large = policy.small_bytes // 64 + 50_000
    duck.run(
        "CREATE TABLE source AS SELECT i AS id, unhex(sha256('a' || i)) AS h, "
        f"{{'x': i, 'y': unhex(sha256('b' || i))}} AS s FROM range({large}) r(i)"
    )
    for count in (large, 40_000, 30_000):
        change = lake.begin(reserve_ms=600_000)
        query = f"SELECT /*+ COALESCE(1) */ s, h, id FROM source WHERE id < {count}"
        frame = frame_of(spark, lake, query)
        known = [table for table in lake.tables() if table.name == "made"]
        table = known[0] if known else change.create_table(
            lake.schema("main"), "made", lake_schema(frame.schema)
        )  # fmt: skip
        written = write_table(lake.storage, table, frame, token=change.token,
                              rows_expected=large, options=THERE_ONLY)  # fmt: skip
        change.add_files(table, written.files)
        lake.commit(change)
    sizes = sorted(file.size_bytes for file in lake.table_at("made").files)
    assert sizes[1] < policy.small_bytes < sizes[2]
    digest = "SELECT sum(hash(t)::HUGEINT), count(*) FROM (SELECT id, h, s FROM {}) t"
    before = duck.rows(digest.format("made"))
    assert compact(lake, "made", policy).files_merged == 2
    assert sizes[2] in [file.size_bytes for file in lake.table_at("made").files]
    assert duck.rows(digest.format("made")) == before
    ours = lake.scan("made")
    assert (ours.num_rows, pc.sum(ours["id"]).as_py()) == (
        large + 70_000, sum(n * (n - 1) // 2 for n in (large, 40_000, 30_000))
    )  # fmt: skip
