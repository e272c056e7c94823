"""What `penstock.client` offers, and what it costs to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import client


@pytest.mark.parametrize("name", client.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(client, name) is not None
    assert name in dir(client)


def test_type_checkers_see_what_programs_get() -> None:
    tree = ast.parse(Path(client.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == client._HOMES


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("from penstock.client import Client", ("asyncio", "uvloop", "pyarrow")),
        ("import penstock.spark.topics.http", ("asyncio", "uvloop", "pyspark")),
    ],
)
def test_what_blocks_loads_neither_a_loop_nor_the_runtime(
    statement: str, heavy: tuple[str, ...]
) -> None:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert not {*heavy, "penstock.client.runtime.core", "penstock.client.aio.client"} & {*loaded}
