"""Whether engines work: the generation of their shared host, and the outcomes of jobs."""

from __future__ import annotations

from penstock.tables import rows
from penstock.tables.coordinator.host import EngineHost
from penstock.tables.core.failures import FailureKind
from penstock.tables.worker.outcomes import Ended, Failed, Succeeded


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
