"""Frames: the bytes that device writers rely on, and every way in which bytes are no frame."""

from __future__ import annotations

from struct import pack

import pytest
from crc32c import crc32c

from penstock.ingest.frames import (
    FRAGMENT_BYTES_MAX,
    OFFENDING_BYTES_MAX,
    Ack,
    ErrorCode,
    Failure,
    Fragment,
    FrameError,
    FrameReader,
    Hello,
    Ping,
    Pong,
    Welcome,
    encode,
    encode_ack,
    encode_error,
    encode_hello,
    encode_message,
    encode_ping,
    encode_pong,
    encode_welcome,
)
from penstock.kernel.errors import Rejected

HELLO = encode_hello("meter-7", b"secret")


def feed(data: bytes) -> FrameReader:
    reader = FrameReader()
    reader.feed(data)
    return reader


def test_a_frame_is_what_the_page_for_device_writers_says():
    head = bytes([0xBE, 1, 3, 0]) + pack("<I", 19)
    body = pack("<QHHI", 12, 0, 1, 3) + b"abc"
    assert encode_message(12, b"abc") == head + body + pack("<I", crc32c(head + body))


def test_every_frame_is_read_as_it_was_written():
    welcome = Welcome(1, 16_384, 262_144, 524_288, 256, 2**63, 300_000)
    error = FrameError(ErrorCode.STALE_ID, "too old: ü", message_id=9)
    sent = [
        (HELLO, Hello("meter-7", b"secret")),
        (encode_welcome(welcome), welcome),
        (encode_message(2**64 - 1, b""), Fragment(2**64 - 1, 0, 1, 0, b"")),
        (encode_ack([1, 2**64 - 1]), Ack((1, 2**64 - 1))),
        (encode_error(error), Failure(12, 9, "too old: ü")),
        (encode_ping(b"x"), Ping(b"x")),
        (encode_pong(b"x"), Pong(b"x")),
    ]
    reader = FrameReader()
    assert reader.feed(b"".join(data for data, _ in sent)) == [frame for _, frame in sent]
    assert (reader.error, reader.held_bytes) == (None, 0)


def test_a_large_message_is_cut_into_fragments():
    payload = bytes(range(256)) * 200
    reader = FrameReader()
    _, *fragments = reader.feed(HELLO + encode_message(5, payload))
    assert [each.piece for each in fragments] == [0, 1, 2, 3]
    assert {(each.message_id, each.pieces, each.message_bytes) for each in fragments} == {
        (5, 4, len(payload))
    }
    assert b"".join(each.payload for each in fragments) == payload


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "error_code"),
    [
        (b"GET / HTTP/1.1\r\n", ErrorCode.BAD_MAGIC),
        (changed(HELLO, 1, 9), ErrorCode.BAD_VERSION),
        (changed(HELLO, 2, 8), ErrorCode.BAD_TYPE),
        (changed(HELLO, 2, 0), ErrorCode.BAD_TYPE),
        (changed(HELLO, 3, 1), ErrorCode.BAD_TYPE),
        (changed(HELLO, 7, 255), ErrorCode.BAD_LENGTH),
        (changed(HELLO, -1, HELLO[-1] ^ 1), ErrorCode.BAD_CHECKSUM),
        (changed(HELLO, 12, HELLO[12] ^ 1), ErrorCode.BAD_CHECKSUM),
        (encode(1, b""), ErrorCode.BAD_BODY),
        (encode(1, b"\x01\x01\xffabc\x00\x00"), ErrorCode.BAD_BODY),
        (encode(1, b"\x01\x01\x01a\x05\x00abc"), ErrorCode.BAD_BODY),
        (encode(1, b"\x01\x01\x02 a\x00\x00"), ErrorCode.BAD_BODY),
        (encode(1, b"\x01\x01\x00\x00\x00"), ErrorCode.BAD_BODY),
        (encode(2, b"x"), ErrorCode.BAD_BODY),
        (encode(3, b"x" * 15), ErrorCode.BAD_BODY),
        (encode(4, b"x" * 7), ErrorCode.BAD_BODY),
        (encode(5, b"x"), ErrorCode.BAD_BODY),
        (encode(6, b"x" * 65), ErrorCode.BAD_BODY),
        (encode(7, b"x" * 65), ErrorCode.BAD_BODY),
    ],
)
def test_what_is_no_frame_is_told_by_its_code(data, error_code):
    reader = feed(data)
    assert reader.error is not None
    assert reader.error.error_code is error_code
    assert data.startswith(reader.offending)
    assert reader.offending


def test_frames_before_a_bad_one_count_and_nothing_after_it_does():
    reader = FrameReader()
    frames = reader.feed(HELLO + encode_ping() + b"?" * 1_000 + encode_ping())
    assert frames == [Hello("meter-7", b"secret"), Ping(b"")]
    assert reader.offending == b"?" * OFFENDING_BYTES_MAX
    assert reader.feed(encode_ping()) == []


def test_nobody_has_more_held_than_a_small_body_before_hello():
    large = encode_message(1, b"x" * 2_000)
    assert feed(large).error.error_code is ErrorCode.BAD_LENGTH
    reader = feed(HELLO)
    assert len(reader.feed(large)) == 1


def test_a_body_over_the_limit_is_refused_before_it_is_there():
    reader = feed(HELLO)
    reader.feed(pack("<BBBBI", 0xBE, 1, 3, 0, FRAGMENT_BYTES_MAX + 17))
    assert reader.error.error_code is ErrorCode.BAD_LENGTH


def test_a_frame_that_comes_byte_by_byte_is_held_once():
    reader = feed(HELLO)
    data = encode_message(1, b"x" * 10_000)
    for at in range(len(data) - 1):
        assert reader.feed(data[at : at + 1]) == []
        assert reader.held_bytes == at + 1
    assert len(reader.feed(data[-1:])) == 1
    assert reader.held_bytes == 0


@pytest.mark.parametrize("device", ["", "a b", "ü", "x" * 65, "-x"])
def test_a_device_may_not_be_called_anything(device):
    with pytest.raises(Rejected):
        encode_hello(device, b"")


def test_what_cannot_be_framed_is_refused():
    with pytest.raises(Rejected):
        encode_hello("a", b"x" * 257)
    with pytest.raises(Rejected):
        encode_message(1, b"x" * 65_536, fragment_bytes_max=1)
