"""The progress of a refresh, as reported by an engine and shown to people.

>>> RefreshProgress(stages=3, stages_done=1, tasks=8, tasks_done=6).share
0.75
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class RefreshProgress:
    """The progress of a running refresh. What an engine cannot report stays 0.

    `table` is the member that is being refreshed. `rows` are rows read so far. Spark creates stages
    as it goes, so their number may grow. `left_ms` is an estimate, None if there is none.
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
        """The completed share of the known work, from 0 to 1."""
        return min(1.0, self.tasks_done / self.tasks) if self.tasks else 0.0

    def of(self, table: str) -> RefreshProgress:
        """The same progress, for a given table."""
        return replace(self, table=table)

    def plain(self) -> dict[str, Any]:
        """As a JSON-compatible dict."""
        return asdict(self)


def read_progress(found: dict[str, Any]) -> RefreshProgress:
    """Parse the output of `plain`; ignores fields added by a newer version."""
    known = {field.name for field in fields(RefreshProgress)}
    return RefreshProgress(**{key: value for key, value in found.items() if key in known})
