"""What waits for a peer is bounded; a turn is one letter."""

from __future__ import annotations

import msgspec
import pytest

from penstock.cluster.frames import LETTER_BYTES_MAX, BadLetter
from penstock.cluster.outbox import (
    CALL,
    ITEM_BYTES_MAX,
    PART,
    PART_BYTES,
    RAFT,
    WAITING_BYTES_MAX,
    WHOLE_BYTES_MAX,
    Inbox,
    Item,
    Outbox,
)


def test_the_items_of_a_turn_are_one_letter_in_order() -> None:
    box = Outbox()
    box.put(RAFT, b"one")
    box.put(CALL, b"two")
    (letter,) = box.take()
    assert Inbox().items(letter) == [(RAFT, b"one"), (CALL, b"two")]
    assert box.take() == []


def test_over_the_bound_appends_are_dropped_and_heartbeats_are_not() -> None:
    box = Outbox(waiting_bytes_max=1_000)
    assert box.put(RAFT, bytes(500), is_droppable=True)
    assert not box.put(RAFT, bytes(500), is_droppable=True)
    assert box.put(RAFT, bytes(500))
    assert box.dropped == 1


def test_what_the_connection_has_not_sent_counts_too() -> None:
    box = Outbox(waiting_bytes_max=1_000)
    assert not box.put(RAFT, bytes(10), is_droppable=True, unsent_bytes=1_000)
    assert box.put(RAFT, bytes(10), is_droppable=True, unsent_bytes=0)


def test_large_items_go_in_letters_of_their_own_and_none_is_too_long() -> None:
    box = Outbox()
    for _ in range(3):
        assert box.put(RAFT, bytes(ITEM_BYTES_MAX))
    letters = box.take()
    assert len(letters) == 3
    assert max(map(len, letters)) <= LETTER_BYTES_MAX


@pytest.mark.parametrize("letter", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91\x92\xa1x\xc4\x00"])
def test_other_bytes_are_a_bad_letter(letter: bytes) -> None:
    with pytest.raises(BadLetter):
        Inbox().items(letter)


def received(box: Outbox) -> list[Item]:
    """What the peer has of the items after the letters of a turn."""
    inbox, found = Inbox(), list[Item]()
    for letter in box.take():
        assert len(letter) <= LETTER_BYTES_MAX
        found += inbox.items(letter)
    return found


@pytest.mark.parametrize("more", [0, 1, PART_BYTES, 20 << 20])
def test_an_item_larger_than_a_letter_travels_in_parts(more: int) -> None:
    large = bytes(range(256)) * (ITEM_BYTES_MAX // 256) + bytes(more)
    items = [(RAFT, b"before"), (RAFT, large), (CALL, large)]
    box = Outbox()
    for item in items:
        assert box.put(*item)
    assert received(box) == items
    assert box.bytes == 0


def test_heartbeats_overtake_the_parts_of_a_large_entry_and_entries_wait_behind_them() -> None:
    box, inbox = Outbox(), Inbox()
    large = bytes(ITEM_BYTES_MAX + 1)
    assert box.put(RAFT, large, is_droppable=True)
    assert box.put(RAFT, b"next entry", is_droppable=True)
    assert box.put(RAFT, b"beat 1")
    (letter,) = box.take(room_bytes=1)
    assert inbox.items(letter) == [(RAFT, b"beat 1")]  # and the first part
    assert box.bytes > len(large) - 2 * PART_BYTES
    assert box.take(room_bytes=0) == []
    assert box.put(RAFT, b"beat 2")
    (letter,) = box.take(room_bytes=0)
    assert inbox.items(letter) == [(RAFT, b"beat 2")]
    found = [item for letter in box.take() for item in inbox.items(letter)]
    assert found == [(RAFT, large), (RAFT, b"next entry")]
    assert (box.bytes, box.take()) == (0, [])


def test_an_item_beyond_the_bound_of_all_parts_is_dropped() -> None:
    box = Outbox()
    assert not box.put(RAFT, bytes(WHOLE_BYTES_MAX + 1))
    assert box.dropped == 1
    assert box.take() == []


def test_an_entry_larger_than_all_that_may_wait_gets_through_when_little_waits() -> None:
    box = Outbox()
    large = bytes(2 * WAITING_BYTES_MAX)
    assert box.put(RAFT, b"beat")
    assert box.put(RAFT, large, is_droppable=True)
    assert box.longest_bytes > len(large)
    assert not box.put(RAFT, large, is_droppable=True)
    assert not box.put(RAFT, b"entry", is_droppable=True)
    assert box.put(RAFT, b"beat")
    box.take()
    assert box.put(RAFT, b"beat")
    assert box.longest_bytes == 0


def letter_of(*parts: bytes) -> bytes:
    return msgspec.msgpack.encode([(PART, part) for part in parts])


def head(length: int, channel: int = RAFT) -> bytes:
    return bytes([channel]) + length.to_bytes(8, "big")


@pytest.mark.parametrize(
    "letter",
    [
        letter_of(b""),
        letter_of(head(5)),
        letter_of(head(0) + b"x"),
        letter_of(head(2) + b"xyz"),
        letter_of(head(2**64 - 1) + b"x"),
        letter_of(head(101) + b"x"),
        letter_of(head(4) + b"x", head(5) + b"x"),
        letter_of(head(4) + b"x", head(4, CALL) + b"x"),
        letter_of(head(4) + b"xyz", head(4) + b"xy"),
    ],
    ids=[
        "no head", "no content", "empty", "too much", "longest", "too long", "another length",
        "another channel", "too much at the end",
    ],
)  # fmt: skip
def test_parts_that_make_no_item_are_a_bad_letter(letter: bytes) -> None:
    with pytest.raises(BadLetter):
        Inbox(whole_bytes_max=100).items(letter)


def test_an_item_of_exactly_the_bound_is_taken() -> None:
    inbox = Inbox(whole_bytes_max=100)
    assert inbox.items(letter_of(head(100) + bytes(60))) == []
    assert inbox.items(letter_of(head(100) + bytes(40))) == [(RAFT, bytes(100))]
