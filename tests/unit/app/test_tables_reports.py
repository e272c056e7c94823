"""What a coordinator reports of its workers."""

from __future__ import annotations

from typing import Any

from penstock.app.tables import TablesLook
from penstock.testing import ManualClock

POOL = {"running": 1, "ready": 0}


class Loop:
    """A coordinator as it is seen from another thread."""

    trouble: str | None = None

    def __init__(self) -> None:
        self.shown: dict[str, Any] | None = None

    def view(self) -> dict[str, Any] | None:
        return self.shown

    def show(self, *workers: tuple[str, int | None]) -> None:
        self.shown = {
            "pool": POOL, "unfit": None,
            "workers": [{"worker": name, "ready": True, "job_id": job} for name, job in workers],
            "running": [{"job_id": 7, "unit_key": "table:t"}],
        }  # fmt: skip


def lost(look: TablesLook) -> list[tuple[str, int, str | None]]:
    return [(each.part, each.pid, each.unit) for each in look(False)["tables.a"].facts["lost"]]


def test_a_worker_that_is_gone_is_reported_with_what_it_did() -> None:
    loop = Loop()
    look = TablesLook(loop, "a", ManualClock())  # type: ignore[arg-type]
    assert lost(look) == []
    loop.show(("vm/1-5", 7), ("vm/2-5", None))
    assert lost(look) == []
    loop.show(("vm/2-5", None), ("vm/3-6", 7))
    assert lost(look) == [("worker.a-1", 1, "table:t")]
    assert set(look(False)) == {"tables.a", "worker.a-1", "worker.a-2"}
    assert look(False)["worker.a-1"].pid == 3, "it has the place of the one that is gone"


def test_workers_that_end_with_their_coordinator_are_not_lost() -> None:
    loop = Loop()
    look = TablesLook(loop, "a", ManualClock())  # type: ignore[arg-type]
    loop.show(("vm/1-5", 7))
    assert lost(look) == []
    loop.shown = None
    assert lost(look) == []
    loop.show(("vm/2-6", None))
    assert lost(look) == []
