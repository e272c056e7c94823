"""What the engines of one coordinator share, such as one Spark that all its workers connect to.

An engine's module may have a function `host(options, tell)` beside the one that makes engines.
Whoever coordinates keeps what it returns for as long as it works, and asks it how each worker makes
its engine. An engine without one needs nothing: every worker makes its own from the options alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.tables.engine import Factory

Tell = Callable[[str], None]
"""Takes one line for people."""


class EngineHost(Protocol):
    """Something that is started, may die, and is started again. For one thread, but for `tell`."""

    def generation(self) -> int | None:
        """Which start of it serves now, or None while none does. Starts it; never waits."""
        ...

    def trouble(self) -> str | None:
        """Why it could not be started, if so."""
        ...

    def factory(self, instead_of: Factory | None = None) -> Factory:
        """How one worker makes its engine, where a generation serves.

        `instead_of` is what a worker was made with that is dead: what it left running is ended.
        """
        ...

    def close(self) -> None:
        """End it. May be called twice."""
        ...


class Unshared:
    """For engines that share nothing."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def generation(self) -> int | None:
        """It needs no start."""
        return 0

    def trouble(self) -> str | None:
        """Nothing can go wrong."""
        return None

    def factory(self, _instead_of: Factory | None = None) -> Factory:
        """The same for everybody."""
        return self._factory

    def close(self) -> None:
        """There is nothing to end."""


def host_of(factory: Factory, tell: Tell) -> EngineHost:
    """The host of an engine: its module's own, or none that does anything."""
    maker = factory.beside("host")
    if maker is None:
        return Unshared(factory)
    made: EngineHost = maker(dict(factory.options), tell)
    return made
