"""What is not installed is said at once, in one line that names what to install."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from penstock.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_INGEST_PORT_FILE", str(tmp_path / "port"))

    def run(*words: str) -> str:
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 1, result.output
        assert not (tmp_path / "port").exists(), "it listened"
        (line,) = result.stderr.splitlines()
        return line

    return run


def test_ingest_run_without_pyspark_says_so_and_opens_no_port(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "pip install 'penstock[spark]'" in run("ingest", "run", "--port", "0")


def test_ingest_run_without_java_says_so_and_opens_no_port(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_SPARK_JAVA_HOME", str(tmp_path))
    assert "Spark needs Java 17 or newer" in run("ingest", "run", "--port", "0")


@pytest.mark.parametrize(
    "words",
    [
        ["table", "--catalog", "postgres:host=nowhere", "list"],
        ["table", "--catalog", "postgresql://nowhere/db", "run"],
        ["table", "run", "--pool", "postgres:host=nowhere"],
        ["query", "--catalog", "postgres:host=nowhere", "t"],
        ["ingest", "run", "--catalog", "postgres:host=nowhere", "--port", "0"],
        ["serve", "--catalog", "postgres:host=nowhere", "--port", "0", "--store", "memory"],
    ],
    ids=" ".join,
)
def test_postgresql_without_psycopg_names_the_extra_to_install(run, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "pip install 'penstock[postgres]'" in run(*words)
