"""What a coordinator keeps for its workers, where no Spark is started or none can be."""

from __future__ import annotations

from pathlib import Path

from penstock.spark.options import SparkOptions
from penstock.spark.refresh import SESSION, TAKES_OVER, SparkHost, host


def test_a_spark_that_somebody_else_runs_serves_at_once_and_each_worker_has_its_session() -> None:
    kept = host({"remote": "sc://somewhere:1", "conf": {"a": "b"}}, print)
    assert kept.generation() == 0
    one, other = kept.factory(), kept.factory()
    assert one.options["remote"] == "sc://somewhere:1"
    assert one.options["conf"] == {"a": "b"}
    assert one.options[SESSION] != other.options[SESSION]
    assert TAKES_OVER not in other.options
    kept.close()


def test_who_takes_a_dead_workers_place_is_told_of_its_session() -> None:
    kept = host({"remote": "sc://somewhere:1"}, print)
    dead = kept.factory()
    assert kept.factory(dead).options[TAKES_OVER] == dead.options[SESSION]
    elsewhere = host({"remote": "sc://elsewhere:1"}, print)
    assert TAKES_OVER not in elsewhere.factory(dead).options, "of another Spark"


def test_a_spark_that_cannot_start_says_why_and_polling_does_not_wait(tmp_path: Path) -> None:
    said: list[str] = []
    kept = SparkHost(SparkOptions(java_home=tmp_path), said.append)
    assert kept.generation() is None
    kept.close()  # waits for the start that was begun
    assert said[0].startswith("Spark did not start, next try in 1 s: Spark needs Java")
    assert (kept.trouble() or "").startswith("Spark needs Java 17 or newer")
    assert kept.generation() is None
    assert kept.pid is None
    kept.close()
