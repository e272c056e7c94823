from __future__ import annotations

import pytest

from penstock.kernel.errors import Rejected
from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.failures import FailurePolicy
from penstock.tables.engine import Factory
from penstock.tables.settings import WarehouseSettings


def test_settings_reach_a_worker_as_they_are() -> None:
    settings = WarehouseSettings(
        "sqlite:x",
        runner=Factory("a.b:c", {"master": "local"}),
        topics=Factory("d:e"),
        parallel_refresh_mode=ParallelMode.DRY_RUN,
        retry=FailurePolicy(base_ms=5),
        tick_ms=20,
    )
    assert WarehouseSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("options", "text"),
    [({"max_workers": 0}, "max_workers"), ({"tick_ms": 100, "lease_ms": 200}, "four ticks")],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(Rejected, match=text):
        WarehouseSettings("sqlite:x", Factory("a:b"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nothing", "no.such.module:make", "json:no_such_thing", ":x"])
def test_an_engine_that_cannot_be_loaded_is_refused_by_name(name: str) -> None:
    with pytest.raises(Rejected, match=repr(name)):
        Factory(name).topics()
