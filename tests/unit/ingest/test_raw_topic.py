"""Messages as records, and checkpoints of what is durable."""

from __future__ import annotations

from base64 import b64decode

import msgspec
import pytest

from penstock.ingest.raw_topic import (
    DEVICES_PER_RECORD,
    decode_checkpoint,
    encode_batch,
    encode_checkpoint,
    identity_of,
)
from penstock.ingest.reassemble import EdgeDevice, Message, Seen
from penstock.kernel.errors import Corrupt
from penstock.topics.core.batch import parse_write


def test_a_batch_is_a_write_that_the_topics_take():
    messages = [
        Message(EdgeDevice("a"), 1, b"\x00\xff"),
        Message(EdgeDevice("b:2"), 2**64 - 1, b""),
    ]
    write = parse_write(encode_batch(messages, key="after-7"))
    assert write.key == "after-7"
    found = [(r.node, r.tag, b64decode(bytes(r.data)[1:-1])) for r in write.batch.records]
    assert found == [("a", "1", b"\x00\xff"), ("b:2", str(2**64 - 1), b"")]
    assert identity_of(*found[1][:2]) == ("b:2", 2**64 - 1)


@pytest.mark.parametrize("pair", [(None, "1"), ("a", None), ("a", "x"), ("a", "-1"), ("a", "²")])
def test_a_record_of_somebody_else_is_no_message(pair):
    assert identity_of(*pair) is None


def checkpoint(seq: int, count: int, top: int = 9) -> list[bytes]:
    devices = {f"d{n}": EdgeDevice(f"d{n}", Seen(top, 0b101)) for n in range(count)}
    return encode_checkpoint(seq, devices)


@pytest.mark.parametrize("count", [0, 1, DEVICES_PER_RECORD, DEVICES_PER_RECORD + 1])
def test_a_checkpoint_is_read_as_it_was_written(count):
    found = decode_checkpoint(checkpoint(5, count))
    assert (found.seq, len(found.seen)) == (5, count)
    assert all((seen.top, seen.bits) == (9, 0b101) for seen in found.seen.values())


def test_the_last_whole_checkpoint_counts():
    older, newer = checkpoint(5, 1_500), checkpoint(8, 1_500, top=12)
    assert decode_checkpoint([*older, *newer]).seq == 8
    assert decode_checkpoint([*older, newer[0]]).seq == 5
    assert decode_checkpoint([*older[1:], *newer]).seq == 8
    assert decode_checkpoint([]).seq == 0


@pytest.mark.parametrize(
    "record",
    [b"{", b'{"seq":1}', msgspec.json.encode(
        {"seq": 1, "part": 0, "parts": 1, "devices": {"a": [1, "zz"]}}
    )],
)  # fmt: skip
def test_a_checkpoint_that_is_none_stops_the_edge(record):
    with pytest.raises(Corrupt):
        decode_checkpoint([record])


def test_a_tag_beyond_every_message_id_is_somebody_elses():
    assert identity_of("m", str(2**64 - 1)) == ("m", 2**64 - 1)
    assert identity_of("m", str(2**64)) is None
