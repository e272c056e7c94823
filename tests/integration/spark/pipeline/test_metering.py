"""The metering pipeline from a raw topic into the lake, with a real server and a real Spark."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.client import Client, Record
from penstock.ingest.windows import Windows
from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.metering.pipeline import metering
from penstock.metering.tariff_space import TariffSpace
from penstock.spark.link import SparkLink
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.chain import NotChainable, StepFailed
from penstock.spark.pipeline.cursors import TakenOver, cursor_of
from penstock.spark.pipeline.definition import Pinned
from penstock.spark.pipeline.replay import Replayed, replay
from penstock.spark.pipeline.runner import PipelineRunner, RunnerOptions
from tests.integration.lake.duck import Duck
from tests.integration.spark.pipeline.fleet import (
    KNOWN,
    OLD,
    UNKNOWN,
    Fleet,
    fill_tariffs,
    space_of,
)
from tests.waiting import wait_until

DEADLINE_S = 400


def until(condition: Callable[[], Any], what: str) -> None:
    wait_until(condition, what, patience_s=DEADLINE_S)


class Running:
    """A runner in a thread of its own."""

    def __init__(self, runner: PipelineRunner, upto_seq: int | None = None) -> None:
        self.runner = runner
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(upto_seq,), daemon=True)
        self._thread.start()

    def _run(self, upto_seq: int | None) -> None:
        try:
            self.runner.run(upto_seq)
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert self.is_over, "the runner did not end"


def test_every_message_is_in_the_lake_once_with_its_price_or_as_a_dead_letter(
    spark: Any, link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, duck: Duck
) -> None:
    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(7))
    head = fleet.send(600)
    pipeline = metering(url, topic, tariffs=space_of(topic))
    runner = PipelineRunner(pipeline, lake, url, link=link)
    for stage in runner.stages:
        stage.resize(1_024)
    cursor = runner.run(head)
    fleet.check(lake, duck)
    assert (cursor.seq, cursor.messages) == (head, head)
    assert cursor.duplicates == head - 600
    assert cursor.batches == -(-head // 358)
    # After a fix the letters about meters go through, and those that cannot be read stay.
    more = {str(m) for m in (*range(KNOWN), *UNKNOWN)}
    with TariffSpace(url, space_of(topic)) as there:
        there.assign("hours", map(str, UNKNOWN), OLD.isoformat())
    tried = replay(spark, lake, pipeline, reason="unknown_meter")
    assert tried.letters == tried.rows > 0
    assert tried.dead == 0
    fleet.check(lake, duck, meters=more)
    again = replay(spark, lake, pipeline)
    assert (again.rows, again.dead) == (0, again.letters)
    fleet.check(lake, duck, meters=more)
    assert replay(spark, lake, pipeline, reason="nothing like it") == Replayed(0, 0, 0)


@pytest.mark.slow
def test_a_store_that_cannot_write_holds_the_stages_up_and_drains_when_it_can(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, duck: Duck, tmp_path: Path
) -> None:
    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(8))
    runner = PipelineRunner(metering(url, topic, tariffs=space_of(topic)), lake, url, link=link)
    runner.run(fleet.send(50))
    data, away = tmp_path / "data", tmp_path / "away"
    data.rename(away)
    data.write_text("not a directory")
    fleet.send(900)
    for stage in runner.stages:
        stage.resize(1_024)
    running = Running(runner)
    until(lambda: (runner.trouble or "").startswith("store:"), "the store to fail")
    head = fleet.send(100)  # what came before may all stand in the batch that cannot be written
    windows = Windows(runner.stages)
    began = time.monotonic()

    def all_small() -> bool:
        windows.tick(int((time.monotonic() - began) * 1_000))
        return all(stage.window == 1_024 for stage in runner.stages)

    until(all_small, "the smallest windows")
    store = runner.stages[-1]
    until(lambda: store.occupied or running.is_over, "messages that wait for the store")
    assert not running.is_over
    assert cursor_of(lake, "metering").seq < head  # type: ignore[union-attr]
    data.unlink()
    away.rename(data)
    until(lambda: runner.stored_seq >= head or running.is_over, "everything to be stored")
    assert runner.trouble is None
    runner.stop()
    running.join()
    assert running.error is None
    fleet.check(lake, duck)


@pytest.mark.slow
def test_of_two_runners_the_later_one_goes_on_and_the_other_is_told(
    link: SparkLink, spark_url: str, client: Client, url: str, topic: str, lake: Catalog, duck: Duck
) -> None:
    from penstock.spark.options import SparkOptions

    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(9))
    others = SparkLink(SparkOptions(remote=spark_url))
    options = RunnerOptions(wait_ms=100)
    first = Running(
        PipelineRunner(
            metering(url, topic, tariffs=space_of(topic)), lake, url, link=others, options=options
        )
    )
    until(lambda: cursor_of(lake, "metering"), "the first to begin")
    held = cursor_of(lake, "metering")
    second = PipelineRunner(
        metering(url, topic, tariffs=space_of(topic)), lake, url, link=link, options=options
    )
    running = Running(second)
    until(lambda: cursor_of(lake, "metering") != held, "the second to begin")
    head = fleet.send(80)
    until(lambda: second.stored_seq == head, "the rows")
    until(lambda: first.is_over, "the first to end")
    assert isinstance(first.error, TakenOver)
    second.stop()
    running.join()
    assert running.error is None
    others.close()
    fleet.check(lake, duck)


def test_a_pipeline_of_somebody_else_clicks_on_pages(
    spark: Any, link: SparkLink, client: Client, url: str, topic: str, lake: Catalog
) -> None:
    def parse(raw: Any) -> Any:
        return raw.selectExpr(
            "_seq", "from_json(payload, 'page STRING, user BIGINT') AS click", "received_at",
            "IF(click.page IS NULL, concat('no page in ', payload), NULL) AS _reason",
        )  # fmt: skip

    def evaluate(rows: Any) -> Any:
        return rows.selectExpr(
            "_seq", "click.page", "click.user", "split(click.page, '/')[1] AS section",
            "received_at", "IF(click.user < 0, 'a robot', NULL) AS _reason",
        )  # fmt: skip

    pipeline = Pipeline(topic, parse, evaluate, "clicks")
    clicks = [{"page": f"/{'ab'[n % 2]}/{n}", "user": n} for n in range(20)]
    last = client.write(topic, [*clicks, {"pgae": "/x"}, Record({"page": "/a/1", "user": -5})])
    cursor = PipelineRunner(pipeline, lake, url, link=link).run(last.last_seq)
    assert (cursor.name, cursor.rows_stored, cursor.rows_dead) == (topic, 20, 2)
    found = lake.scan("clicks")
    assert found.column_names == ["page", "user", "section", "received_at"]
    assert sorted(found["user"].to_pylist()) == list(range(20))
    assert set(found["section"].to_pylist()) == {"a", "b"}
    letters = sorted(lake.scan("dead_letters").to_pylist(), key=lambda row: row["seq"])
    assert [(row["stage"], row["reason"], row["payload"]) for row in letters] == [
        ("parse", 'no page in {"pgae":"/x"}', b'{"pgae":"/x"}'),
        ("evaluate", "a robot", b'{"page":"/a/1","user":-5}'),
    ]

    def forgiving(raw: Any) -> Any:
        return parse(
            raw.selectExpr("_seq", "received_at", "replace(payload, 'pgae', 'page') payload")
        )

    fixed = Pipeline(topic, forgiving, evaluate, "clicks")
    assert replay(spark, lake, fixed, reason="no page") == Replayed(1, 1, 0)
    assert lake.scan("dead_letters").num_rows == 1
    assert lake.scan("clicks").num_rows == 21


def test_steps_that_lose_the_seq_and_targets_without_a_column_are_refused_by_name(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog
) -> None:
    last = client.write(topic, [{"a": 1}]).last_seq
    lost = Pipeline(topic, lambda raw: raw.select("payload"), lambda rows: rows, "t", name="a")
    with pytest.raises(Rejected, match="parse must keep the column _seq; it gives payload"):
        PipelineRunner(lost, lake, url, link=link).run(last)
    short = Pipeline(topic, lambda raw: raw, lambda rows: rows, {"t": ["price"]}, name="b")
    with pytest.raises(Rejected, match="evaluate does not give price"):
        PipelineRunner(short, lake, url, link=link).run(last)
    assert [table.name for table in lake.tables()] == []
    other = Pipeline("other", lambda raw: raw, lambda rows: rows, "t", name="a")
    client.put_topic("other")
    with pytest.raises(Rejected, match="not 'other': give this one another name"):
        PipelineRunner(other, lake, url, link=link).run(1)


@pytest.mark.parametrize("stage", ["parse", "evaluate", "evaluate with documents"])
def test_a_step_that_runs_a_query_of_its_own_ends_the_run_before_any_message_comes(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, stage: str
) -> None:
    def counts(rows: Any) -> Any:
        return rows.limit(rows.count())

    class WithDocuments:
        def pin(self) -> Pinned:
            return Pinned(counts)

        def close(self) -> None:
            """Nothing was opened."""

    def same(rows: Any) -> Any:
        return rows

    client.put_topic(topic)
    steps = {"parse": (counts, same), "evaluate": (same, counts)}
    parse, evaluate = steps.get(stage, (same, WithDocuments()))
    name = stage.partition(" ")[0]
    running = Running(PipelineRunner(Pipeline(topic, parse, evaluate, "t"), lake, url, link=link))
    until(lambda: running.is_over, "the run to be refused")
    assert isinstance(running.error, NotChainable)
    assert f"{name} runs a query of its own" in str(running.error)


class Documents:
    """An evaluate whose documents cannot be had the first few times."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def pin(self) -> Pinned:
        if self._errors:
            raise self._errors.pop(0)
        return Pinned(lambda rows: rows)

    def close(self) -> None:
        """Nothing was opened."""


@pytest.mark.parametrize(
    ("parse", "evaluate", "said"),
    [
        (lambda raw: raw.selectExpr("_seq", "price"), lambda rows: rows, "parse: AnalysisExc"),
        (lambda raw: raw, lambda rows: rows.selectExpr("_seq", "price"), "evaluate: AnalysisExc"),
        (lambda raw: raw, lambda rows: rows.limits(1), "evaluate: TypeError"),
        (lambda raw: raw, Documents(KeyError("most")), "evaluate: KeyError: 'most'"),
    ],
)
def test_an_error_of_a_step_itself_ends_the_run_at_the_start_and_says_the_stage(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog,
    parse: Any, evaluate: Any, said: str,
) -> None:  # fmt: skip
    client.put_topic(topic)
    running = Running(PipelineRunner(Pipeline(topic, parse, evaluate, "t"), lake, url, link=link))
    until(lambda: running.is_over, "the run to end")
    assert isinstance(running.error, StepFailed)
    assert re.match(said, str(running.error)), running.error


def test_documents_that_cannot_be_had_for_a_while_are_waited_for(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog
) -> None:
    head = client.write(topic, [{"n": 1}], create=True).last_seq
    away = [ConnectionRefusedError("nobody listens")] * 3
    runner = PipelineRunner(Pipeline(topic, same, Documents(*away), "t"), lake, url, link=link)
    told: list[str | None] = []
    running = Running(runner, head)
    until(lambda: told.append(runner.trouble) or running.is_over, "the record to be stored")
    assert running.error is None
    assert any("evaluate: Unavailable: ConnectionRefusedError" in (each or "") for each in told)
    assert lake.scan("t").num_rows == 1


def same(rows: Any) -> Any:
    return rows
