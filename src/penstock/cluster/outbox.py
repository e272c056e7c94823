"""What waits to go to one peer: bounded, and one letter for each turn of the loop.

An item is a channel and bytes. Items that the sender makes again when they are lost, such as
appends, are dropped while too much waits; heartbeats and votes are small and never are. An item
that is too large for a letter travels in parts, one after the other, and is whole again on the
other side: an entry of the log may be larger than a letter, and a peer has to get it. Heartbeats
overtake the parts, so that no election comes meanwhile; entries wait behind them, as they follow.

>>> box = Outbox()
>>> box.put(RAFT, b"beat"), Inbox().items(box.take()[0])
(True, [(1, b'beat')])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

import msgspec

from penstock.cluster.frames import BadLetter
from penstock.kernel.units import KIB, MIB

RAFT: Final = 1
CALL: Final = 2
ANSWER: Final = 3
SNAPSHOT: Final = 4
PART: Final = 5
"""A part of an item: the channel of the item, its whole length, and the next bytes of it."""

WAITING_BYTES_MAX: Final = 32 * MIB
ITEM_BYTES_MAX: Final = 16 * MIB - 64 * KIB
"""What goes in one piece: a letter has 16 MiB at most, with the heads of its items."""
PART_BYTES: Final = 4 * MIB
WHOLE_BYTES_MAX: Final = 256 * MIB
"""The bytes of an item that goes in parts: four times the largest request body that is set by
default, which may become one entry of the log."""
_ITEM_HEAD_BYTES: Final = 16
_PART_HEAD: Final = Struct(">BQ")

Item = tuple[int, bytes]


class Outbox:
    """The items of this turn. `unsent_bytes` is what the connection still has to send."""

    def __init__(self, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self._waiting_bytes_max = waiting_bytes_max
        self._items: list[Item] = []
        self._behind: deque[Item] = deque()  # parts, and the entries that follow them
        self.bytes = 0
        self.dropped = 0
        self.longest_bytes = 0
        """The largest item in parts that may still be on its way to the peer."""

    def put(
        self, channel: int, payload: bytes, *, is_droppable: bool = False, unsent_bytes: int = 0
    ) -> bool:
        """Add an item; False if it was dropped because too much waits or it is too large.

        A large item counts as half of what may wait: one that is larger than all of it must get
        through as well, when little else waits.
        """
        size, most = len(payload) + _ITEM_HEAD_BYTES, self._waiting_bytes_max
        waiting = unsent_bytes + self.bytes
        is_full = waiting + min(size, most // 2) > most
        if (is_droppable and is_full) or len(payload) > WHOLE_BYTES_MAX:
            self.dropped += 1
            return False
        if not waiting:
            self.longest_bytes = 0
        if len(payload) > ITEM_BYTES_MAX:
            self.longest_bytes = max(self.longest_bytes, size)
            parts = list(_in_parts(channel, payload))
            self._behind += parts
            size = sum(map(_item_bytes, parts))
        elif is_droppable and self._behind:
            self._behind.append((channel, payload))
        else:
            self._items.append((channel, payload))
        self.bytes += size
        return True

    def take(self, room_bytes: int = WHOLE_BYTES_MAX) -> list[bytes]:
        """The letters to send now. Parts, and what is behind them, begin only while there is room.

        As long as `bytes` is not 0 after this, the rest is to be taken soon.
        """
        items, self._items = self._items, []
        while self._behind and room_bytes > 0:
            items.append(self._behind.popleft())
            room_bytes -= _item_bytes(items[-1])
        self.bytes -= sum(map(_item_bytes, items))
        return _letters(items)


class Inbox:
    """Takes the items out of the letters of one connection, in order."""

    def __init__(self, whole_bytes_max: int = WHOLE_BYTES_MAX) -> None:
        self._whole_bytes_max = whole_bytes_max
        self._parts: list[bytes] = []
        self._awaited = (0, 0)  # channel and length of the item whose parts come in
        self._missing = 0

    def items(self, letter: bytes) -> list[Item]:
        """The items that are whole with this letter, or `BadLetter`."""
        try:
            found = _DECODER.decode(letter)
        except msgspec.MsgspecError as error:
            raise BadLetter(f"malformed letter: {error}") from error
        items: list[Item] = []
        for item in found:
            if item[0] != PART:
                items.append(item)
            elif (whole := self._join(item[1])) is not None:
                items.append(whole)
        return items

    def _join(self, part: bytes) -> Item | None:
        """Take a part; the item, if this was the last one of it."""
        if len(part) <= _PART_HEAD.size:
            raise BadLetter("a part of an item without content")
        awaited = channel, length = _PART_HEAD.unpack_from(part)
        if not self._missing:
            if length > self._whole_bytes_max:
                raise BadLetter(f"an item of {length} bytes: the most is {self._whole_bytes_max}")
            self._awaited, self._missing = awaited, length
        count = len(part) - _PART_HEAD.size
        if awaited != self._awaited or count > self._missing:
            raise BadLetter("a part that does not belong to the item under way")
        self._parts.append(part)
        self._missing -= count
        if self._missing:
            return None
        parts, self._parts = self._parts, []
        return channel, b"".join([memoryview(each)[_PART_HEAD.size :] for each in parts])


def _item_bytes(item: Item) -> int:
    return len(item[1]) + _ITEM_HEAD_BYTES


def _letters(items: Sequence[Item]) -> list[bytes]:
    """One letter, or more where the items are too large for one."""
    letters: list[bytes] = []
    batch: list[Item] = []
    size = 0
    for item in items:
        item_bytes = _item_bytes(item)
        if batch and size + item_bytes > ITEM_BYTES_MAX:
            letters.append(_ENCODER.encode(batch))
            batch, size = [], 0
        batch.append(item)
        size += item_bytes
    if batch:
        letters.append(_ENCODER.encode(batch))
    return letters


def _in_parts(channel: int, payload: bytes) -> Iterator[Item]:
    head, view = _PART_HEAD.pack(channel, len(payload)), memoryview(payload)
    for start in range(0, len(payload), PART_BYTES):
        yield PART, head + view[start : start + PART_BYTES]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Item])
