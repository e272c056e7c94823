"""What `penstock ingest run` is told about its Spark, on its command line and in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from penstock.cli.ingest import pipeline_options, pipeline_settings
from penstock.spark.options import SparkOptions

FILE = '[spark]\ncores = 4\nmemory_mb = 1024\n[spark.conf]\n"a.b" = "1"\n"c.d" = "2"\n'


def told(*words: str) -> tuple[SparkOptions | None, str]:
    """The Spark that words ask for; and what they get to read."""
    found: list[SparkOptions] = []

    @click.command()
    @pipeline_options
    def command(
        catalog: str | None, data_path: str | None, spark: str | None, tariffs: str,
        config: Path | None, **flags: Any,
    ) -> None:  # fmt: skip
        found.append(pipeline_settings(config, catalog, data_path, spark, flags).spark)

    result = CliRunner().invoke(command, words)
    return (found[0] if found else None), result.output


def test_cores_memory_and_settings_of_spark_come_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(FILE)
    found, said = told("--config", str(tmp_path / "penstock.toml"))
    assert found is not None, said
    assert (found.cores, found.memory_mb) == (4, 1_024)
    assert found.conf == {"a.b": "1", "c.d": "2"}


def test_the_command_line_wins_over_the_file_and_its_settings_add_up(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(FILE)
    words = ["--spark-cores", "2", "--spark-memory-mb", "3072", "--spark-conf", "c.d=x=y",
             "--spark-conf", "e.f=3"]  # fmt: skip
    found, said = told("--config", str(tmp_path / "penstock.toml"), *words)
    assert found is not None, said
    assert (found.cores, found.memory_mb) == (2, 3_072)
    assert found.conf == {"a.b": "1", "c.d": "x=y", "e.f": "3"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--spark-cores", "0"), "0 is not in the range x>=1"),
        (("--spark-memory-mb", "100"), "100 is not in the range x>=512"),
        (("--spark-conf", "c.d"), "'c.d' is not KEY=VALUE"),
    ],
)
def test_what_spark_cannot_have_is_refused(words: tuple[str, ...], said: str) -> None:
    found, output = told(*words)
    assert found is None
    assert said in output
