"""Claim requests, leases with their tokens, dead letters, claim windows.

>>> parse_token("lease_00000000000000ff"), parse_token(""), lease_token(255)
(255, None, 'lease_00000000000000ff')
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from penstock.protocol.errors import BatchTooLarge, InvalidRequest
from penstock.protocol.limits import TopicLimits, clamp_lease_ms
from penstock.protocol.values import check_text, parse_u64
from penstock.topics.core.record import Record, splice_meta, without_members

DELAY_MS_MAX: Final = 86_400_000
_TOKEN: Final = re.compile(r"lease_([0-9a-fA-F]{1,64})")


class Lease(NamedTuple):
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


def parse_claim(body: dict[str, Any], limits: TopicLimits) -> ClaimRequest:
    """Parse a claim, with defaults and clamps."""
    node = parse_node(body, limits)
    jobs_max = parse_u64("max", body.get("max", 0)) or 1
    wanted_ms = body.get("lease_ms")
    lease_ms = 0 if wanted_ms is None else clamp_lease_ms(parse_u64("lease_ms", wanted_ms))
    return ClaimRequest(node, min(jobs_max, limits.claim_max), lease_ms)


def parse_settle(body: dict[str, Any], limits: TopicLimits) -> Settle:
    """Parse the common part of ack, nack and extend: tokens first, then node, then lengths."""
    tokens = body.get("lease_ids")
    fences = None if tokens is None else tuple(map(parse_token, _array("lease_ids", tokens)))
    node = parse_node(body, limits)
    seqs = tuple(parse_u64("seqs", seq) for seq in _array("seqs", body.get("seqs")))
    if len(seqs) > limits.seqs_max:
        raise BatchTooLarge(
            f"expected at most {limits.seqs_max} seqs, found {len(seqs)}",
            seqs=len(seqs),
            max=limits.seqs_max,
        )
    if fences is not None and len(fences) != len(seqs):
        raise InvalidRequest(
            f"expected as many lease_ids as seqs, found {len(fences)} and {len(seqs)}"
        )
    return Settle(node, seqs, fences)


def parse_delay_ms(body: dict[str, Any]) -> int:
    """How long a returned job is delayed: not at all by default, at most a day."""
    return min(parse_u64("delay_ms", body.get("delay_ms", 0)), DELAY_MS_MAX)


def parse_lease_ms(body: dict[str, Any]) -> int:
    """How long an extended lease lasts from now; required."""
    return clamp_lease_ms(parse_u64("lease_ms", body.get("lease_ms")))


def parse_node(body: dict[str, Any], limits: TopicLimits) -> str:
    """The name of the claiming client: any text, but required."""
    node = body.get("node")
    if not isinstance(node, str) or not node:
        raise InvalidRequest(f"expected a node, found {node!r}")
    check_text("node", node, limits.node_bytes_max)
    return node


def parse_token(token: Any) -> int | None:
    """The fence in a lease token; None for the empty token, which requests no check.

    Any number is valid, in any spelling: a number that no lease has is stale, not malformed.
    """
    if token == "":
        return None
    match = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    if match is None:
        raise InvalidRequest(f"expected a lease token or an empty string, found {token!r}")
    return int(match[1], 16)


def lease_token(fence: int) -> str:
    """The token of a lease."""
    return f"lease_{fence:016x}"


def dead_letter(record: Record, topic: str, seq: int, deliveries: int) -> Record:
    """A job as a dead letter: unchanged, with its origin added to its meta.

    The origin replaces that of an earlier dead letter.
    """
    old = None if record.meta is None else without_members(bytes(record.meta), "$dead_letter_")
    members = (
        f'"$dead_letter_from":"{topic}",'
        f'"$dead_letter_deliveries":"{deliveries}",'
        f'"$dead_letter_src_seq":"{seq}"'
    )
    return replace(record, meta=Raw(splice_meta(old, members.encode())))


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


def _array(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"expected {key} to be an array, found {value!r}")
    return value
