"""Side inputs, such as prices, as files: once for each version, however many batches there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.expire import sweep
from penstock.spark.pipeline.definition import ArrowStep, SideInput
from penstock.spark.pipeline.side_files import SideStore
from penstock.spark.pipeline.store import RESERVE_MS
from penstock.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=4_000_000_000_000)  # after any file of this test was written


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock) -> Iterator[Catalog]:
    address = f"sqlite:{tmp_path}/lake.sqlite"
    with open_catalog(address, str(tmp_path / "data"), clock=clock) as opened:
        yield opened


def prices(version: str, price: int) -> SideInput:
    return SideInput(version, {"prices": pa.table({"price": [price]})}, dict)


def priced(batches: Any, _prices: Any) -> Any:
    yield from batches


def files(lake: Catalog) -> list[str]:
    return sorted(file.path for file in lake.storage.files(lake.data_path))


def test_a_version_is_written_once_for_any_number_of_batches(lake: Catalog) -> None:
    side = SideStore(lake)
    steps = [
        side.steps([("evaluate", ArrowStep(priced, pa.schema([]), prices("1", 7)))])[0].side
        for _ in range(5)
    ]
    assert len({tuple(each.paths.items()) for each in steps if each is not None}) == 1
    (path,) = files(lake)
    assert pq.read_table(path)["price"].to_pylist() == [7]
    side.close()
    assert files(lake) == []


def test_the_version_before_stays_for_tasks_that_may_still_read_it(lake: Catalog) -> None:
    side = SideStore(lake)
    paths = [side.files(prices(str(n), n)).paths["prices"] for n in range(4)]
    assert files(lake) == sorted(paths[-2:])


def test_a_version_that_was_swept_when_its_reservation_ran_out_is_written_again(
    lake: Catalog, clock: ManualClock
) -> None:
    side = SideStore(lake)
    first = side.files(prices("1", 7)).paths["prices"]
    clock.advance(RESERVE_MS // 2 + 1)
    assert side.files(prices("1", 7)).paths["prices"] == first, "renewed in good time"
    clock.advance(RESERVE_MS + 1)
    assert sweep(lake, grace_ms=0) == [first]
    again = side.files(prices("1", 7)).paths["prices"]
    assert again != first
    assert pq.read_table(again)["price"].to_pylist() == [7]
