"""What the engines of one coordinator share, such as one Spark, and whether they work.

An engine's module may define a function `host(options, tell)` beside its factory. The coordinator
keeps the returned host while it runs, and asks it how each worker creates its engine. Without one,
every worker creates its engine from the options alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.tables import rows
from penstock.tables.core.failures import FailureKind
from penstock.tables.engine import Factory
from penstock.tables.worker.outcomes import Ended, Failed, Succeeded

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


class EngineState:
    """What a coordinator knows about its engines, whether they run here or in workers."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host
        self.generation: int | None = None
        """The current start of the host; None while it is not serving."""
        self.unfit: str | None = None
        """Why engines cannot work, or None."""
        self._commits: list[tuple[str, int]] = []

    def renew(self) -> bool:
        """Ask the host for its generation; returns whether it changed."""
        before, self.generation = self.generation, self.host.generation()
        if self.generation is None:
            self.unfit = self.host.trouble()
        return self.generation != before

    def was_lost(self, ended: Ended) -> bool:
        """Whether a refresh failed because its engine was lost, and not by its own fault."""
        return isinstance(ended, Failed) and self.host.generation() != self.generation

    def job_ended(self, job_id: int, ended: Ended) -> None:
        """Learn from a job's outcome whether engines work, and how long its commit took."""
        if isinstance(ended, Succeeded):
            self.unfit = None
            self._commits.append(rows.commit_note(job_id, ended.commit_ms))
        elif isinstance(ended, Failed) and ended.kind is FailureKind.AWAY:
            self.unfit = ended.detail

    def take_commits(self) -> list[tuple[str, int]]:
        """The commit times to store since the last call: values of `rows.NOTE_COMMIT`."""
        taken, self._commits = self._commits, []
        return taken
