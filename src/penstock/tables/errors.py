"""What stream tables refuse, on the kernel's groups of errors."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.kernel.errors import Conflict, Corrupt, Rejected


class InvalidTable(Rejected):
    """A definition is not what a stream table allows: a name, a mode, a pair of options."""

    code = "invalid_table"


class InvalidSchedule(Rejected):
    """A schedule is neither a duration nor a cron expression nor one of the words."""

    code = "invalid_schedule"


class InvalidQuery(Rejected):
    """A query is not one SELECT, or reads what a stream table cannot read."""

    code = "invalid_query"


class InvalidTableFile(Rejected):
    """A `.sql` file's header or query is wrong; the text says in which line."""

    code = "invalid_table_file"


class TableNotFound(Rejected):
    """There is no stream table of that name."""

    code = "table_not_found"

    def __init__(self, table: str) -> None:
        super().__init__(
            f"expected an existing stream table, found none named {table!r}", table=table
        )


class TableExists(Conflict):
    """A relation of that name is there already."""

    code = "table_exists"


class TableInUse(Conflict):
    """Other stream tables read the one that was to be dropped."""

    code = "table_in_use"

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

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"expected no cycle, found {' > '.join(cycle)}", cycle=list(cycle))


class JobMoved(Conflict):
    """A job is no longer in the state that a change of it expects."""

    code = "job_moved"


class BadFrontier(Corrupt):
    """A stored frontier is not what was written."""

    code = "bad_frontier"
