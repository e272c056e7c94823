"""Every row of the contract has a test, and the page that lists them is in step."""

from __future__ import annotations

import ast
import functools
import os
from pathlib import Path

from tests.conformance.rows import NOT_FROM_OUTSIDE, ROWS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "internals" / "conformance.md"
BEGIN, END = "<!-- rows: begin -->\n", "<!-- rows: end -->"


@functools.cache
def covered() -> dict[str, list[str]]:
    """For each row the tests that name it, as `file::test`."""
    found: dict[str, list[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for row_id in _rows_of(node):
                    found.setdefault(row_id, []).append(f"{path.stem}::{node.name}")
    return found


def _rows_of(node: ast.FunctionDef) -> list[str]:
    return [
        ast.literal_eval(argument)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "row"
        for argument in call.args
    ]


def table() -> str:
    """The rows with the number of their tests and the files they are in."""
    lines = ["| row | what it says | tests | in |", "|---|---|---|---|"]
    tests = covered()
    for row_id, text in ROWS.items():
        names = tests.get(row_id, [])
        files = sorted({name.split("::")[0].removeprefix("test_") for name in names})
        lines.append(f"| {row_id} | {text} | {len(names)} | {', '.join(files)} |")
    lines += ["", "Not seen from outside:", "", "| row | why |", "|---|---|"]
    lines += [f"| {row_id} | {why} |" for row_id, why in NOT_FROM_OUTSIDE.items()]
    return "\n".join(lines) + "\n"


def test_every_row_of_the_contract_has_a_test():
    missing = [row_id for row_id in ROWS if row_id not in covered()]
    assert not missing, missing


def test_every_test_names_a_row_that_exists():
    assert set(covered()) <= set(ROWS)
    assert not set(ROWS) & set(NOT_FROM_OUTSIDE)


def test_every_test_but_those_of_the_index_names_a_row():
    nameless = [
        f"{path.stem}::{node.name}"
        for path in sorted(HERE.glob("test_*.py"))
        if path.name != "test_index.py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not _rows_of(node)
    ]
    assert not nameless, nameless


def test_the_page_lists_the_rows_as_they_are():
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE} has no place for the rows"
    assert end, f"{PAGE} has no end of the rows"
    wanted = before + BEGIN + table() + END + after
    if os.environ.get("PENSTOCK_REWRITE"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, "run with PENSTOCK_REWRITE=1 and read the difference"
