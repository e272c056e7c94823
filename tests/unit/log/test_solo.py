"""A group of one: indexes, answers, refusals, going on after a failed write."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.executor import Work
from penstock.log.queues import Backpressure
from penstock.log.solo import Proposal, SoloOwner, SoloState, Written
from penstock.log.store import Append, Bounds, HardState, Operation, SetHardState


class Bench:
    """An owner whose writes wait in a list until the test answers them."""

    def __init__(self, bounds: Bounds | None = None, term: int = 1) -> None:
        self.writes: list[tuple[Operation, Written, bool]] = []
        self.answers: list[tuple[str, object]] = []
        self.store_last = (bounds or Bounds()).last_index
        self.full = False
        self.owner = SoloOwner(4, self._write, lambda: Bounds(last_index=self.store_last))
        self.owner.restored(bounds or Bounds(), HardState(term, 1 if term else 0))

    def _write(self, operation: Operation, written: Any, sync: bool) -> None:
        if self.full:
            raise Backpressure(4, 9, 9)
        self.writes.append((operation, written, sync))

    def propose(self, *names: str, sync: bool = True) -> None:
        proposals = [
            Proposal(name.encode(), lambda a, name=name: self.answers.append((name, a)), sync)  # type: ignore[misc]
            for name in names
        ]
        self.owner.step(Work.CLIENT, proposals)

    def answer(self, error: Exception | None = None) -> None:
        operation, written, _ = self.writes.pop(0)
        if error is None and isinstance(operation, Append):
            self.store_last = operation.entries[-1].index
        self.owner.step(Work.REPLICATION, [written._replace(error=error)])


def test_a_batch_becomes_one_append_and_each_proposal_hears_its_own_index() -> None:
    bench = Bench(Bounds(0, 0, 7, 1))
    bench.propose("a", "b", "c")
    operation = bench.writes[0][0]
    assert isinstance(operation, Append)
    assert [(e.index, e.term, e.payload) for e in operation.entries] == [
        (8, 1, b"a"),
        (9, 1, b"b"),
        (10, 1, b"c"),
    ]
    assert bench.answers == [], "nobody hears anything before it is durable"
    bench.answer()
    assert bench.answers == [("a", 8), ("b", 9), ("c", 10)]
    assert bench.owner.state() == SoloState(1, 1, 10, 10, 0)


def test_a_new_partition_remembers_its_term_before_it_is_idle() -> None:
    bench = Bench(term=0)
    assert bench.writes[0][0] == SetHardState(4, 1, 1)
    assert bench.owner.busy
    bench.answer()
    assert not bench.owner.busy


def test_runs_of_one_durability_class_are_written_together_and_order_is_kept() -> None:
    bench = Bench()
    proposals = [Proposal(b"%d" % n, lambda _: None, sync=n in (2, 3)) for n in range(5)]
    bench.owner.step(Work.CLIENT, proposals)
    assert [sync for _, _, sync in bench.writes] == [False, True, False]
    indexes = [e.index for op, _, _ in bench.writes for e in op.entries]  # type: ignore[union-attr]
    assert indexes == [1, 2, 3, 4, 5]


def test_a_refused_write_is_answered_and_its_place_in_the_log_stays_free() -> None:
    bench = Bench()
    bench.full = True
    bench.propose("refused")
    assert isinstance(bench.answers[0][1], Backpressure)
    bench.full = False
    bench.propose("taken")
    bench.answer()
    assert bench.answers[1] == ("taken", 1)


def test_after_a_failed_write_those_behind_it_fail_and_later_ones_go_on_from_the_store() -> None:
    bench = Bench()
    bench.propose("a")
    bench.propose("b")
    bench.answer(OSError("disk"))
    bench.propose("held")
    assert len(bench.writes) == 1, "it waits until nothing is in flight"
    assert bench.owner.busy
    bench.answer(OSError("not contiguous"))
    bench.answer()
    assert [(name, type(a)) for name, a in bench.answers] == [
        ("a", OSError),
        ("b", OSError),
        ("held", int),
    ]
    assert bench.answers[2] == ("held", 1)
    assert not bench.owner.busy


def test_anything_else_than_a_proposal_is_refused() -> None:
    with pytest.raises(Rejected, match="expected a proposal"):
        Bench().owner.step(Work.CONTROL, ["a vote"])
