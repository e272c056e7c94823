"""Letters as bytes on a connection: a length, a checksum, the letter, and a MAC if there is a key.

The MAC covers the letter and its number on this connection, so that a letter that was changed,
repeated, left out or taken from another connection is not accepted.

>>> reader = FrameReader()
>>> reader.feed(FrameWriter().frame(b"hello")[:9]), reader.feed(FrameWriter().frame(b"hello")[9:])
([], [b'hello'])
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import Final
from zlib import crc32

from penstock.kernel.errors import Corrupt, Rejected
from penstock.kernel.units import MIB

LETTER_BYTES_MAX: Final = 16 * MIB
HEAD_BYTES: Final = 8
MAC_BYTES: Final = 16


class BadLetter(Corrupt):
    """Bytes of a peer that are not a letter: the connection must be closed."""

    code = "bad_letter"


class FrameWriter:
    """Frames the letters of one direction of a connection. Without a key they have no MAC."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self._count = 0

    def frame(self, letter: bytes) -> bytes:
        """A letter with its head, ready to send."""
        if len(letter) > LETTER_BYTES_MAX:
            raise Rejected(f"a letter of {len(letter)} bytes: the most is {LETTER_BYTES_MAX}")
        mac = _mac(self._key, self._count, letter) if self._key else b""
        self._count += 1
        return b"".join((_head(letter), letter, mac))


class FrameReader:
    """Takes letters out of what arrives in one direction of a connection."""

    def __init__(self, key: bytes = b"", letter_bytes_max: int = LETTER_BYTES_MAX) -> None:
        self._key = key
        self._letter_bytes_max = letter_bytes_max
        self._count = 0
        self._waiting = bytearray()

    @property
    def is_between_letters(self) -> bool:
        """Whether nothing of a letter has arrived that is not whole yet."""
        return not self._waiting

    def feed(self, data: bytes) -> list[bytes]:
        """The letters that are whole now; `BadLetter` if one is damaged, too long or not theirs."""
        waiting = self._waiting
        waiting += data
        letters: list[bytes] = []
        start = 0
        mac_bytes = MAC_BYTES if self._key else 0
        while len(waiting) - start >= HEAD_BYTES:
            size = int.from_bytes(waiting[start : start + 4], "big")
            if size > self._letter_bytes_max:
                raise BadLetter(f"a letter of {size} bytes: the most is {self._letter_bytes_max}")
            begin = start + HEAD_BYTES
            end = begin + size
            if len(waiting) < end + mac_bytes:
                break
            letter = bytes(waiting[begin:end])
            self._check(bytes(waiting[start:begin]), letter, bytes(waiting[end : end + mac_bytes]))
            letters.append(letter)
            start = end + mac_bytes
        del waiting[:start]
        return letters

    def _check(self, head: bytes, letter: bytes, mac: bytes) -> None:
        if head != _head(letter):
            raise BadLetter("the checksum of a letter does not match its bytes")
        if self._key and not hmac.compare_digest(mac, _mac(self._key, self._count, letter)):
            raise BadLetter("the MAC of a letter is wrong: it is not of the peer that was let in")
        self._count += 1


def _head(letter: bytes) -> bytes:
    return len(letter).to_bytes(4, "big") + crc32(letter).to_bytes(4, "big")


def _mac(key: bytes, count: int, letter: bytes) -> bytes:
    digest = blake2b(count.to_bytes(8, "big"), key=key, digest_size=MAC_BYTES)
    digest.update(letter)
    return digest.digest()
