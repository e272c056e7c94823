"""The topics' touch of the world: the event loop, the log, the clock."""

from penstock.topics.shell.engine import Engine
from penstock.topics.shell.views import EngineOptions

__all__ = ["Engine", "EngineOptions"]
