"""Reassembly and the memory of ids against models that forget nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.ingest.frames import Fragment
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.reassemble import WINDOW, EdgeDevice, Look, Message, Outcome, Reassembler, Seen


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=80))
def test_what_is_seen_is_exact_within_the_window(ids):
    seen, model = Seen(), set()
    for message_id in ids:
        seen.add(message_id)
        model.add(message_id)
    top = max(model, default=0)
    for message_id in range(1, 3 * WINDOW + 2):
        look = seen.look(message_id)
        if message_id > top:
            assert look is Look.NEW
        elif message_id <= top - WINDOW:
            assert look is Look.STALE
        elif look is Look.DURABLE:
            assert message_id in model
        else:
            late = {each for each in model if _was_below(ids, each)}
            assert message_id not in model or message_id in late


def _was_below(ids, message_id):
    """Whether an id was added only when it was below the window already."""
    top = 0
    for each in ids:
        if each == message_id and each > top - WINDOW:
            return False
        top = max(top, each)
    return True


@st.composite
def traffic(draw):
    """Fragments of some messages of one device, mixed, some of them twice."""
    fragments = []
    for message_id in range(1, draw(st.integers(1, 8)) + 1):
        payload = draw(st.binary(max_size=1_500))
        count = draw(st.integers(1, max(1, -(-len(payload) // 256))))
        size = max(1, -(-len(payload) // count))
        parts = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
        fragments += [
            (payload, Fragment(message_id, n, len(parts), len(payload), part))
            for n, part in enumerate(parts)
        ]
    again = draw(st.lists(st.sampled_from(fragments), max_size=5))
    return draw(st.permutations(fragments + again))


@given(traffic(), st.booleans())
def test_every_message_comes_out_once_and_whole(fragments, durable_at_once):
    desk, device = Reassembler(EdgeLimits()), EdgeDevice("a")
    found = {}
    for _, fragment in fragments:
        outcome = desk.take(device, fragment, 0)
        if type(outcome) is Message:
            assert outcome.message_id not in found
            found[outcome.message_id] = outcome.payload
            if durable_at_once:
                device.pending.discard(outcome.message_id)
                device.seen.add(outcome.message_id)
        else:
            assert outcome is Outcome.KEPT or fragment.message_id in found
    assert found == {fragment.message_id: payload for payload, fragment in fragments}
    assert (device.partials, device.partial_bytes, desk.reserved_bytes) == ({}, 0, 0)
