"""Access control: keys with scopes and topic name prefixes, kept as digests only.

>>> ring = parse_keys("s3cret:read+write:app.|web.,root")
>>> grant = ring.find("s3cret")
>>> grant.may(READ | WRITE), grant.may(DELETE), grant.reaches("app.x"), grant.reaches("x")
(True, False, True, False)
>>> ring.find("guess") is None
True
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import parse_qsl

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import Forbidden, Unauthorized
from penstock.protocol.routes import ADMIN, DELETE, EVERYTHING, READ, WRITE, scope_names

SUBPROTOCOL: Final = "penstock.v0"
_BEARER_PROTOCOL: Final = "bearer."
_SCOPES: Final = {
    "read": READ, "r": READ, "write": WRITE, "w": WRITE, "rw": READ | WRITE,
    "delete": DELETE, "del": DELETE, "d": DELETE, "admin": ADMIN, "a": ADMIN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grant:
    """What one key may do. Empty `prefixes` means every topic."""

    digest: bytes = field(repr=False)
    scopes: int = EVERYTHING
    prefixes: tuple[str, ...] = ()

    def may(self, scopes: int) -> bool:
        """Whether the key has all of these scopes."""
        return self.scopes & scopes == scopes

    def reaches(self, name: str) -> bool:
        """Whether the key may access a name."""
        return not self.prefixes or name.startswith(self.prefixes)

    def check(self, scopes: int) -> None:
        """Refuse a call that needs more scopes than the key has."""
        if self.scopes & scopes != scopes:
            raise Forbidden(
                f"expected a key with scope {scope_names(scopes)}, "
                f"found one with {scope_names(self.scopes) or 'none'}"
            )

    def check_name(self, name: str, **detail: Any) -> None:
        """Refuse a name that the key may not access."""
        if not self.reaches(name):
            raise Forbidden(
                f"expected a name that begins with one of {', '.join(self.prefixes)}, "
                f"found {name!r}",
                **detail,
            )

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration that routes records to a topic which the key may not access."""
        dest = config.get("dead_letter")
        if isinstance(dest, str):
            self.check_name(dest, topic=dest)


class KeyRing:
    """Every key of the server. A lookup compares with all of them, to take constant time."""

    def __init__(self, grants: list[Grant]) -> None:
        self._grants = grants

    def __len__(self) -> int:
        return len(self._grants)

    def find(self, key: str) -> Grant | None:
        """The grant of a presented key. Takes equally long for any key, known or not."""
        digest = sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for grant in self._grants:
            if compare_digest(grant.digest, digest):
                found = grant
        return found

    def identify(self, key: str | None) -> Grant:
        """The grant of a presented key, or `Unauthorized`."""
        grant = None if key is None else self.find(key)
        if grant is None:
            found = "none" if key is None else "an unknown one"
            raise Unauthorized(f"expected a known API key as a bearer token, found {found}")
        return grant


def parse_keys(text: str) -> KeyRing | None:
    """Read `key[:scopes[:prefixes]]`, joined by commas; None if there are no keys."""
    grants: list[Grant] = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, _, rest = item.partition(":")
        scopes, _, prefixes = rest.partition(":")
        if not key:
            raise Rejected("expected a key before the scopes, found none")
        digest = sha256(key.encode("utf-8", "surrogateescape")).digest()
        if any(grant.digest == digest for grant in grants):
            raise Rejected("expected every key once, found one twice")
        allowed = tuple(filter(None, (prefix.strip() for prefix in prefixes.split("|"))))
        grants.append(Grant(digest, _parse_scopes(scopes), allowed))
    return KeyRing(grants) if grants else None


def bearer(headers: Mapping[str, str]) -> str | None:
    """The key in the Authorization header."""
    value = headers.get("authorization")
    if value is None:
        return None
    scheme, _, key = value.strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def query_token(query: str) -> str | None:
    """The key in `?token=`, for the routes that browsers open without headers."""
    if "token" not in query:
        return None
    pairs = parse_qsl(query, keep_blank_values=True)
    return next((value for name, value in pairs if name == "token"), None)


def offered_protocols(headers: Mapping[str, str]) -> list[str]:
    """The WebSocket subprotocols that a client offers."""
    return [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]


def protocol_token(offered: list[str]) -> str | None:
    """The key in the pair `penstock.v0, bearer.<base64url key>`."""
    for name in offered:
        if name.startswith(_BEARER_PROTOCOL):
            coded = name[len(_BEARER_PROTOCOL) :]
            try:
                return urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
            except (ValueError, binascii.Error):
                return None
    return None


def _parse_scopes(text: str) -> int:
    if not text.strip():
        return EVERYTHING
    scopes = 0
    for word in text.split("+"):
        scope = _SCOPES.get(word.strip().lower())
        if scope is None:
            raise Rejected(
                f"expected scopes of {', '.join(_SCOPES)} joined by +, found {word.strip()!r}"
            )
        scopes |= scope
    return scopes
