"""The topics' touch of the world: the event loop, the log, the clock.

The engine is imported when it is asked for: the process that makes snapshots is started again and
again, and has no need of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.topics.shell.engine import Engine
    from penstock.topics.shell.views import EngineOptions

__all__ = ["Engine", "EngineOptions"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        return import_module("penstock.topics.shell.engine").Engine
    if name == "EngineOptions":
        return import_module("penstock.topics.shell.views").EngineOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
