"""What shows here, against a model: layers over a replica, and what a transaction notices."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.runtime.layers import Layer, View
from penstock.client.runtime.replica import Change, Replica
from penstock.client.runtime.transaction import Transaction
from penstock.commits.model import ABSENT, apply_write, parse_path, value_at
from penstock.protocol.commits import CommitWrite

ENTITIES = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["x", "y", "z"])
SCALARS = st.integers(0, 3)
DOCS = st.recursive(SCALARS, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=5)
PATCHES = st.recursive(
    SCALARS | st.none(), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)
WRITES = st.one_of(
    st.builds(lambda entity, doc: CommitWrite(entity, set=doc), ENTITIES, DOCS),
    st.builds(lambda entity, patch: CommitWrite(entity, patch=patch), ENTITIES, PATCHES),
    st.builds(lambda entity: CommitWrite(entity, delete=True), ENTITIES),
)
BATCHES = st.lists(WRITES, min_size=1, max_size=3).map(tuple)
POINTERS = st.sampled_from(["", "/x", "/y", "/x/y", "/x/y/z"])


def no_lane(kind: str, data: Any) -> str:
    return ""


def applied(docs: dict[str, Any], writes: tuple[CommitWrite, ...]) -> dict[str, Any]:
    docs = dict(docs)
    for write in writes:
        doc = apply_write(docs.get(write.entity, ABSENT), write)
        if doc is ABSENT:
            docs.pop(write.entity, None)
        else:
            docs[write.entity] = doc
    return docs


class Here:
    """A view under test, and what it must show."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.replica.reset({}, 0, 1)
        self.view = View(self.replica)
        self.confirmed: dict[str, Any] = {}
        self.layers: list[Layer] = []

    def push(self, writes: tuple[CommitWrite, ...], number: int) -> None:
        layer = Layer(number, writes)
        self.layers.append(layer)
        self.view.push(layer)

    def confirm(self, writes: tuple[CommitWrite, ...]) -> Any:
        self.confirmed = applied(self.confirmed, writes)
        return self.replica.apply(Change(self.replica.seq + 1, "other", 1, writes))

    def expected(self) -> dict[str, Any]:
        docs = self.confirmed
        for layer in self.layers:
            docs = applied(docs, layer.writes)
        return docs


STEPS = st.lists(
    st.tuples(st.sampled_from(["push", "confirm", "revert", "merge"]), BATCHES), max_size=12
)


@given(STEPS)
def test_a_view_is_its_replica_with_every_layer_on_top(steps):
    here = Here()
    for number, (kind, writes) in enumerate(steps):
        match kind:
            case "push":
                here.push(writes, number)
            case "confirm":
                here.confirm(writes)
            case "revert" if here.layers:
                here.view.pop(here.layers.pop())
            case "merge" if here.layers:
                first = here.layers.pop(0)
                here.confirm(first.writes)
                here.view.pop(first)
        assert {name: here.view.doc(name) for name in here.view.names()} == here.expected()


@given(STEPS, ENTITIES, POINTERS, st.booleans(), BATCHES)
def test_whatever_changes_a_value_that_was_read_is_noticed(steps, entity, pointer, shallow, writes):
    here = Here()
    for kind, batch in steps:
        if kind == "confirm":
            here.confirm(batch)
    transaction = Transaction(here.view, no_lane)
    path = parse_path(pointer)

    def look() -> Any:
        found = value_at(here.view.doc(entity), path, ABSENT)
        if not shallow:
            return found
        return found is ABSENT

    (transaction.exists if shallow else transaction.get)(entity, pointer)
    before = look()
    touched = here.confirm(writes)
    if look() != before:
        assert transaction.is_touched(touched)


@given(BATCHES, ENTITIES, DOCS)
def test_what_comes_out_is_a_copy_and_what_goes_in_too(writes, entity, doc):
    here = Here()
    here.confirm(writes)
    before = {name: repr(here.view.doc(name)) for name in here.view.names()}
    transaction = Transaction(here.view, no_lane)
    found = transaction.get(entity)
    if isinstance(found, dict):
        found["mine"] = 1
    given_doc = {"inner": doc}
    transaction.set(entity, given_doc)
    given_doc["inner"] = "changed"
    assert transaction.get(entity) == {"inner": doc}
    assert {name: repr(here.view.doc(name)) for name in here.view.names()} == before


@given(st.lists(BATCHES, min_size=1, max_size=6), st.data())
def test_layers_whose_seqs_are_known_show_in_the_order_of_these(batches, data):
    here = Here()
    for number, writes in enumerate(batches):
        here.push(writes, number)
    seqs = data.draw(st.permutations(range(1, len(batches) + 1)))
    for index in data.draw(st.permutations(range(len(batches)))):
        here.view.land(here.layers[index], seqs[index])
    here.layers.sort(key=lambda layer: layer.seq or 0)
    assert {name: here.view.doc(name) for name in here.view.names()} == here.expected()
    for layer in here.layers:
        assert here.view.merge(layer) == []
