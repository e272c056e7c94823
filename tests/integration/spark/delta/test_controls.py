"""Negative controls: an engine with a known mistake must fail the checks of these tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.spark.delta import apply
from penstock.spark.delta.errors import MustBeFull
from penstock.spark.delta.refresh import DifferentialRefresh
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from tests.integration.spark.delta.shop import Shop
from tests.integration.spark.delta.test_refresh import BATCHES, TABLES, VIEWS


def a_wrong_row(patch: pytest.MonkeyPatch) -> None:
    """Of the rows that come, the first stands for all."""
    original = apply.repeated

    def first_only(rows: pa.Table, counts: Any) -> pa.Table:
        made = original(rows, counts)
        return made.take(pa.array(np.zeros(made.num_rows, np.int64)))

    patch.setattr(apply, "repeated", first_only)


def a_silent_full(patch: pytest.MonkeyPatch) -> None:
    """The whole query runs, as if that had been asked for."""

    def never(*_: object) -> None:
        raise MustBeFull(ReasonCode.AS_CONFIGURED)

    patch.setattr(DifferentialRefresh, "refresh", never)


def a_wrong_count(patch: pytest.MonkeyPatch) -> None:
    """One changed row too many is on record."""
    original = DifferentialRefresh._made

    def one_more(*arguments: Any) -> Any:
        made = original(*arguments)
        return replace(made, delta_rows=made.delta_rows + 1)

    patch.setattr(DifferentialRefresh, "_made", one_more)


def a_position_off(patch: pytest.MonkeyPatch) -> None:
    """A delete file names the row before one that goes."""
    original = apply.locate

    def moved(*arguments: Any) -> Any:
        found = original(*arguments)
        deletes = [replace(rows, positions=before(rows.positions)) for rows in found.deletes]
        return replace(found, deletes=tuple(deletes))

    patch.setattr(apply, "locate", moved)


def before(positions: Any) -> Any:
    """Positions of which the last that can is one lower."""
    made = np.array(positions)
    free = [at for at, place in enumerate(made) if place and place - 1 not in made]
    made[free[-1]] -= 1
    return made


CONTROLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a_wrong_row": a_wrong_row,
    "a_silent_full": a_silent_full,
    "a_wrong_count": a_wrong_count,
    "a_position_off": a_position_off,
}


def test_each_mistake_of_an_engine_turns_the_checks_red(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run(*TABLES)
    for name in (*CONTROLS, "no_mistake"):
        shop.create(name, VIEWS["picked"])
    shop.settle(executed=Mode.FULL)
    shop.run(*BATCHES[0])
    for name, breaks in CONTROLS.items():
        with monkeypatch.context() as patch:
            breaks(patch)
            with pytest.raises(AssertionError):
                shop.settle(name)
    shop.settle("no_mistake")
