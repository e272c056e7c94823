"""Every store against a model of lists, with whatever operations hypothesis thinks of."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock.kernel.errors import PenstockError
from penstock.log.store import (
    Append,
    Bounds,
    Compact,
    HardState,
    InstallBoundary,
    LogEntry,
    Operation,
    SetHardState,
    Truncate,
)
from penstock.log.stores import KINDS, open_store
from penstock.log.stores.segment import SegmentStore

OPTIONS = {"segment": {"segment_bytes": 2048, "reclaim_below": 0.6}, "sqlite": {"shards": 2}}
PARTITIONS = st.integers(0, 3)
TERMS = st.integers(0, 9)


class Model:
    """One partition as plain values; `apply` says whether an operation can be."""

    def __init__(self) -> None:
        self.boundary = self.boundary_term = 0
        self.entries: list[LogEntry] = []
        self.hard = HardState()

    def copy(self) -> Model:
        other = Model()
        other.boundary, other.boundary_term = self.boundary, self.boundary_term
        other.entries, other.hard = list(self.entries), self.hard
        return other

    @property
    def last(self) -> int:
        return self.boundary + len(self.entries)

    def apply(self, op: Operation) -> bool:
        if not self.can(op):
            return False
        match op:
            case Append(_, entries):
                self.entries.extend(entries)
            case SetHardState(_, term, vote):
                self.hard = HardState(term, vote)
            case Truncate(_, from_index):
                del self.entries[from_index - self.boundary - 1 :]
            case Compact(_, upto) if upto > self.boundary:
                gone = self.entries[: upto - self.boundary]
                self.entries = self.entries[upto - self.boundary :]
                self.boundary, self.boundary_term = upto, gone[-1].term
            case InstallBoundary(_, index, term):
                self.boundary, self.boundary_term, self.entries = index, term, []
        return True

    def can(self, op: Operation) -> bool:
        match op:
            case Append(_, entries):
                wanted = range(self.last + 1, self.last + 1 + len(entries))
                return [entry.index for entry in entries] == list(wanted)
            case Truncate(_, from_index):
                return from_index > self.boundary
            case Compact(_, upto):
                return upto <= self.last
            case InstallBoundary(_, index, _):
                return index >= self.boundary
            case _:
                return True


@st.composite
def operations(draw: st.DrawFn) -> tuple[str, int, int, int, list[bytes]]:
    """A kind, a partition, an offset from the partition's end, a term and payloads."""
    kinds = ("append",) * 5 + ("hard", "truncate", "compact", "install")
    return (
        draw(st.sampled_from(kinds)),
        draw(PARTITIONS),
        draw(st.integers(-6, 3)),
        draw(TERMS),
        draw(st.lists(st.binary(max_size=400), max_size=4)),
    )


class Stores(RuleBasedStateMachine):
    kind = "memory"

    @initialize()
    def open(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.models: dict[int, Model] = {}
        self.store = open_store(self.kind, self.home, **OPTIONS.get(self.kind, {}))

    @rule(
        asked=st.lists(operations(), max_size=6),
        sync=st.booleans(),
        ahead=st.booleans(),
        begun=st.booleans(),
    )
    def write(
        self,
        asked: list[tuple[str, int, int, int, list[bytes]]],
        sync: bool,
        ahead: bool,
        begun: bool,
    ) -> None:
        after: dict[int, Model] = {}
        refused: set[int] = set()
        group: list[Operation] = []
        for kind, partition, offset, term, payloads in asked:
            model = after.setdefault(partition, self.models.get(partition, Model()).copy())
            op = operation(kind, partition, model.last, (offset, term, payloads))
            group.append(op)
            if partition not in refused and not model.apply(op):
                refused.add(partition)
        staged = self.store.stage(group, 1 << 30) if ahead else group
        assert staged is not None
        underway = self.store.begin(staged, sync=sync) if begun else None
        failed = underway.finish() if underway else self.store.write(staged, sync=sync)
        assert set(failed) == refused
        assert all(isinstance(error, PenstockError) for error in failed.values())
        self.models.update({p: model for p, model in after.items() if p not in refused})

    @rule()
    def reopen(self) -> None:
        if self.kind != "memory":
            self.store.close()
            self.store = open_store(self.kind, self.home, **OPTIONS.get(self.kind, {}))

    @rule()
    def reclaim(self) -> None:
        if isinstance(self.store, SegmentStore):
            self.store.reclaim()

    @rule(
        partition=PARTITIONS,
        skip=st.integers(0, 5),
        max_entries=st.integers(1, 6),
        max_bytes=st.integers(0, 900),
    )
    def read(self, partition: int, skip: int, max_entries: int, max_bytes: int) -> None:
        model = self.models.get(partition, Model())
        first = model.boundary + 1 + skip
        expected: list[LogEntry] = []
        for entry in model.entries[skip : skip + max_entries]:
            if expected and sum(len(e.payload) for e in [*expected, entry]) > max_bytes:
                break
            expected.append(entry)
        found = self.store.read(partition, first, max_entries=max_entries, max_bytes=max_bytes)
        assert found == expected

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        for partition, model in getattr(self, "models", {}).items():
            terms = [model.boundary_term, *(entry.term for entry in model.entries)]
            assert self.store.bounds(partition) == Bounds(
                model.boundary, model.boundary_term, model.last, terms[-1]
            )
            assert self.store.hard_state(partition) == model.hard
            span = range(model.boundary, model.last + 1)
            assert [self.store.term_at(partition, index) for index in span] == terms
            found = self.store.read(
                partition, model.boundary + 1, max_entries=1 << 30, max_bytes=1 << 40
            )
            assert found == model.entries

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.home)


def operation(
    kind: str, partition: int, last: int, rest: tuple[int, int, list[bytes]]
) -> Operation:
    offset, term, payloads = rest
    near = max(last + offset, 0)
    match kind:
        case "append":
            first = last + 1 if offset < 3 else near
            return Append(partition, [LogEntry(first + i, term, p) for i, p in enumerate(payloads)])
        case "hard":
            return SetHardState(partition, term, near)
        case "truncate":
            return Truncate(partition, near)
        case "compact":
            return Compact(partition, near)
        case _:
            return InstallBoundary(partition, near, term)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_does_what_the_model_does(kind: str) -> None:
    examples = 60 if kind in ("memory", "segment") else 20
    machine = type(f"Stores_{kind}", (Stores,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, print_blob=True
        ),
    )
