"""Blocks of cold records: runs of seqs whose records are in a file and are loaded on demand.

Memory keeps a block's location in its file, and its tags. Whether a record still exists is decided
by the topic, not by the file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.kernel.units import KIB
from penstock.topics.core.record import Record

BLOCK_RECORDS_MAX: Final = 1_024
BLOCK_BYTES_MAX: Final = 256 * KIB
_NO_TAG: Final = 0


class Tags(NamedTuple):
    """The tags of a block's records: each text once, and an index per record (0: no tag)."""

    texts: tuple[str, ...]
    codes: array[int]

    @classmethod
    def of(cls, records: Sequence[Record | None]) -> Tags | None:
        """The tags of these records; None if no record has one."""
        known: dict[str, int] = {}
        codes = array("H")
        for record in records:
            tag = None if record is None else record.tag
            codes.append(_NO_TAG if tag is None else known.setdefault(tag, len(known) + 1))
        return cls(tuple(known), codes) if known else None

    def matching(self, matches: Callable[[str | None], bool]) -> list[int]:
        """The positions of the records whose tag matches, in order."""
        wanted = {code for code, text in enumerate(self.texts, 1) if matches(text)}
        if not wanted:
            return []
        return [place for place, code in enumerate(self.codes) if code in wanted]


class Spill(Protocol):
    """A file that holds records for which memory has no room."""

    def read(self, count: int, offset: int) -> bytes:
        """Read `count` bytes from `offset`."""
        ...


class Block:
    """A run of seqs whose records are in a file; `records` holds them while they are loaded.

    `touched` tells the cache of loaded blocks that this one was used since its last check. `spill`
    is the file itself where it has no name: it exists as long as one of its blocks does.
    """

    __slots__ = (
        "file",
        "first_seq",
        "last_seq",
        "length",
        "offset",
        "pins",
        "records",
        "spill",
        "tags",
        "touched",
    )

    def __init__(
        self,
        file: str,
        offset: int,
        length: int,
        *,
        first_seq: int,
        last_seq: int,
        tags: Tags | None = None,
        spill: Spill | None = None,
    ) -> None:
        self.file = file
        self.offset = offset
        self.length = length
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.tags = tags
        self.spill = spill
        self.records: list[Record | None] | None = None
        self.pins = 0
        self.touched = False

    def __repr__(self) -> str:
        return f"Block({self.file}, seqs {self.first_seq} to {self.last_seq})"


class NotLoaded(Exception):
    """A requested record's block is not in memory: load it, then retry."""

    def __init__(self, block: Block) -> None:
        super().__init__(f"the records of {block} are not in memory")
        self.block = block


class Run(NamedTuple):
    """Consecutive slots of a topic: times, sizes (0: empty slot), and a record or None for each."""

    first_seq: int
    times: array[int]
    sizes: array[int]
    records: list[Record | None]
