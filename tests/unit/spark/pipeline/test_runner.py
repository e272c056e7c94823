from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from penstock.kernel.errors import Unavailable
from penstock.lake.catalog import Catalog, open_catalog
from penstock.spark.pipeline.chain import StageFailed, StepFailed, in_stage
from penstock.spark.pipeline.cursors import Cursor, take_over
from penstock.spark.pipeline.definition import Pinned, Pipeline
from penstock.spark.pipeline.runner import PipelineRunner, RunnerOptions, is_final

PIPELINE = Pipeline("raw", lambda raw: raw, lambda rows: rows, "t")
SOON = RunnerOptions(failures_max=4, retry_base_ms=1, retry_cap_ms=1)


class Troubled(PipelineRunner):
    """A runner that finds its lake away so many times."""

    def __init__(self, lake: Catalog, away: int) -> None:
        super().__init__(PIPELINE, lake, "http://127.0.0.1:9", options=SOON)
        self.away = away

    def _begin(self, holder: str) -> Cursor:
        self.away -= 1
        if self.away >= 0:
            raise sqlite3.OperationalError("disk I/O error")
        return take_over(self._lake, "raw", "raw", 1, holder)


def test_a_lake_that_is_away_when_a_round_begins_is_waited_for(tmp_path: Path) -> None:
    with open_catalog(f"sqlite:{tmp_path}/lake.sqlite") as lake:
        runner = Troubled(lake, away=3)
        assert runner.run(0).name == "raw"
        assert runner.away == -1
        assert runner.trouble == "OperationalError: disk I/O error"


def test_a_lake_that_stays_away_is_told_in_the_end(tmp_path: Path) -> None:
    with open_catalog(f"sqlite:{tmp_path}/lake.sqlite") as lake:
        runner = Troubled(lake, away=100)
        with pytest.raises(sqlite3.OperationalError):
            runner.run(0)
        assert runner.away == 96


def test_a_run_that_is_stopped_does_not_ask_the_server_where_it_is(tmp_path: Path) -> None:
    with open_catalog(f"sqlite:{tmp_path}/lake.sqlite") as lake:
        runner = Troubled(lake, away=1)
        take_over(lake, "raw", "raw", 1, "before")
        runner.stop()
        assert runner.run().holder == "before"


@pytest.mark.parametrize(
    ("error", "ends"),
    [(TypeError("no such column"), True), (KeyError("most"), True), (RuntimeError("once"), False)],
)
def test_an_error_of_a_step_has_its_stage_and_ends_a_run_if_it_is_in_the_code(
    error: Exception, ends: bool
) -> None:
    with pytest.raises(StepFailed, match=r"^evaluate: ") as raised, in_stage("evaluate"):
        raise error
    assert is_final(raised.value) is ends
    told = StageFailed("parse", "a row that cannot be divided")
    told.__cause__ = error
    assert not is_final(told), "other rows may be fine"


def test_documents_that_cannot_be_reached_are_away_and_no_error_of_the_step() -> None:
    class Away:
        def pin(self) -> Pinned:
            raise ConnectionRefusedError("nobody listens")

        def close(self) -> None:
            """Nothing was opened."""

    pipeline = Pipeline("raw", lambda raw: raw, Away(), "t")
    with pytest.raises(Unavailable, match="ConnectionRefusedError: nobody"), in_stage("evaluate"):
        pipeline.pinned()
