"""Access control: keys with scopes and topic name prefixes, kept as digests only, and their quotas.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import parse_qsl

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import Forbidden, Throttled, Unauthorized
from penstock.protocol.routes import ADMIN, DELETE, EVERYTHING, READ, WRITE, scope_names
from penstock.protocol.values import RESERVED_PREFIX, is_reserved

SUBPROTOCOL: Final = "penstock.v0"
LABEL_DIGITS: Final = 8
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

    @property
    def label(self) -> str:
        """What answers call the key: a part of its digest, which does not lead to the key."""
        return self.digest.hex()[:LABEL_DIGITS]

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
                f"the API key needs the scope {scope_names(scopes)}; "
                f"it has {scope_names(self.scopes) or 'none'}"
            )

    def check_name(self, name: str, **detail: Any) -> None:
        """Refuse a name that the key may not access."""
        if not self.reaches(name):
            raise Forbidden(
                f"the API key reaches only names that begin with {', '.join(self.prefixes)}, "
                f"not {name!r}",
                **detail,
            )

    def check_change(self, name: str) -> None:
        """Refuse to change a topic of the server itself, unless the key is one of its parts.

        Such a key names `penstock.` in a prefix, or has the scope admin. Otherwise every program
        that may write at all could report parts that do not exist, or hold the pipeline.
        """
        if not is_reserved(name) or self.may(ADMIN) or any(map(is_reserved, self.prefixes)):
            return
        raise Forbidden(
            f"{name!r} is written by the server and its parts only: use an API key with the prefix "
            f"{RESERVED_PREFIX!r} or the scope admin",
            topic=name,
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

    def of_digest(self, digest: bytes) -> Grant:
        """The grant of a key whose digest a peer has told, or `Unauthorized`."""
        for grant in self._grants:
            if compare_digest(grant.digest, digest):
                return grant
        raise Unauthorized(
            "this node does not have the API key that was used to sign in at the node which passed "
            "this on: give all nodes of a cluster the same keys"
        )

    def identify(self, key: str | None) -> Grant:
        """The grant of a presented key, or `Unauthorized`."""
        grant = None if key is None else self.find(key)
        if grant is None:
            found = "the API key is missing" if key is None else "the API key is not known"
            raise Unauthorized(f"{found}: send a known one as a bearer token")
        return grant


def parse_keys(text: str) -> KeyRing | None:
    """Read `key[:scopes[:prefixes]]`, joined by commas; None if there are no keys."""
    grants: list[Grant] = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, _, rest = item.partition(":")
        scopes, _, prefixes = rest.partition(":")
        if not key:
            raise Rejected("an API key is missing before its scopes: write key:scopes:prefixes")
        digest = sha256(key.encode("utf-8", "surrogateescape")).digest()
        if any(grant.digest == digest for grant in grants):
            raise Rejected("an API key is listed twice: join its scopes with +")
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
            raise Rejected(f"unknown scope {word.strip()!r}: use {', '.join(_SCOPES)}, joined by +")
        scopes |= scope
    return scopes


RETRY_AFTER_MS = 1_000


@dataclass(frozen=True, slots=True)
class CapLimits:
    """How many may be open at a time; 0 means no limit."""

    streams_max: int = 10_000
    streams_per_key_max: int = 1_000
    inflight_per_key_max: int = 1_000


class Caps:
    """Streams in total and per key, and requests per key."""

    def __init__(self, limits: CapLimits | None = None) -> None:
        self._limits = limits or CapLimits()
        self.streams = 0
        self._streams_of: dict[bytes, int] = {}
        self._inflight_of: dict[bytes, int] = {}

    def open_stream(self, grant: Grant | None) -> None:
        """Count a stream, or refuse it and count nothing.

        Without keys only the total is limited.
        """
        limits = self._limits
        if limits.streams_max and self.streams >= limits.streams_max:
            raise _full("max_sse_connections", limits.streams_max)
        if grant is not None:
            open_now = self._streams_of.get(grant.digest, 0)
            if limits.streams_per_key_max and open_now >= limits.streams_per_key_max:
                raise _full("max_sse_connections", limits.streams_per_key_max)
            self._streams_of[grant.digest] = open_now + 1
        self.streams += 1

    @contextmanager
    def opening(self, grant: Grant | None) -> Iterator[None]:
        """Count a stream that is about to begin, and uncount it if it fails to begin."""
        self.open_stream(grant)
        try:
            yield
        except BaseException:
            self.close_stream(grant)
            raise

    def close_stream(self, grant: Grant | None) -> None:
        """A counted stream ended."""
        self.streams -= 1
        if grant is not None:
            _less(self._streams_of, grant.digest)

    def enter(self, grant: Grant) -> None:
        """Count a request of a key, or refuse it and count nothing."""
        inflight = self._inflight_of.get(grant.digest, 0)
        if self._limits.inflight_per_key_max and inflight >= self._limits.inflight_per_key_max:
            raise _full("max_inflight_per_key", self._limits.inflight_per_key_max)
        self._inflight_of[grant.digest] = inflight + 1

    def leave(self, grant: Grant) -> None:
        """A counted request was answered, or its client disconnected."""
        _less(self._inflight_of, grant.digest)

    def inflight(self, grant: Grant) -> int:
        """How many requests of a key are in progress."""
        return self._inflight_of.get(grant.digest, 0)


def _less(counts: dict[bytes, int], digest: bytes) -> None:
    """Decrement a count; zero entries are removed to save memory."""
    left = counts.get(digest, 0) - 1
    if left > 0:
        counts[digest] = left
    else:
        counts.pop(digest, None)


def _full(limit: str, most: int) -> Throttled:
    return Throttled(
        f"all {most} allowed at a time are in use",
        retry_after_ms=RETRY_AFTER_MS,
        limit=limit,
    )
