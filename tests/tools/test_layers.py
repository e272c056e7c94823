from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tools import layers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the source tree in which a test may plant a violation."""
    return copy_of_the_source(tmp_path)


def copy_of_the_source(directory: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT / "src", directory / "src", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


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


VIOLATIONS = {
    "upward": ("kernel", "import penstock.log.store"),
    "one layer up": ("flow", "import penstock.log"),
    "asyncio in a core": ("flow", "import asyncio"),
    "threading in a core": ("log", "import threading"),
    "time in a core": ("flow", "import time"),
    "time.time in a core": ("flow", "from time import time"),
    "time inside a function": ("flow", "def now():\n    import time\n    return time"),
    "socket in a core": ("raft", "import socket"),
    "subprocess in a core": ("kernel", "import subprocess"),
    "random in a core": ("flow", "import random"),
    "os in a core": ("flow", "import os"),
    "a path in a core": ("topics.core", "from pathlib import Path"),
    "a drawn uuid": ("lake", "from uuid import uuid4"),
    "ctypes in a core": ("topics.persist", "import ctypes"),
    "random.random": ("flow", "from random import random"),
    "asyncio in the client's runtime": ("client.runtime", "import asyncio"),
    "time in a plan for spark": ("spark.delta", "import time"),
    "a socket in a handler": ("server.overview", "import socket"),
    "os in the config": ("config", "import os"),
    "threads in a program": ("app", "import threading"),
    "os in a command": ("cli", "import os"),
    "pyspark outside spark": ("flow", "import pyspark"),
    "pyspark in the cli": ("cli", "from pyspark import sql"),
    "fakes in flow": ("flow", "import penstock.testing"),
    "fakes in the cli": ("cli", "from penstock import testing"),
    "a neighbour": ("topics", "import penstock.lake.fine"),
}
"""A package and what a module of it may not say."""

ALLOWED = {
    "a listed module may wait": ("ingest.edge", "import asyncio"),
    "a store may do IO": ("log.stores.planted", "import threading"),
    "chance handed in": ("flow.planted", "from random import Random"),
    "a uuid as a value": ("lake.planted", "from uuid import UUID"),
    "spark may use pyspark": ("spark.planted", "import pyspark"),
    "metering may use pyspark": ("metering.planted", "import pyspark"),
    "downward": ("raft.planted", "import penstock.log.store"),
}


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """What is said of a tree with every violation in it, each in a module of its own."""
    tree = copy_of_the_source(tmp_path_factory.mktemp("violated"))
    plant(tree, "penstock.testing.fakes", "")
    plant(tree, "penstock.lake.fine", "")
    for why, (package, code) in VIOLATIONS.items():
        plant(tree, f"penstock.{package}.{named(why)}", code)
    return check(tree)


def named(why: str) -> str:
    return "planted_" + why.replace(" ", "_").replace("'", "_").replace(".", "_")


@pytest.mark.parametrize("why", VIOLATIONS)
def test_a_planted_violation_is_named(verdict, why):
    status, said = verdict
    assert status == 1, said
    module = f"penstock.{VIOLATIONS[why][0]}.{named(why)}"
    told = [line for line in said.splitlines() if re.search(rf"{re.escape(module)}\b", line)]
    assert told, said


def test_the_tree_as_it_is_passes_with_all_that_is_allowed(tree):
    plant(tree, "penstock.testing.fakes", "")
    for module, code in ALLOWED.values():
        plant(tree, f"penstock.{module}", code)
    status, said = check(tree)
    assert status == 0, said


@pytest.mark.parametrize(
    ("module", "code", "told"),
    [
        pytest.param(
            "penstock.topics.planted", "import penstock.lake.planted",
            "penstock.topics.planted -> penstock.lake.planted", id="a neighbour",
        ),
        pytest.param(
            "penstock.flow.planted", "def now():\n    import time\n    return time",
            "penstock.flow.planted is a core and imports time", id="time inside a function",
        ),
        pytest.param("penstock.surprise.planted", "", "surprise", id="a package in no layer"),
    ],
)  # fmt: skip
def test_one_violation_alone_fails(tree, module, code, told):
    plant(tree, "penstock.lake.planted", "")
    plant(tree, module, code)
    status, said = check(tree)
    assert status == 1, said
    assert told in said


def test_every_exception_for_io_is_a_module_that_is_there():
    for package, patterns in layers.IO_MODULES.items():
        assert package in layers.CORE_PACKAGES
        modules = {
            layers.module_name(path.relative_to(ROOT / "src")).removeprefix(f"penstock.{package}.")
            for path in (ROOT / "src").glob(f"penstock/{package}/**/*.py")
        }
        for pattern in patterns:
            assert any(fnmatchcase(module, pattern) for module in modules), (package, pattern)
