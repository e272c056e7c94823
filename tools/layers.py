"""Check the import rules that import-linter cannot express: `python tools/layers.py src`.

The layer order itself is import-linter's (see pyproject.toml). Here: a core touches neither time,
chance, threads nor the world, and some modules are reserved for one package.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

CORE_PACKAGES: Final = (
    "kernel", "flow", "protocol", "commits", "log", "raft", "topics", "lake", "ingest", "tables",
    "metering", "cluster", "client", "spark", "server", "web", "config", "app", "cli", "demo",
)  # fmt: skip
IO_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "kernel": ("system",),
    "log": ("aio", "disk", "journal", "reads", "stores", "stores.*", "wal"),
    "raft": ("journal",),
    "topics": ("engine.*", "persist.backup", "persist.cold", "persist.data_dir", "persist.inspect",
               "persist.recovery", "persist.salvage", "persist.snapshot_worker",
               "persist.snapshotter", "persist.spill"),
    "lake": ("bell", "catalog", "commit", "compact", "database", "delete_files", "expire", "feed",
             "locate", "parquet", "reader", "row_index", "scan", "storage", "transaction"),
    "tables": ("coordinator.*", "worker.*", "definitions", "engine", "manual", "notify",
               "positions", "processes", "status", "store", "warehouse"),
    "ingest": ("appender", "connection", "device", "edge", "engine_topic"),
    "metering": ("load", "pricing", "tariff_space"),
    "cluster": ("accepting", "calls", "links", "node", "transfer"),
    "client": ("aio.client", "aio.runner", "aio.watch", "aio.work", "aio.writer", "blocking.client",
               "blocking.runner", "blocking.watch", "blocking.work", "blocking.writer",
               "head_follower", "runtime.driver", "runtime.feed", "runtime.hosts",
               "transports.aio", "transports.blocking", "transports.connecting"),
    "spark": ("delta.apply", "jvm.cache", "jvm.command", "jvm.embedded", "jvm.java", "jvm.keeper",
              "jvm.training", "lake.collect", "lake.object_store", "lake.task_files",
              "lake.writing", "link", "options", "pipeline.chain", "pipeline.fetch",
              "pipeline.runner", "pipeline.stages", "pipeline.stream_sink", "pipeline.task",
              "pipeline.upkeep", "probes", "refresh", "topics.pages", "topics.sink"),
    "server": ("api.app", "api.call", "api.checking", "api.columns", "api.event_book",
               "api.forwarding", "api.lake", "api.probes", "api.sampler", "api.session",
               "api.verifying", "api.warehouse", "http.budget", "http.http1", "http.http2",
               "http.listener", "http.service", "http.stream", "http.websocket", "live.hub",
               "live.stream", "live.twins", "overview.cached", "overview.commands",
               "overview.looks", "overview.parts", "overview.select", "push.pusher",
               "push.shared", "push.tables", "push.watch", "push.websocket", "push.work"),
    "web": ("assets", "pages"),
    "config": ("loading", "settings"),
    "app": ("cluster", "ingest", "part", "process", "reporting", "server", "tables", "up"),
    "cli": ("cluster", "data_dir", "demo", "entity", "failing", "ingest", "metering", "options",
            "output", "serve", "status", "table", "table_bars", "table_place", "table_view",
            "tariffs", "topic_view", "up"),
    "demo": ("plant", "proof", "tour", "view"),
}  # fmt: skip
"""Modules of core packages that wait, spawn or touch the world: patterns below their package.

Every other module of a core package is a core.
"""

WORLD: Final = frozenset(
    {"asyncio", "concurrent", "ctypes", "multiprocessing", "os", "pathlib", "random", "secrets",
     "select", "selectors", "signal", "socket", "ssl", "subprocess", "threading", "time", "_thread",
     "uuid", "uvloop"}
)  # fmt: skip
"""What a core may not import: everything that waits, spawns, tells time, draws lots or talks."""

VALUES: Final = frozenset({("pathlib", "PurePath"), ("random", "Random"), ("uuid", "UUID")})
"""Types of these modules that a core may use: values that are handed in, or that do no IO."""

RESERVED: Final = {
    # Metering is written as a user's own pipeline is: with the functions of pyspark.
    "pyspark": ("penstock.spark", "penstock.metering"),
    "penstock.testing": ("penstock.testing",),
}
"""Modules that only the packages on the right may import."""


class Import(NamedTuple):
    """One imported module, and the name taken from it if it was a `from` import."""

    line: int
    module: str
    name: str | None


class Breach(NamedTuple):
    """A broken rule, as a person reads it."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def main() -> int:
    """Print every breach below the given source directory; return the exit status."""
    source = Path(sys.argv[1])
    found = list(breaches(source))
    for breach in found:
        print(breach)
    print(f"layers: {len(found)} broken" if found else "layers: cores are pure, reservations hold")
    return 1 if found else 0


def breaches(source: Path) -> Iterator[Breach]:
    """Every broken rule in the modules of `penstock` below a source directory."""
    for path in sorted(source.glob("penstock/**/*.py")):
        module = module_name(path.relative_to(source))
        for found in imports(ast.parse(path.read_text(), str(path))):
            for text in judge(module, found):
                yield Breach(path, found.line, text)


def module_name(path: Path) -> str:
    """The dotted name of a file: `penstock/flow/__init__.py` is `penstock.flow`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import of a module, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.lineno, node.module or "", alias.name)


def judge(module: str, found: Import) -> Iterator[str]:
    """What is wrong with one import in one module."""
    for reserved, owners in RESERVED.items():
        if imports_from(found, reserved) and not any(is_in(module, owner) for owner in owners):
            yield f"{module} imports {reserved}, which only {' and '.join(owners)} may"
    if not is_core(module):
        return
    top = found.module.partition(".")[0]
    if top in WORLD and (found.module, found.name) not in VALUES:
        yield f"{module} is a core and imports {top}: list it in IO_MODULES, or have it handed in"


def is_core(module: str) -> bool:
    """Whether a module may not touch the world."""
    parts = module.split(".")
    if len(parts) < 2 or parts[1] not in CORE_PACKAGES:
        return False
    inside = ".".join(parts[2:])
    return not any(fnmatchcase(inside, pattern) for pattern in IO_MODULES.get(parts[1], ()))


def imports_from(found: Import, module: str) -> bool:
    """Whether an import reaches a module or anything below it."""
    return is_in(found.module, module) or is_in(f"{found.module}.{found.name}", module)


def is_in(module: str, package: str) -> bool:
    """Whether a module is a package or lies below it."""
    return module == package or module.startswith(f"{package}.")


if __name__ == "__main__":
    sys.exit(main())
