"""Claim requests, leases with their tokens, claim windows.

>>> parse_token("lease_00000000000000ff"), parse_token(""), lease_token(255)
(255, None, 'lease_00000000000000ff')
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from penstock.protocol.errors import InvalidRequest

_TOKEN: Final = re.compile(r"lease_([0-9a-fA-F]{1,64})")


class JobLease(NamedTuple):
    """A job held by a client. Ends when the time is past `deadline_ms`.

    `request` is the index of the request it answers among those served together.
    """

    seq: int
    node: str
    fence: int
    deadline_ms: int
    deliveries: int
    request: int = 0


class ClaimRequest(NamedTuple):
    """A request for up to `jobs_max` jobs; a `lease_ms` of 0 means the topic's default."""

    node: str
    jobs_max: int = 1
    lease_ms: int = 0


class Settle(NamedTuple):
    """A request about held jobs, each with the fence of its lease or None for no check."""

    node: str
    seqs: tuple[int, ...]
    fences: tuple[int | None, ...] | None = None

    def fenced(self) -> Iterator[tuple[int, int | None]]:
        """Each seq with its fence."""
        return zip(self.seqs, self.fences or (None,) * len(self.seqs), strict=True)


def parse_token(token: str) -> int | None:
    """The fence in a lease token; None for the empty token, which requests no check.

    Any number is valid, in any spelling: a number that no lease has is stale, not malformed.
    """
    if token == "":
        return None
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidRequest(
            f"malformed lease token {token!r}: send the one that the claim returned"
        )
    return int(match[1], 16)


def lease_token(fence: int) -> str:
    """The token of a lease."""
    return f"lease_{fence:016x}"


class ClaimWindow:
    """Collects the claims of one queue for a short time, so that they are served round robin."""

    def __init__(self) -> None:
        self._requests: list[ClaimRequest] = []
        self.closes_ms: int | None = None

    def join(self, request: ClaimRequest, now_ms: int, jitter_ms: int) -> int:
        """Add a request; the first one opens the window. Returns its index among the requests."""
        if self.closes_ms is None:
            self.closes_ms = now_ms + jitter_ms
        self._requests.append(request)
        return len(self._requests) - 1

    def close(self, now_ms: int) -> Sequence[ClaimRequest]:
        """The requests to serve now, in order of arrival; empty while the window is open."""
        if self.closes_ms is None or now_ms < self.closes_ms:
            return ()
        requests, self._requests, self.closes_ms = self._requests, [], None
        return requests
