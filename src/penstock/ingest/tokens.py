"""Device authentication: tokens, kept as digests only, compared in constant time.

>>> tokens = parse_tokens("# fleet\\nmeter-7 secret\\n* sha256:" + sha256(b"fleet").hexdigest())
>>> tokens.allows("meter-7", b"secret"), tokens.allows("meter-7", b"fleet")
(True, True)
>>> tokens.allows("meter-8", b"secret"), tokens.allows("meter-8", b"fleet")
(False, True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from penstock.ingest.frames import TOKEN_BYTES_MAX, is_device_id
from penstock.kernel.errors import Rejected

ANY_DEVICE: Final = "*"
_DIGEST_PREFIX: Final = "sha256:"
_NOBODY: Final = bytes(32)


class DeviceTokens:
    """The token of each device, and tokens that every device may use."""

    def __init__(self, by_device: Mapping[str, bytes], shared: Sequence[bytes] = ()) -> None:
        self._by_device = dict(by_device)
        self._shared = tuple(shared)

    def __len__(self) -> int:
        return len(self._by_device) + len(self._shared)

    def allows(self, device: str, token: bytes) -> bool:
        """Whether a device may send. Takes as long for an unknown device."""
        digest = sha256(token).digest()
        found = compare_digest(self._by_device.get(device, _NOBODY), digest)
        for shared in self._shared:
            found |= compare_digest(shared, digest)
        return found


def parse_tokens(text: str) -> DeviceTokens:
    """Read lines of `device token`; `*` stands for any device, `sha256:` and hex for a digest."""
    by_device: dict[str, bytes] = {}
    shared: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not (words[0] == ANY_DEVICE or is_device_id(words[0])):
            raise Rejected(f"line {number} must be a device and its token, not {len(words)} words")
        device, digest = words[0], _digest(number, words[1])
        if device == ANY_DEVICE:
            shared.append(digest)
        elif device in by_device:
            raise Rejected(f"line {number}: a second token of {device}")
        else:
            by_device[device] = digest
    if not by_device and not shared:
        raise Rejected("no device tokens: write a line for each device, or one for `*`")
    return DeviceTokens(by_device, shared)


def _digest(number: int, token: str) -> bytes:
    if not token.startswith(_DIGEST_PREFIX):
        if len(token.encode()) > TOKEN_BYTES_MAX:
            raise Rejected(f"line {number}: the token is longer than {TOKEN_BYTES_MAX} bytes")
        return sha256(token.encode()).digest()
    try:
        digest = bytes.fromhex(token.removeprefix(_DIGEST_PREFIX))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise Rejected(f"line {number}: expected 64 hex digits after {_DIGEST_PREFIX}")
    return digest
