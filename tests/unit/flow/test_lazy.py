"""`from penstock.flow import …` loads what is named, when it is first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import flow


@pytest.mark.parametrize("name", flow.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(flow, name) is not None
    assert name in dir(flow)


def test_type_checkers_see_what_programs_get() -> None:
    tree = ast.parse(Path(flow.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == flow._HOMES


def test_a_back_off_loads_no_scheduler() -> None:
    code = "import sys, penstock.flow.backoff; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "penstock.flow.fairqueue" not in done.stdout.split()
