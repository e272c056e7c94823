"""Records as the bytes they came in: whole requests, and those that are cut when first read."""

from __future__ import annotations

import tracemalloc

from penstock.kernel.units import KIB, MIB
from penstock.topics.core.batch import (
    PIECE_BYTES,
    WHOLE_BYTES_MAX,
    Batch,
    Opened,
    PackedRecords,
    opened,
    parse_write,
    unpack,
)
from penstock.topics.core.record_row import RecordRow


def request(count: int, size_bytes: int) -> bytes:
    """A request of records that differ, each of about so many bytes, every other with a tag."""
    records = [
        b'{"data":{"n": %d, "x":"%b"}%b}'
        % (number, b"x" * size_bytes, b',"tag":"t","meta":{"m":%d}' % number if number % 2 else b"")
        for number in range(count)
    ]
    return b'{"node":"n","records":[%b]}' % b",".join(records)


def test_one_record_of_a_very_large_request_is_had_without_decoding_all_of_it():
    body = request(4_000, KIB)
    assert len(body) > WHOLE_BYTES_MAX
    packed = PackedRecords(11, body)
    unpack(packed, 11)  # whoever is first cuts it
    before_bytes = opened.kept_bytes
    assert unpack(packed, 11 + 2_000) == parse_write(body).batch.records[2_000]
    assert 0 < opened.kept_bytes - before_bytes < 2 * PIECE_BYTES
    assert packed.body == b"", "it is kept once, in pieces"


def test_a_request_that_is_cut_has_the_same_records_everywhere():
    body = request(3_000, KIB)
    batch = parse_write(body).batch
    slots = RecordRow(100)
    slots.extend(parse_write(request(3, 10)).batch, 5)
    slots.extend(batch, 6)
    slots.extend(parse_write(request(1, 10)).batch, 7)
    found, passed = slots.page(103, 3_103, 5_000, 64 * MIB)
    assert (list(found.records), passed) == (batch.records, 3_103)
    assert [slots.get(104 + number) for number in (0, 1, 1_499, 2_999)] == [
        batch.records[number] for number in (0, 1, 1_499, 2_999)
    ]
    assert slots.remove(104 + 1_500)
    live = [slot.record for slot in slots.live(104 + 1_498, 104 + 1_501)]
    assert live == [batch.records[1_499], batch.records[1_501]]


def test_a_record_that_is_larger_than_a_piece_is_one():
    body = request(3, 900 * KIB)
    packed = PackedRecords(1, body)
    assert [unpack(packed, seq) for seq in (1, 2, 3)] == parse_write(body).batch.records


def test_what_was_decoded_last_is_kept_however_large_it_is():
    kept = Opened(bytes_max=10)
    packed = PackedRecords(1, request(2, 100))
    assert kept.records(packed) is kept.records(packed)
    assert kept.kept_bytes == len(packed.body)
    kept.records(PackedRecords(1, request(3, 100)))
    assert kept.kept_bytes == len(request(3, 100)), "and the one before it is let go"


def test_batches_of_nothing_leave_nothing_behind():
    slots = RecordRow(100)
    nothing = Batch.of([])
    tracemalloc.start()
    try:
        for _ in range(10_000):  # as of a router that passes over all of its source
            slots.extend(nothing, 5)
        assert tracemalloc.get_traced_memory()[0] < 10 * KIB
    finally:
        tracemalloc.stop()
    assert (slots.head_seq, slots.count) == (100, 0)
