"""How far a refresh has come, as an engine tells it and people are shown it.

>>> RefreshProgress(stages=3, stages_done=1, tasks=8, tasks_done=6).share
0.75
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class RefreshProgress:
    """One look at a refresh under way. What an engine cannot tell stays 0.

    `table` is the member that is being refreshed. `rows` are rows read so far. Spark makes stages
    as it goes, so their number may grow. `left_ms` is a guess, None while there is none.
    """

    table: str = ""
    rows: int = 0
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_done: int = 0
    elapsed_ms: int = 0
    left_ms: int | None = None

    @property
    def share(self) -> float:
        """How much of the known work is done, from 0 to 1."""
        return min(1.0, self.tasks_done / self.tasks) if self.tasks else 0.0

    def of(self, table: str) -> RefreshProgress:
        """The same, said of a table."""
        return replace(self, table=table)

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def read_progress(found: dict[str, Any]) -> RefreshProgress:
    """What `plain` gave; what a newer process added is left out."""
    known = {field.name for field in fields(RefreshProgress)}
    return RefreshProgress(**{key: value for key, value in found.items() if key in known})
