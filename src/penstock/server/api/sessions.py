"""Cookies that stand for an API key, kept as digests, and peers that guess keys. Does no IO.

>>> sessions = Sessions()
>>> grant = Grant(b"digest")
>>> sessions.open("token", grant, 0)
>>> sessions.find(["token"], 1).grant is grant, sessions.find(["guess"], 1)
(True, None)
>>> sessions.find(["token"], SESSION_MS) is None
True
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from penstock.kernel.clock import Clock
from penstock.protocol.errors import Throttled, Unauthorized
from penstock.protocol.session import (
    COOKIE,
    SESSION_MS,
    SESSIONS_MAX,
    WRONG_KEYS_MAX,
    WRONG_KEYS_MS,
)
from penstock.server.api.auth import Grant, KeyRing, bearer
from penstock.server.http.message import Sender

PEERS_MAX: Final = 10_000
"""Peers that sent wrong keys; the one whose first is the oldest is forgotten."""
_TOKENS_MAX: Final = 8
"""Cookies of our name in one request: a browser sends one for each path and domain."""


class SignedIn(NamedTuple):
    """A session: the grant of its key, and until when, on the monotonic clock."""

    digest: bytes
    grant: Grant
    ends_ms: int


class Sessions:
    """The sessions of one server. They end with it: after a restart every user signs in again."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._by_digest: dict[bytes, SignedIn] = {}  # all last equally long: the oldest first
        self._ended: set[bytes] = set()  # since they were last taken

    def __len__(self) -> int:
        return len(self._by_digest)

    def open(self, token: str, grant: Grant, now_ms: int) -> None:
        """Begin a session. If there are too many, the oldest ends.

        To refuse the new one would lock users out for hours after a program that signs in again
        and again; only a holder of a key can make sessions at all.
        """
        self._forget(now_ms)
        while len(self._by_digest) >= self._sessions_max:
            self._end(next(iter(self._by_digest)))
        digest = _digest(token)
        self._by_digest[digest] = SignedIn(digest, grant, now_ms + SESSION_MS)

    def find(self, tokens: Iterable[str], now_ms: int) -> SignedIn | None:
        """The session of the first token that has one."""
        self._forget(now_ms)
        found = (self._by_digest.get(_digest(token)) for token in tokens)
        return next(filter(None, found), None)

    def end(self, session: SignedIn) -> None:
        """End a session. Idempotent."""
        if session.digest in self._by_digest:
            self._end(session.digest)

    def take_ended(self, now_ms: int) -> set[bytes]:
        """The digests of sessions that have ended since the last call, for whatever reason."""
        self._forget(now_ms)
        ended, self._ended = self._ended, set()
        return ended

    def _end(self, digest: bytes) -> None:
        del self._by_digest[digest]
        self._ended.add(digest)

    def _forget(self, now_ms: int) -> None:
        while self._by_digest:
            oldest = next(iter(self._by_digest.values()))
            if oldest.ends_ms > now_ms:
                break
            self._end(oldest.digest)


class WrongKeys:
    """Peers that sign in with wrong keys: after ten in a minute, no key of theirs is looked at."""

    def __init__(self, peers_max: int = PEERS_MAX) -> None:
        self._peers_max = peers_max
        self._times: dict[str, deque[int]] = {}

    def check(self, peer: str, now_ms: int) -> None:
        """Refuse a peer that has sent too many, right or wrong as its next key may be."""
        times = self._times.get(peer)
        if times is None or len(times) < WRONG_KEYS_MAX:
            return
        wait_ms = times[0] + WRONG_KEYS_MS - now_ms
        if wait_ms > 0:
            raise Throttled(
                f"{WRONG_KEYS_MAX} wrong API keys came from this address within a minute: "
                "try again later",
                retry_after_ms=wait_ms,
            )

    def count(self, peer: str, now_ms: int) -> None:
        """A peer sent a wrong key."""
        times = self._times.get(peer)
        if times is None:
            if len(self._times) >= self._peers_max:
                del self._times[next(iter(self._times))]
            times = self._times[peer] = deque(maxlen=WRONG_KEYS_MAX)
        times.append(now_ms)


class Authenticator:
    """Which grant a request has: by its API key, or by its cookie."""

    def __init__(self, keys: KeyRing | None, clock: Clock) -> None:
        self.keys = keys
        self.sessions = Sessions()
        self._wrong_keys = WrongKeys()
        self._clock = clock

    def grant_of(
        self, headers: Mapping[str, str], sender: Sender, key: str | None = None
    ) -> Grant | None:
        """The grant of a request, or `Unauthorized`; None if the server has no keys.

        `key` is one that came elsewhere than in the Authorization header. A key counts before a
        cookie.
        """
        if self.keys is None:
            return None
        key = bearer(headers) or key
        if key is None:
            if sender.key_digest:
                return self.keys.of_digest(sender.key_digest)
            session = self.session_of(headers, sender)
            if session is not None:
                return session.grant
        return self.keys.identify(key)

    def key_digest(self, headers: Mapping[str, str], sender: Sender) -> bytes:
        """What a peer that a request is passed on to is told: it does not know this node's cookies.

        Empty if the request has no session here.
        """
        session = self.session_of(headers, sender)
        return session.grant.digest if session is not None else b""

    def session_of(self, headers: Mapping[str, str], sender: Sender) -> SignedIn | None:
        """The session of a request's cookie, which counts only for pages of this server."""
        if "cookie" not in headers or not sender.is_same_origin:
            return None
        return self.sessions.find(cookies(headers), self._clock.monotonic_ms())

    def ended_sessions(self) -> set[bytes]:
        """The digests of sessions that have ended since the last call."""
        return self.sessions.take_ended(self._clock.monotonic_ms())

    def sign_in(self, headers: Mapping[str, str], peer: str, token: str) -> SignedIn | None:
        """Begin a session with the key of a request; None if the server has no keys."""
        if self.keys is None:
            return None
        now_ms = self._clock.monotonic_ms()
        self._wrong_keys.check(peer, now_ms)
        key = bearer(headers)
        try:
            grant = self.keys.identify(key)
        except Unauthorized:
            if key is not None:
                self._wrong_keys.count(peer, now_ms)
            raise
        self.sessions.open(token, grant, now_ms)
        return self.sessions.find([token], now_ms)


def cookies(headers: Mapping[str, str]) -> list[str]:
    """The values of our cookie in a request.

    >>> cookies({"cookie": 'theme=dark; penstock=a; penstock="b"; xpenstock=c'})
    ['a', 'b']
    """
    pairs = (each.partition("=") for each in headers.get("cookie", "").split(";"))
    found = [value.strip().strip('"') for name, _, value in pairs if name.strip() == COOKIE]
    return found[:_TOKENS_MAX]


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
