"""Letters on a connection: whole, unchanged, in order and not too long."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.frames import (
    HEAD_BYTES,
    LETTER_BYTES_MAX,
    MAC_BYTES,
    BadLetter,
    FrameReader,
    FrameWriter,
)
from penstock.kernel.errors import Rejected

KEY = b"k" * 32


@given(
    letters=st.lists(st.binary(max_size=300), max_size=8),
    key=st.sampled_from([b"", KEY]),
    piece=st.integers(1, 50),
)
def test_letters_arrive_as_they_were_sent_however_the_bytes_are_cut(
    letters: list[bytes], key: bytes, piece: int
) -> None:
    writer, reader = FrameWriter(key), FrameReader(key)
    sent = b"".join(writer.frame(letter) for letter in letters)
    taken: list[bytes] = []
    for start in range(0, len(sent), piece):
        taken += reader.feed(sent[start : start + piece])
    assert taken == letters
    assert reader.is_between_letters


@given(key=st.sampled_from([b"", KEY]), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_a_letter(key: bytes, place: int, bit: int) -> None:
    sent = bytearray(FrameWriter(key).frame(b"a letter of a few words"))
    sent[place % len(sent)] ^= 1 << bit
    with suppress(BadLetter):
        assert FrameReader(key).feed(bytes(sent)) == []  # a longer length: the rest is awaited


def test_the_longest_letter_is_taken_and_a_byte_more_is_refused_on_both_sides() -> None:
    longest = bytes(LETTER_BYTES_MAX)
    assert FrameReader().feed(FrameWriter().frame(longest)) == [longest]
    with pytest.raises(Rejected):
        FrameWriter().frame(longest + b"x")
    head = (LETTER_BYTES_MAX + 1).to_bytes(4, "big") + bytes(4)
    with pytest.raises(BadLetter, match="the most is"):
        FrameReader().feed(head)


def test_half_a_letter_waits() -> None:
    sent = FrameWriter().frame(b"hello")
    reader = FrameReader()
    assert reader.feed(sent[: HEAD_BYTES + 2]) == []
    assert not reader.is_between_letters


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (1,)], ids=["swapped", "repeated", "left out"])
def test_a_letter_in_another_place_has_a_wrong_mac(order: tuple[int, ...]) -> None:
    writer = FrameWriter(KEY)
    letters = [writer.frame(b"first"), writer.frame(b"second")]
    reader = FrameReader(KEY)
    with pytest.raises(BadLetter, match="MAC"):
        reader.feed(b"".join(letters[place] for place in order))


def test_a_letter_with_another_key_or_without_one_is_refused() -> None:
    with pytest.raises(BadLetter, match="MAC"):
        FrameReader(KEY).feed(FrameWriter(b"x" * 32).frame(b"hello"))
    with pytest.raises(BadLetter, match="MAC"):
        FrameReader(KEY).feed(FrameWriter().frame(b"hello") + bytes(MAC_BYTES))
