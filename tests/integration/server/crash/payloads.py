"""Payloads that are told apart whatever becomes of them, and in the oddest of writings."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

TAGS = ("a", "ab", "a:1", "b", "b:2", None)
NODES = ("n1", "n2", None)


class Wanted(NamedTuple):
    """A record as it was sent: data and meta as bytes that must come back as they are."""

    data: bytes
    tag: str | None
    node: str | None
    meta: bytes | None

    @property
    def size_bytes(self) -> int:
        """As a cap on bytes counts it: all data and meta here are compact JSON."""
        return len(self.data) + len(self.meta or b"")

    def encoded(self) -> bytes:
        parts = [b'{"data":', self.data]
        if self.tag is not None:
            parts += [b',"tag":"', self.tag.encode(), b'"']
        if self.node is not None:
            parts += [b',"node":"', self.node.encode(), b'"']
        if self.meta is not None:
            parts += [b',"meta":', self.meta]
        return b"".join([*parts, b"}"])


class Payloads:
    """Makes records; no two have the same data."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._made = 0

    def one(self, random: Random) -> Wanted:
        self._made += 1
        name = f"{self._owner}.{self._made}"
        fill = "x" * random.choice((0, 3, 20, 20, 200, 2_000))
        data = random.choice(
            (
                f'"{name}{fill}"',
                f'{{"id":"{name}","n":1.0e2,"fill":"{fill}"}}',
                f'["{name}",-0,1E+2,"\\u00e9\\ud83d\\ude00é","{fill}",null]',
            )
        ).encode()
        meta = random.choice((None, None, b"{}", b'{"k":1.50,"k2":[true,"\\/"]}'))
        return Wanted(data, random.choice(TAGS), random.choice(NODES), meta)

    def some(self, random: Random) -> list[Wanted]:
        """One record nearly always, sometimes many."""
        return [self.one(random) for _ in range(random.choice((1, 1, 1, 2, 7, 60)))]


def write_body(records: list[Wanted], key: str | None = None, **more: bytes) -> bytes:
    """The body of a write."""
    parts = [b'{"records":[', b",".join(record.encoded() for record in records), b"]"]
    if key is not None:
        parts += [b',"idempotency_key":"', key.encode(), b'"']
    for name, value in more.items():
        parts += [b',"', name.encode(), b'":', value]
    return b"".join([*parts, b"}"])
