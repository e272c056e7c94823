"""Cursors of pipelines in the catalog, on every database. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.kernel.errors import Conflict
from penstock.lake.catalog import open_catalog
from penstock.spark.pipeline.cursors import (
    CREATE,
    GROUP,
    Moved,
    cursor_of,
    cursors,
    move,
    take_over,
)
from penstock.spark.pipeline.space import Basis


def test_what_a_batch_was_evaluated_with_moves_with_the_cursor_or_not_at_all(
    new_address: Callable[[str], str], kind: str, tmp_path: Path
) -> None:
    with open_catalog(new_address(kind), str(tmp_path / "data")) as lake:
        cursor = take_over(lake, "p", "raw", 7, "me")
        assert cursor.basis is None

        def moved(after: int, upto: int, basis: Basis | None) -> None:
            transaction = lake.begin()
            move(transaction, cursor, Moved(after, upto, 1, 0, 1, 0, basis), 5)
            lake.commit(transaction)

        moved(0, 10, Basis("tariffs", 3, 40))
        (found,) = cursors(lake)
        assert (found.seq, found.basis) == (10, Basis("tariffs", 3, 40))
        moved(10, 12, None)  # a batch of nothing but duplicates was evaluated with nothing
        with pytest.raises(Conflict):
            moved(10, 20, Basis("tariffs", 3, 41))
        found = take_over(lake, "p", "raw", 7, "another")
        assert (found.seq, found.batches, found.basis) == (12, 2, Basis("tariffs", 3, 40))


def test_cursors_from_before_have_no_basis_until_they_move(
    new_address: Callable[[str], str], kind: str, tmp_path: Path
) -> None:
    with open_catalog(new_address(kind), str(tmp_path / "data")) as lake:
        row = "INSERT INTO penstock_pipelines VALUES ('p', 'raw', 7, 5, 'x', 1, 1, 0, 1, 0, 9)"
        lake.migrate(GROUP, 1, (CREATE[0], row))
        found = cursor_of(lake, "p")
        assert found is not None
        assert (found.topic, found.seq, found.stored_at_ms, found.basis) == ("raw", 5, 9, None)
