"""What the server pushes is what the client reads."""

from __future__ import annotations

import msgspec

from penstock.protocol.events import EVENTS, CaughtUp, LeftOut, Records, Tombstone, TopicDeleted
from penstock.server.push import sse
from penstock.topics.core.read import LostSeqs as Gap


def read(event: str, data: bytes) -> object:
    """An event's data; a key that its struct does not have is an error here."""
    kind = EVENTS[event]
    assert set(msgspec.json.decode(data)) <= set(kind.__struct_encode_fields__)
    return msgspec.json.decode(data, type=kind)


def test_events_that_are_made_from_structs_are_read_back() -> None:
    gap = Gap(1, 4, "cap", 4, 5, 9)
    data = sse.tombstone_data("t", gap, 3)
    assert read("tombstone", data) == Tombstone(
        topic="t", reason=gap.reason, gap_from=gap.gap_from, gap_to=gap.gap_to,
        earliest_seq=gap.earliest_seq, head_seq=gap.head_seq, epoch=3,
    )  # fmt: skip
    assert read("topic-deleted", sse.deleted_data("t")) == TopicDeleted(topic="t")
    left_out = read("left-out", sse.left_out_data(["a", "b"], 1))
    assert isinstance(left_out, LeftOut)
    assert (left_out.topics, left_out.count) == (["a", "b"], 2)


def test_events_that_are_formatted_for_speed_are_read_back_all_the_same() -> None:
    diff = msgspec.defstruct("Diff", [("head_seq", int), ("next_from_seq", int), ("epoch", int)])
    page = diff(9, 8, 2)
    records = read("record", sse.record_data("t", b'{"$seq":8,"$ts":1,"data":7}', 7, page))
    assert isinstance(records, Records)
    assert (records.from_seq, records.to_seq, records.records[0].data) == (7, 8, 7)
    assert read("caught-up", sse.caught_up_data("t", page)) == CaughtUp(
        topic="t", head_seq=9, epoch=2
    )
