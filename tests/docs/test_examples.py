from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.docs.story import ADDRESS
from tools import markdown

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = ("pyspark",)
SOURCE = ROOT / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.glob("penstock/**/*.py"))
    if path.name != "__main__.py"
]
EXAMPLES = [
    pytest.param(page, line, text, id=f"{page.relative_to(ROOT)}:{line}")
    for page in markdown.pages(ROOT)
    if page.parent.name != "reference"  # its examples are those of the modules
    for line, text in markdown.blocks(page, "python")
    if ">>>" in text and ADDRESS not in text  # those need a server: test_pages
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"{missing.name} is not installed")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize(("page", "line", "text"), EXAMPLES)
def test_an_example_on_a_page_is_true(page, line, text):
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), line - 1)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert runner.failures == 0


def test_there_are_modules_to_look_at():
    assert "penstock.kernel.units" in MODULES
