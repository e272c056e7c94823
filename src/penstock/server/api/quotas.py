"""Counters that limit the number of open streams and of requests in progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.protocol.errors import Throttled
from penstock.server.api.auth import Grant

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
        f"expected at most {most} at a time, found no room for another",
        retry_after_ms=RETRY_AFTER_MS,
        limit=limit,
    )
