"""What the names in a query refer to while it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp


@dataclass(slots=True)
class Scope:
    """The columns that expressions of one SELECT see, by table and name, and those around it."""

    outer: Scope | None = None
    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    """Our names of columns, by the alias and the name of the query."""
    hidden: frozenset[str] = frozenset()
    """Columns that a GROUP BY has taken away."""

    def add(self, alias: str, columns: Mapping[str, str]) -> None:
        """A table of the FROM clause."""
        self.sources[alias] = dict(columns)

    def find(self, column: exp.Column) -> str | None:
        """Our name of a column here or further out."""
        level: Scope | None = self
        while level is not None:
            found = level.here(column)
            if found is not None:
                return None if found in level.hidden else found
            level = level.outer
        return None

    def here(self, column: exp.Column) -> str | None:
        """Our name of a column of this very SELECT."""
        if column.table:
            return self.sources.get(column.table, {}).get(column.name)
        found = [names[column.name] for names in self.sources.values() if column.name in names]
        return found[0] if len(found) == 1 else None
