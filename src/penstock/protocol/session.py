"""Signing in: a cookie in place of an API key, for browsers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

COOKIE: Final = "penstock"
SESSION_MS: Final = 12 * 3_600_000
SESSIONS_MAX: Final = 1_000
WRONG_KEYS_MAX: Final = 10
"""Wrong keys that one peer may send in a minute."""
WRONG_KEYS_MS: Final = 60_000


class Session(Struct, frozen=True, kw_only=True):
    """What the caller may do here.

    `signed_in` is by a cookie; `needs_key` tells whether the server has API keys at all. Without
    them everything is allowed. Empty `prefixes`: every name.
    """

    signed_in: bool
    needs_key: bool
    scopes: list[str]
    prefixes: list[str]
    key: str | None = None
    """A short digest of the key, as other answers name it."""
    expires: int | None = None
    performance: dict[str, float] = {}


class SessionEnded(Struct, frozen=True, kw_only=True):
    """Whether there was a session."""

    ended: bool
    performance: dict[str, float] = {}
