"""What the engines of one coordinator share, such as one Spark that all its workers connect to.

An engine's module may define a function `host(options, tell)` beside its factory. The coordinator
keeps the returned host while it runs, and asks it how each worker creates its engine. Without one,
every worker creates its engine from the options alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.tables.engine import Factory

Tell = Callable[[str], None]
"""Takes one line of text for people."""


class EngineHost(Protocol):
    """A service that is started, may die, and is restarted. For one thread, except `tell`."""

    def generation(self) -> int | None:
        """The number of the current start, or None while not serving. Starts it; never blocks."""
        ...

    def trouble(self) -> str | None:
        """Why it could not be started, or None."""
        ...

    def factory(self, instead_of: Factory | None = None) -> Factory:
        """How one worker creates its engine, while a generation serves.

        `instead_of` is the factory of a dead worker: whatever it left running is ended.
        """
        ...

    def close(self) -> None:
        """Stop the host. Idempotent."""
        ...


class Unshared:
    """The host of engines that share nothing."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def generation(self) -> int | None:
        """Always serving; nothing to start."""
        return 0

    def trouble(self) -> str | None:
        """Always None: nothing can fail."""
        return None

    def factory(self, _instead_of: Factory | None = None) -> Factory:
        """The same factory for every worker."""
        return self._factory

    def close(self) -> None:
        """Nothing to stop."""


def host_of(factory: Factory, tell: Tell) -> EngineHost:
    """The host of an engine: from its module, or `Unshared`."""
    maker = factory.beside("host")
    if maker is None:
        return Unshared(factory)
    made: EngineHost = maker(dict(factory.options), tell)
    return made
