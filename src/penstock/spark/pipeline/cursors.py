"""The progress of each pipeline: rows in the catalog, advanced by the commit of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.transaction import LakeTransaction
from penstock.spark.pipeline.space import Basis

GROUP: Final = "pipelines"
VERSION: Final = 2
CREATE: Final = (
    """CREATE TABLE IF NOT EXISTS penstock_pipelines (
        name TEXT PRIMARY KEY,
        topic TEXT NOT NULL,
        epoch BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        holder TEXT NOT NULL,
        batches BIGINT NOT NULL,
        messages BIGINT NOT NULL,
        duplicates BIGINT NOT NULL,
        rows_stored BIGINT NOT NULL,
        rows_dead BIGINT NOT NULL,
        stored_at BIGINT NOT NULL)""",
    "ALTER TABLE penstock_pipelines ADD COLUMN basis_space TEXT",
    "ALTER TABLE penstock_pipelines ADD COLUMN basis_epoch BIGINT",
    "ALTER TABLE penstock_pipelines ADD COLUMN basis_seq BIGINT",
)
_COLUMNS: Final = (
    "name", "topic", "epoch", "seq", "holder", "batches", "messages", "duplicates", "rows_stored",
    "rows_dead", "stored_at", "basis_space", "basis_epoch", "basis_seq",
)  # fmt: skip
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM penstock_pipelines"
_INSERT: Final = """INSERT INTO penstock_pipelines
    VALUES (?, ?, ?, ?, ?, 0, 0, 0, 0, 0, ?, NULL, NULL, NULL) ON CONFLICT (name) DO NOTHING"""
_TAKE: Final = "UPDATE penstock_pipelines SET holder = ? WHERE name = ?"
_MOVE: Final = """UPDATE penstock_pipelines SET seq = ?, batches = batches + 1,
    messages = messages + ?, duplicates = duplicates + ?, rows_stored = rows_stored + ?,
    rows_dead = rows_dead + ?, stored_at = ?, basis_space = coalesce(?, basis_space),
    basis_epoch = coalesce(?, basis_epoch), basis_seq = coalesce(?, basis_seq)
    WHERE name = ? AND epoch = ? AND seq = ? AND holder = ?"""


class TakenOver(Conflict):
    """Another process runs this pipeline now, or it was moved by hand."""

    code = "taken_over"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a pipeline: every record of its topic up to `seq` is processed."""

    name: str
    topic: str
    epoch: int
    seq: int
    holder: str = ""
    batches: int = 0
    messages: int = 0
    duplicates: int = 0
    rows_stored: int = 0
    rows_dead: int = 0
    stored_at_ms: int = 0
    basis: Basis | None = None
    """What the last batch was evaluated with beside its rows."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One batch: from where to where, and what came of its messages."""

    after: int
    upto: int
    messages: int
    duplicates: int
    rows_stored: int
    rows_dead: int
    basis: Basis | None = None


def cursors(lake: Catalog) -> list[Cursor]:
    """Every pipeline that ever ran on this lake, by name."""
    lake.migrate(GROUP, VERSION, CREATE)
    return [_cursor(row) for row in lake.query(f"{_SELECT} ORDER BY name")]


def cursor_of(lake: Catalog, name: str) -> Cursor | None:
    """The cursor of one pipeline; None if it never ran."""
    lake.migrate(GROUP, VERSION, CREATE)
    rows = lake.query(f"{_SELECT} WHERE name = ?", (name,))
    return _cursor(rows[0]) if rows else None


def take_over(lake: Catalog, name: str, topic: str, epoch: int, holder: str) -> Cursor:
    """Take a pipeline over; the process that ran it before can commit nothing more."""
    lake.migrate(GROUP, VERSION, CREATE)
    now_ms = lake.clock.now_ms()

    def work(cursor: Any) -> None:
        cursor.execute(lake.database.sql(_INSERT), (name, topic, epoch, 0, holder, now_ms))
        cursor.execute(lake.database.sql(_TAKE), (holder, name))

    lake.retrying(work)
    found = cursor_of(lake, name)
    if found is None or found.topic != topic:
        raise Rejected(
            f"pipeline {name!r} reads topic {found.topic if found else None!r}, not {topic!r}: "
            "give this one another name"
        )
    return found


def move(transaction: LakeTransaction, cursor: Cursor, moved: Moved, now_ms: int) -> None:
    """Have a commit move the cursor, or fail if it is not where this batch began."""
    transaction.also(
        _MOVE,
        (
            moved.upto, moved.messages, moved.duplicates, moved.rows_stored, moved.rows_dead,
            now_ms, *(moved.basis or (None, None, None)),
            cursor.name, cursor.epoch, moved.after, cursor.holder,
        ),
        rows=1,
    )  # fmt: skip


def _cursor(row: Sequence[Any]) -> Cursor:
    found, (space, epoch, seq) = Cursor(*row[:-3]), row[-3:]
    return found if space is None else replace(found, basis=Basis(space, epoch, seq))
