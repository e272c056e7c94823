"""Whether the nodes of a cluster fit together: their clocks, versions, links, logs and disks.

The node that is asked asks all others. A clock is compared with the middle of the time that the
answer took, so it is known to half of that.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

import penstock
from penstock.kernel.errors import PenstockError
from penstock.kernel.units import GIB
from penstock.protocol.cluster_answers import (
    ClusterChecks,
    ClusterEntries,
    NodeAnswer,
    NodeCheck,
    NodeFacts,
)
from penstock.protocol.errors import NoLeader
from penstock.server.api.call import Call, Context
from penstock.server.api.forwarding import Cluster
from penstock.server.http.message import Request
from penstock.topics.core.codec import NewerEntries

CLOCK_MS_MAX: Final = 5_000
"""Clocks further apart are told: a leader with a fast one would end leases and ttls early."""
DISK_SHARE_MIN: Final = 0.05
DISK_BYTES_MIN: Final = GIB
"""Of a disk that is too full, less than both is free."""
ANSWER_S: Final = 5.0
_PATH: Final = "/v0/cluster/node"


def own_facts(context: Context) -> NodeFacts:
    """What this node says of itself."""
    engine = context.engine
    failed = [writer for writer in engine.writers if writer.is_out_of_service]
    newer = [each.number for each in failed if isinstance(each.executor.error, NewerEntries)]
    total = free = 0
    if engine.options.data_dir is not None:
        usage = shutil.disk_usage(engine.options.data_dir)
        total, free = usage.total, usage.free
    return NodeFacts(
        version=penstock.__version__,
        now_ms=context.clock.now_ms(),
        disk_bytes=total,
        disk_free_bytes=free,
        log=engine.journal.store.status().read_only_reason or "",
        failed_partitions=tuple(each.number for each in failed),
        newer_partitions=tuple(newer),
    )


async def check_nodes(call: Call, cluster: Cluster) -> ClusterChecks:
    """Every node, and what is wrong, in sentences."""
    asked = (_check(call, cluster, member, name) for member, name in cluster.members())
    nodes = await asyncio.gather(*asked)
    entries = msgspec.convert(cluster.view()["entries"], ClusterEntries)
    return ClusterChecks(nodes=tuple(nodes), problems=tuple(problems(nodes, entries)))


async def _check(call: Call, cluster: Cluster, member: int, name: str) -> NodeCheck:
    clock = call.context.clock
    if member == cluster.own:
        return NodeCheck(name=name, facts=own_facts(call.context))
    request = Request("GET", _PATH, "", call.request.headers, b"")
    before_ms, began_ns = clock.now_ms(), clock.monotonic_ns()
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await cluster.forward(member, -1, request, call.exchange.peer)
    except TimeoutError:
        return NodeCheck(name=name, problem=f"it did not answer within {ANSWER_S:g} s")
    except NoLeader:
        return NodeCheck(name=name, problem="there is no link to it")
    except PenstockError as error:
        return NodeCheck(name=name, problem=error.message)
    took_ms = (clock.monotonic_ns() - began_ns) / 1e6
    if answer.status != 200:
        return NodeCheck(name=name, problem=f"it answered {answer.status}: of another version?")
    found = _FACTS.decode(answer.body).node
    ahead_ms = found.now_ms - before_ms - took_ms / 2
    return NodeCheck(
        name=name, facts=found, ahead_ms=round(ahead_ms), round_trip_ms=round(took_ms, 3)
    )


def problems(nodes: Sequence[NodeCheck], entries: ClusterEntries) -> Iterator[str]:
    """What is wrong with nodes, one sentence each."""
    known = {each.name: each.facts for each in nodes if each.facts is not None}
    for each in nodes:
        if each.problem:
            yield f"{each.name} is away: {each.problem}"
        if abs(each.ahead_ms) > CLOCK_MS_MAX:
            way = "ahead of" if each.ahead_ms > 0 else "behind"
            yield f"the clock of {each.name} is {abs(each.ahead_ms) / 1e3:.1f} s {way} this node's"
    versions = {facts.version for facts in known.values()}
    if len(versions) > 1:
        said = ", ".join(f"{name} {facts.version}" for name, facts in known.items())
        yield f"the nodes have different versions: {said}"
    if entries.held_by:
        names = " and ".join(entries.held_by)
        yield (
            f"entries are written in version {entries.active}, not {entries.newest}, until {names} "
            "can read it: upgrade"
        )
    yield from _of_disks(known)


def _of_disks(known: Mapping[str, NodeFacts]) -> Iterator[str]:
    for name, facts in known.items():
        if facts.log:
            yield f"the log of {name} takes no writes: {facts.log}"
        for partition in facts.newer_partitions:
            yield (
                f"partition {partition} of {name} was written by a newer release than "
                f"{facts.version}: start that one again"
            )
        for partition in set(facts.failed_partitions).difference(facts.newer_partitions):
            yield (
                f"partition {partition} of {name} is damaged and out of service there: "
                f"`penstock cluster replace {name}` heals it"
            )
        free, total = facts.disk_free_bytes, facts.disk_bytes
        if free < min(DISK_BYTES_MIN, DISK_SHARE_MIN * total):
            yield f"the disk of {name} has {free / GIB:.2f} GiB left of {total / GIB:.1f}"


_FACTS: Final = msgspec.json.Decoder(NodeAnswer)
