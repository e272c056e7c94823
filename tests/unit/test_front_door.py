"""What `from penstock import …` offers, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    found = getattr(penstock, name)
    assert name in dir(penstock)
    if isinstance(found, type):
        assert found.__name__ == name


def test_type_checkers_see_what_programs_get() -> None:
    """The imports that only type checkers follow and the table say the same."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    seen["errors"] = "penstock.errors"
    assert seen == penstock._HOMES


def test_there_are_about_thirty_names() -> None:
    assert 20 <= len(penstock.__all__) <= 40


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        _ = penstock.Clint


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        (
            "import penstock",
            ("penstock.client", "penstock.kernel", "asyncio", "pyarrow", "msgspec"),
        ),
        ("from penstock import Client", ("pyspark", "pyarrow", "sqlglot", "duckdb", "uvloop")),
        ("from penstock import Warehouse", ("pyspark", "uvloop", "h2")),
        ("from penstock import errors", ("pyspark", "pyarrow", "sqlglot", "uvloop")),
    ],
)
def test_an_import_loads_only_what_it_needs(statement: str, heavy: tuple[str, ...]) -> None:
    """Times differ from machine to machine; what is loaded does not."""
    program = f"{statement}\nimport sys\nprint(*[m for m in {heavy!r} if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == []


def test_every_error_a_program_may_catch_is_a_penstock_error() -> None:
    for name in penstock.errors.__all__:
        assert issubclass(getattr(penstock.errors, name), penstock.errors.PenstockError)


@pytest.mark.parametrize("module", ["client", "kernel", "protocol"])
def test_every_error_of_a_call_can_be_caught_by_its_public_name(module: str) -> None:
    errors = import_module(f"penstock.{module}.errors")
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, penstock.errors.PenstockError):
            assert getattr(penstock.errors, name) is found
