"""What stream tables refuse, on the kernel's groups of errors, with the status that HTTP gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.kernel.errors import Conflict, Corrupt, Rejected, Unavailable


class InvalidTable(Rejected):
    """A definition is not what a stream table allows: a name, a mode, a pair of options."""

    code = "invalid_table"
    status: ClassVar[int] = 400


class InvalidSchedule(Rejected):
    """A schedule is neither a duration nor a cron expression nor one of the words."""

    code = "invalid_schedule"
    status: ClassVar[int] = 400


class InvalidQuery(Rejected):
    """A query is not one SELECT, or reads what a stream table cannot read."""

    code = "invalid_query"
    status: ClassVar[int] = 400


class InvalidTableFile(Rejected):
    """A `.sql` file's header or query is wrong; the text says in which line."""

    code = "invalid_table_file"
    status: ClassVar[int] = 400


class NotDifferentiable(Rejected):
    """A table was to be DIFFERENTIAL, but its query cannot be maintained by its changes."""

    code = "not_differentiable"
    status: ClassVar[int] = 400


class InvalidSource(Rejected):
    """A topic was declared with columns or a key that it cannot have."""

    code = "invalid_source"
    status: ClassVar[int] = 400


class SourceNotFound(Rejected):
    """No topic of that name was declared."""

    code = "source_not_found"
    status: ClassVar[int] = 404

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"expected a topic that was declared as a source, found none named {topic!r}",
            topic=topic,
        )


class SourceExists(Conflict):
    """The topic is declared already."""

    code = "source_exists"
    status: ClassVar[int] = 409


class TableNotFound(Rejected):
    """There is no stream table of that name."""

    code = "table_not_found"
    status: ClassVar[int] = 404

    def __init__(self, table: str, near: str | None = None) -> None:
        hint = "" if near is None else f" (did you mean {near!r}?)"
        super().__init__(
            f"expected an existing stream table, found none named {table!r}{hint}", table=table
        )


class RelationNotFound(Rejected):
    """Neither a table nor a topic that tables can read has that name."""

    code = "relation_not_found"
    status: ClassVar[int] = 404


class NoContents(Conflict):
    """The table is defined, but was never refreshed, or not yet at that snapshot."""

    code = "no_contents"
    status: ClassVar[int] = 409

    def __init__(self, table: str, snapshot: int) -> None:
        super().__init__(
            f"expected contents of {table!r} at snapshot {snapshot}, found that it was not "
            "refreshed until then",
            table=table,
            snapshot=snapshot,
        )


class TableExists(Conflict):
    """A relation of that name is there already."""

    code = "table_exists"
    status: ClassVar[int] = 409


class TableInUse(Conflict):
    """Other stream tables read what was to be dropped."""

    code = "table_in_use"
    status: ClassVar[int] = 409

    def __init__(self, table: str, readers: Sequence[str]) -> None:
        super().__init__(
            f"expected nobody to read {table!r}, found {', '.join(readers)}: "
            "drop them first, or drop with cascade",
            table=table,
            readers=list(readers),
        )


class TableCycle(Conflict):
    """A table would read itself, directly or through others. Nothing was changed."""

    code = "table_cycle"
    status: ClassVar[int] = 409

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"expected no cycle, found {' > '.join(cycle)}", cycle=list(cycle))


class JobMoved(Conflict):
    """A job is no longer in the state that a change of it expects."""

    code = "job_moved"
    status: ClassVar[int] = 409


class BadFrontier(Corrupt):
    """A stored frontier is not what was written."""

    code = "bad_frontier"


class NotCoordinated(Unavailable):
    """Nobody runs the coordinator that would have to do it."""

    code = "not_coordinated"
    status: ClassVar[int] = 503
