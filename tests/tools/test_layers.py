from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import layers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the source tree in which a test may plant a violation."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def plant(tree: Path, module: str, code: str) -> None:
    """Put a module into the copy, with the packages above it."""
    path = tree / "src" / Path(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in path.relative_to(tree / "src").parents[:-1]:
        (tree / "src" / package / "__init__.py").touch()
    path.write_text(f'"""Planted."""\n\n{code}\n')


def check(tree: Path) -> tuple[int, str]:
    """What `make layers` does, on the copy."""
    commands = (
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        [sys.executable, ROOT / "tools" / "layers.py", "src"],
    )
    environ = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "200"}
    done = [
        subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False)
        for command in commands
    ]
    return max(run.returncode for run in done), "".join(run.stdout + run.stderr for run in done)


def test_the_tree_as_it_is_passes(tree):
    status, said = check(tree)
    assert status == 0, said


@pytest.mark.parametrize(
    ("module", "code"),
    [
        pytest.param("penstock.kernel.planted", "import penstock.log.store", id="upward"),
        pytest.param("penstock.flow.planted", "import penstock.log", id="one layer up"),
        pytest.param("penstock.surprise.planted", "", id="a package in no layer"),
        pytest.param("penstock.flow.planted", "import asyncio", id="asyncio in a core"),
        pytest.param("penstock.log.planted", "import threading", id="threading in a core"),
        pytest.param("penstock.flow.planted", "import time", id="time in a core"),
        pytest.param("penstock.flow.planted", "from time import time", id="time.time in a core"),
        pytest.param("penstock.raft.planted", "import socket", id="socket in a core"),
        pytest.param("penstock.kernel.planted", "import subprocess", id="subprocess in a core"),
        pytest.param("penstock.flow.planted", "import random", id="random in a core"),
        pytest.param("penstock.flow.planted", "from random import random", id="random.random"),
        pytest.param("penstock.flow.planted", "import pyspark", id="pyspark outside spark"),
        pytest.param("penstock.cli.planted", "from pyspark import sql", id="pyspark in the cli"),
        pytest.param("penstock.flow.planted", "import penstock.testing", id="fakes in flow"),
        pytest.param("penstock.cli.planted", "from penstock import testing", id="fakes in the cli"),
    ],
)
def test_a_planted_violation_fails_and_is_named(tree, module, code):
    plant(tree, "penstock.testing.fakes", "")
    plant(tree, module, code)
    status, said = check(tree)
    assert status == 1, said
    assert module.removesuffix(".planted") in said


def test_neighbours_do_not_know_each_other(tree):
    plant(tree, "penstock.topics.planted", "import penstock.lake.planted")
    plant(tree, "penstock.lake.planted", "")
    status, said = check(tree)
    assert status == 1, said
    assert "penstock.topics.planted -> penstock.lake.planted" in said


def test_an_import_inside_a_function_counts(tree):
    plant(tree, "penstock.flow.planted", "def now():\n    import time\n    return time")
    status, said = check(tree)
    assert status == 1, said
    assert "penstock.flow.planted is a core and imports time" in said


@pytest.mark.parametrize(
    ("module", "code"),
    [
        pytest.param("penstock.raft.shell", "import asyncio", id="a shell may wait"),
        pytest.param("penstock.log.stores.planted", "import threading", id="a store may do IO"),
        pytest.param("penstock.flow.planted", "from random import Random", id="chance handed in"),
        pytest.param("penstock.spark.planted", "import pyspark", id="spark may use pyspark"),
        pytest.param("penstock.sim.planted", "import penstock.testing", id="sim may use fakes"),
        pytest.param("penstock.raft.planted", "import penstock.log.store", id="downward"),
    ],
)
def test_what_is_allowed_passes(tree, module, code):
    plant(tree, "penstock.testing.fakes", "")
    plant(tree, module, code)
    status, said = check(tree)
    assert status == 0, said


def test_every_exception_for_io_is_a_module_of_a_core_package():
    for pattern in layers.IO_MODULES:
        assert pattern.split(".")[1] in layers.CORE_PACKAGES
