"""Which pages there are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.reference.benchmarks import benchmarks_page
from tools.reference.commands import commands_page
from tools.reference.errors import errors_page
from tools.reference.metrics import metrics_page
from tools.reference.names import names_page
from tools.reference.routes import routes_page
from tools.reference.settings import settings_page
from tools.reference.source import read_package

DIRECTORY: Final = "docs/reference"


def pages(root: Path) -> dict[str, str]:
    """Every page by file name."""
    every = read_package(root / "src", "penstock")
    return {
        "python.md": names_page(every),
        "cli.md": commands_page(),
        "routes.md": routes_page(),
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
        "errors.md": errors_page(every),
        "benchmarks.md": benchmarks_page(root / "bench" / "results"),
        "index.md": INDEX,
    }


INDEX: Final = """# Reference

Generated from the code by `make docs`.

- [The Python API](python.md): what `from penstock import …` offers
- [Commands](cli.md): the `penstock` command
- [Settings](settings.md): what each program can be told
- [Routes](routes.md): every HTTP route of the server
- [Metrics](metrics.md): what the server counts
- [Errors](errors.md): every code and every class
- [Measurements](benchmarks.md): what `make bench` found

A name that is not on the first page is internal: it may change without a word.
"""
