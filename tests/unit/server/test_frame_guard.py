from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.shell.frame_guard import FrameGuard

MOST = 100


def frame(length: int) -> bytes:
    return length.to_bytes(3, "big") + bytes(6) + bytes(length)


@given(st.lists(st.integers(0, MOST), max_size=8), st.lists(st.integers(0, 900), max_size=12))
def test_short_frames_pass_however_they_are_cut(lengths, cuts):
    data = b"preface" + b"".join(map(frame, lengths))
    guard = FrameGuard(MOST, skip=len(b"preface"))
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    assert all(guard.allows(data[a:b]) for a, b in pairwise(places))


@given(st.lists(st.integers(0, MOST), max_size=5), st.integers(MOST + 1, 2**24 - 1))
def test_a_long_frame_is_told_by_the_third_byte_of_its_head(lengths, long):
    good = b"".join(map(frame, lengths))
    guard = FrameGuard(MOST, skip=0)
    for byte in good + long.to_bytes(3, "big")[:2]:
        assert guard.allows(bytes([byte]))
    assert not guard.allows(long.to_bytes(3, "big")[2:])
