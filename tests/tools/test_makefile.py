from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as make needs in order to say what it would do."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tests").mkdir()
    return tmp_path


def make(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def group(directory: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "group.py", "unit", directory / "unit.xml"]
    return subprocess.run(
        [*command, *paths, "--", "-q", "-p", "no:cacheprovider"],
        cwd=directory, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take longest to load
    )  # fmt: skip


def test_make_alone_lists_what_it_can_do(checkout):
    said = make(checkout).stdout
    for target in ("demo", "test", "bench", "lock", "docs", "format", "clean"):
        assert f"make {target} " in said


def test_a_directory_of_tests_that_no_group_names_is_run_with_the_unit_tests(checkout):
    (checkout / "tests" / "novel").mkdir()
    (checkout / "tests" / "sim").mkdir()
    said = make(checkout, "-n", "tests-unit").stdout
    assert "tests/novel" in said
    assert "tests/sim" not in said


def test_a_directory_of_integration_tests_that_no_group_names_is_run_with_the_integration_tests(
    checkout,
):
    for name in ("novel", "lake", "server"):
        (checkout / "tests" / "integration" / name).mkdir(parents=True)
    said = make(checkout, "-n", "tests-integration").stdout
    assert "tests/integration/novel" in said
    assert "tests/integration/lake" not in said
    assert "tests/integration/server" not in said
    assert "tests/integration" not in make(checkout, "-n", "tests-unit").stdout


def test_every_test_of_the_repository_is_in_exactly_one_group():
    said = make(ROOT, "-n", "checks", "tests-cluster", "REPORTS=reports").stdout
    groups = [line.partition(".xml ")[2] for line in said.splitlines() if "tools/group.py" in line]
    paths = [ROOT / path for line in groups for path in line.partition(" -- ")[0].split()]
    assert len(paths) > 5
    for test in (ROOT / "tests").rglob("test_*.py"):
        homes = [path for path in paths if path == test or path in test.parents]
        assert len(homes) == 1, f"{test.relative_to(ROOT)} is in {homes}"


def test_the_groups_write_reports_of_different_names():
    said = make(ROOT, "-n", "checks", "REPORTS=reports").stdout
    reports = [word for word in said.split() if word.startswith("reports/")]
    assert len(reports) == len(set(reports)) > 5


def test_a_group_whose_directory_is_not_there_is_run_without_paths(checkout):
    assert "property.xml  --" in make(checkout, "-n", "tests-property").stdout


def test_a_missing_python_is_told_in_one_line(checkout):
    done = make(checkout, "env-run", "PYTHON=python-that-is-not-there")
    assert done.returncode != 0
    first = done.stderr.splitlines()[0]
    assert first.startswith("penstock: needs Python 3.11 or newer, found no python-that-is-not")


def test_a_group_without_tests_is_no_failure(tmp_path):
    (tmp_path / "empty").mkdir()
    assert group(tmp_path).returncode == 0
    assert group(tmp_path, tmp_path / "empty").returncode == 0


def test_a_group_with_a_failing_test_fails_and_shows_pytests_summary(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert False\n")
    done = group(tmp_path, tmp_path / "test_it.py")
    assert done.returncode == 1
    assert "1 failed" in done.stdout.splitlines()[-1]
