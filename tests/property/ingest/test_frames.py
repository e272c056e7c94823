"""Frames however the bytes are cut, and bytes that are no frames at all."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.ingest.frames import (
    ErrorCode,
    FrameError,
    FrameReader,
    encode_ack,
    encode_error,
    encode_hello,
    encode_message,
    encode_ping,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", fullmatch=True)
IDS = st.integers(0, 2**64 - 1)
FRAMES = st.one_of(
    st.builds(encode_hello, NAMES, st.binary(max_size=256)),
    st.builds(encode_message, IDS, st.binary(max_size=300), st.integers(1, 100)),
    st.builds(encode_ack, st.lists(IDS, max_size=20)),
    st.builds(encode_ping, st.binary(max_size=64)),
    st.builds(
        lambda code, text: encode_error(FrameError(code, text)),
        st.sampled_from(ErrorCode),
        st.text(max_size=50),
    ),
)
GARBAGE = st.one_of(st.just(b""), st.binary(max_size=60))


def read(pieces):
    reader = FrameReader()
    frames = [frame for piece in pieces for frame in reader.feed(piece)]
    error = reader.error
    return frames, None if error is None else (error.error_code, str(error)), reader


def cut(data, places):
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(FRAMES, max_size=6), GARBAGE, st.lists(st.integers(0, 2_000), max_size=12))
def test_any_cut_gives_the_same_frames_and_the_same_error(frames, garbage, places):
    data = b"".join(frames) + garbage
    whole = read([data])
    assert read(cut(data, places))[:2] == whole[:2]
    assert read([data[n : n + 1] for n in range(len(data))])[:2] == whole[:2]


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_garbage_is_told_and_never_raises_or_holds_much(pieces):
    frames, _, reader = read(pieces)
    assert len(frames) * 12 <= sum(map(len, pieces))
    assert reader.held_bytes <= 1_024 + 12


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_never_gives_another_frame(frames, data):
    sent = b"".join(frames)
    at = data.draw(st.integers(0, 8 * len(sent) - 1))
    broken = bytearray(sent)
    broken[at // 8] ^= 1 << at % 8
    was, _, _ = read([sent])
    found, _, _ = read([bytes(broken)])
    assert found == was[: len(found)]
    assert len(found) < len(was)
