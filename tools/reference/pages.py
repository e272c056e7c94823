"""Which pages there are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.reference.benchmarks import benchmarks_page
from tools.reference.commands import commands_page
from tools.reference.errors import errors_page
from tools.reference.metrics import metrics_page
from tools.reference.packages import package_page
from tools.reference.routes import routes_page
from tools.reference.settings import settings_page
from tools.reference.source import Module, read_package, summary

DIRECTORY: Final = "docs/reference"
PACKAGES: Final = (
    "kernel", "flow", "testing", "commits", "log", "raft", "topics", "lake", "ingest", "tables",
    "spark", "client", "metering", "config", "server", "web", "app",
)  # fmt: skip
"""Every package with a page of its own, in reading order; those not yet there are left out."""


def pages(root: Path) -> dict[str, str]:
    """Every page by file name."""
    source = root / "src" / "penstock"
    found = {name: read_package(source, name) for name in PACKAGES if exists(source, name)}
    written = {f"{name}.md": package_page(modules) for name, modules in found.items()}
    every = read_package(source.parent, "penstock")
    written["errors.md"] = errors_page(every)
    written["cli.md"] = commands_page()
    written["routes.md"] = routes_page()
    written["settings.md"] = settings_page()
    written["metrics.md"] = metrics_page()
    written["benchmarks.md"] = benchmarks_page(root / "bench" / "results")
    written["index.md"] = index_page(found)
    return written


def exists(source: Path, name: str) -> bool:
    """Whether a package or module is there."""
    return (source / name / "__init__.py").exists() or (source / f"{name}.py").exists()


def index_page(found: dict[str, list[Module]]) -> str:
    """The list of pages."""
    lines = ["# Reference", "", "Generated from the code by `make docs`.", ""]
    lines += [
        "- [Commands](cli.md): the `penstock` command",
        "- [Settings](settings.md): what `penstock serve` can be told",
        "- [Routes](routes.md): every HTTP route of the server",
        "- [Metrics](metrics.md): what the server counts",
        "- [Errors](errors.md): every code and every class",
        "- [Measurements](benchmarks.md): what `make bench` found",
        "",
        "The packages, with every public name:",
        "",
    ]
    for name, modules in found.items():
        lines.append(f"- [`penstock.{name}`]({name}.md): {summary(modules[0].tree)}")
    return "\n".join(lines) + "\n"
