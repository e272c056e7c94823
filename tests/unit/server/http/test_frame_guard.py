from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.http.http2 import FrameGuard

MOST = 100


def frame(length: int) -> bytes:
    return length.to_bytes(3, "big") + bytes(6) + bytes(length)


@given(st.lists(st.integers(0, MOST), max_size=8), st.lists(st.integers(0, 900), max_size=12))
def test_short_frames_pass_however_they_are_cut(lengths, cuts):
    data = b"preface" + b"".join(map(frame, lengths))
    guard = FrameGuard(MOST, skip=len(b"preface"))
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for a, b in pairwise(places):
        assert guard.portion(data[a:b], 100) == b - a


@given(st.lists(st.integers(0, MOST), max_size=8), st.integers(1, 3), st.integers(1, 300))
def test_frames_come_in_portions_that_are_whole_however_they_are_cut(lengths, most, read):
    frames = list(map(frame, lengths))
    data, guard, portions = b"".join(frames), FrameGuard(MOST, skip=0), []
    ends = {sum(map(len, frames[:count])) for count in range(len(frames) + 1)}
    place = 0
    while place < len(data):
        size = guard.portion(data[place : place + read], most)
        assert size is not None
        assert size == min(read, len(data) - place) or place + size in ends
        portions.append(data[place : place + size])
        assert sum(place < end < place + size for end in ends) <= most
        place += size
    assert b"".join(portions) == data


@given(st.lists(st.integers(0, MOST), max_size=5), st.integers(MOST + 1, 2**24 - 1))
def test_a_long_frame_is_told_by_the_third_byte_of_its_head(lengths, long):
    good = b"".join(map(frame, lengths))
    guard = FrameGuard(MOST, skip=0)
    for byte in good + long.to_bytes(3, "big")[:2]:
        assert guard.portion(bytes([byte]), 1) == 1
    assert guard.portion(long.to_bytes(3, "big")[2:], 1) is None
