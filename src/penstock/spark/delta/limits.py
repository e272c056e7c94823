"""Where work on a change moves from this process to Spark's tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeltaLimits:
    """Sizes beyond which a change, a state or a result is left to Spark's tasks.

    A change or a state of at most `collect_bytes_max` bytes is applied here. At most
    `here_rows_max` changed rows of an input are read here and handed to Spark with the query; joins
    are told to broadcast no more than these. Rows that left a file of more than `copy_from_rows`
    rows are read from its indexed copy where they lie all over it.
    """

    collect_bytes_max: int = 256 << 20
    here_rows_max: int = 200_000
    copy_from_rows: int = 65_536
