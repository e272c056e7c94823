"""Where work on a change moves from this process to Spark's tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeltaLimits:
    """Sizes beyond which a change, a state or a result is left to Spark's tasks.

    A change or a state of at most `collect_bytes_max` bytes is applied here. At most
    `here_rows_max` changed rows of an input are read here and handed to Spark with the query; joins
    are told to broadcast no more than these. Rows that left a file of more than `copy_from_rows`
    rows are read from its indexed copy where they lie all over it. A stored state of at most
    `state_rows_max` rows is handed to Spark whole rather than looked up by the keys that change.
    At least `file_from_rows` rows are handed over as a file, fewer with the query. Of an input of
    at least `near_from_rows` rows and at most `near_bytes_max` bytes, the old rows that changes can
    meet are looked up here, up to `near_rows_max` and one of `near_part` of its rows.
    """

    collect_bytes_max: int = 256 << 20
    here_rows_max: int = 200_000
    copy_from_rows: int = 65_536
    state_rows_max: int = 10_000
    near_from_rows: int = 200_000
    near_bytes_max: int = 512 << 20
    near_rows_max: int = 600_000
    near_part: int = 4
    file_from_rows: int = 4_096
