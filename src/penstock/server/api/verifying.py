"""Whether all members have the same partition: captured at one index of its log, then compared.

The leader holds back what it has not decided until every member has captured the index at which the
partition stands; then all hash what they captured, and the leader compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.kernel.errors import PenstockError, Unavailable
from penstock.protocol.cluster_answers import (
    DigestAnswer,
    MemberComparison,
    PartitionComparison,
    PartitionDigest,
)
from penstock.protocol.errors import StateMoved
from penstock.protocol.requests import DigestBody
from penstock.server.api.call import Call
from penstock.server.api.forwarding import Cluster
from penstock.server.http.message import Request

ITSELF: Final = "the partition itself"
"""Its routers, epoch, term and members, which belong to none of its topics."""
SHOWN_MAX: Final = 20
"""This many topics that differ are named for each member."""
CAPTURE_S: Final = 5.0
TRIES: Final = 3
_PATH: Final = "/v0/cluster/digest"


class Problem(NamedTuple):
    """Why a member is not compared; `is_away`: it did not answer at all."""

    text: str
    is_away: bool = False


Found = PartitionDigest | Problem


async def verify(call: Call, cluster: Cluster, partition: int) -> PartitionComparison:
    """Compare a partition that this node leads on all members."""
    for left in reversed(range(TRIES)):
        try:
            return await _verify(call, cluster, partition)
        except StateMoved:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _verify(call: Call, cluster: Cluster, partition: int) -> PartitionComparison:
    engine = call.context.engine
    names = dict(cluster.members())
    others = [member for member in names if member != cluster.own]
    asking = _Asking(call, cluster, partition)
    async with list(engine.writers)[partition].exclusive():
        index = await engine.digests.capture(partition)
        captured = await asyncio.gather(*(asking.capture(each, index) for each in others))
    own = await engine.digests.take(partition, index)
    found: dict[str, Found] = {names[cluster.own]: own}
    taken = await asyncio.gather(
        *(asking.take(each, index, problem) for each, problem in zip(others, captured, strict=True))
    )
    found |= {names[each]: digest for each, digest in zip(others, taken, strict=True)}
    return compared(own, found)


class _Asking:
    """Asks other members for their digest of a partition."""

    def __init__(self, call: Call, cluster: Cluster, partition: int) -> None:
        self._call = call
        self._cluster = cluster
        self._partition = partition

    async def capture(self, member: int, index: int) -> Problem | None:
        """Have a member capture the partition at an index; why it has not, or None."""
        try:
            async with asyncio.timeout(CAPTURE_S):
                answer = await self._ask(member, DigestBody(partition=self._partition, index=index))
        except TimeoutError:
            return Problem(f"it has not come to entry {index} within {CAPTURE_S:g} s")
        return answer if isinstance(answer, Problem) else None

    async def take(self, member: int, index: int, problem: Problem | None) -> Found:
        """The digest of a member that has captured the partition."""
        if problem is not None:
            return problem
        body = DigestBody(partition=self._partition, index=index, take=True)
        answer = await self._ask(member, body)
        if isinstance(answer, Problem):
            return answer
        return answer.digest or Problem("it told no digest")

    async def _ask(self, member: int, body: DigestBody) -> DigestAnswer | Problem:
        exchange = self._call.exchange
        content = msgspec.json.encode(body)
        request = Request("POST", _PATH, "", exchange.request.headers, content)
        try:
            answer = await self._cluster.forward(member, -1, request, exchange.peer)
        except PenstockError as error:
            return Problem(error.message, is_away=isinstance(error, Unavailable))
        if answer.status == 200:
            return _DIGEST.decode(answer.body)
        if answer.status == 404:
            return Problem("its version cannot be compared")
        refusal = msgspec.json.decode(answer.body).get("error", {})
        if refusal.get("code") == StateMoved.code:
            raise StateMoved(refusal["message"])
        return Problem(refusal.get("message", f"it answered {answer.status}"))


_DIGEST: Final = msgspec.json.Decoder(DigestAnswer)


def compared(own: PartitionDigest, found: Mapping[str, Found]) -> PartitionComparison:
    """What is said of a partition on all members, measured by one of them."""
    left_out = set(own.not_compared)
    for each in found.values():
        if isinstance(each, PartitionDigest):
            left_out |= set(each.not_compared)
    members = tuple(_member(own, name, each, left_out) for name, each in sorted(found.items()))
    states = {each.state for each in members}
    return PartitionComparison(
        partition=own.partition,
        index=own.index,
        equal="different" not in states,
        complete=states <= {"equal", "different"},
        topics=len(own.topics.keys() - left_out) - 1,
        records=own.records,
        not_compared=tuple(sorted(left_out)),
        members=members,
    )


def _member(own: PartitionDigest, name: str, found: Found, left_out: set[str]) -> MemberComparison:
    if isinstance(found, Problem):
        state = "away" if found.is_away else "failed"
        return MemberComparison(name=name, state=state, problem=found.text)
    differing = differences(own.topics, found.topics, left_out)
    return MemberComparison(
        name=name,
        state="different" if differing else "equal",
        differing=len(differing),
        differs_in=tuple(topic or ITSELF for topic in differing[:SHOWN_MAX]),
    )


def differences(
    one: Mapping[str, str], other: Mapping[str, str], left_out: set[str]
) -> Sequence[str]:
    """The topics that two members do not have in common, or not in the same state.

    >>> differences({"a": "1", "b": "2", "": "9"}, {"a": "1", "b": "3", "c": "4"}, {"c"})
    ['', 'b']
    """
    names = (one.keys() | other.keys()) - left_out
    return sorted(name for name in names if one.get(name) != other.get(name))
