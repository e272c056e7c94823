"""Handlers of the cluster: how it stands, and who is in it."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.protocol import cluster_answers as answers
from penstock.protocol import requests
from penstock.protocol.errors import (
    ChangeInProgress,
    InvalidRequest,
    NoLeader,
    NoMajorityLeft,
    NotClustered,
    StateMoved,
)
from penstock.protocol.routes import ADMIN, FLAG, READ, Param
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.checking import check_nodes, own_facts
from penstock.server.api.forwarding import Cluster
from penstock.server.api.verifying import verify
from penstock.server.http.message import Answer

_FORCE = Param("force", FLAG, "Although a majority cannot be reached, or a change is under way.")


@ROUTES.get("/v0/cluster", answer=answers.ClusterState, scope=READ, errors=(NotClustered,))
def show_cluster(call: Call) -> Answer:
    """How the cluster stands, as this node sees it: members, links, and each partition's group."""
    return call.tell(msgspec.convert(_cluster(call).view(), answers.ClusterState))


@ROUTES.get("/v0/cluster/checks", answer=answers.ClusterChecks, scope=READ, errors=(NotClustered,))
async def check_cluster(call: Call) -> Answer:
    """Clocks, versions, logs and disks of all nodes, and what is wrong with them."""
    return call.tell(await check_nodes(call, _cluster(call)))


@ROUTES.get("/v0/cluster/node", answer=answers.NodeAnswer, scope=READ, errors=(NotClustered,))
def show_node(call: Call) -> Answer:
    """This node's version, clock, log and disk; the others ask for it to compare."""
    _cluster(call)
    return call.tell(answers.NodeAnswer(node=own_facts(call.context)))


@ROUTES.post(
    "/v0/cluster/members",
    answer=answers.MemberFile,
    scope=ADMIN,
    body=requests.MemberBody,
    errors=(NotClustered, ChangeInProgress, NoLeader),
)
async def add_member(call: Call) -> Answer:
    """Take a new member in; the answer is the content of its `cluster.json`."""
    cluster = _cluster(call)
    body = call.read(requests.MemberBody)
    return _file(call, await cluster.add(body.name, body.address))


@ROUTES.post(
    "/v0/cluster/replace",
    answer=answers.MemberFile,
    scope=ADMIN,
    body=requests.ReplaceBody,
    query=(_FORCE,),
    errors=(NotClustered, ChangeInProgress, NoMajorityLeft, NoLeader),
)
async def replace_member(call: Call) -> Answer:
    """Take a member out whose directory is lost, and a new one in by its name."""
    cluster = _cluster(call)
    body = call.read(requests.ReplaceBody)
    force = call.query.flag("force", False)
    return _file(call, await cluster.replace(body.name, body.address, force=force))


@ROUTES.delete(
    "/v0/cluster/members/{name}",
    answer=answers.MemberRemoval,
    scope=ADMIN,
    named="member",
    query=(_FORCE,),
    errors=(NotClustered, ChangeInProgress, NoMajorityLeft, NoLeader),
)
async def remove_member(call: Call) -> Answer:
    """Take a member out of the cluster."""
    await _cluster(call).remove(call.name, force=call.query.flag("force", False))
    return call.tell(answers.MemberRemoval(member=call.name))


@ROUTES.post(
    "/v0/cluster/transfer",
    answer=answers.LeadershipTransfer,
    scope=ADMIN,
    body=requests.TransferBody,
    errors=(NotClustered, NoLeader),
)
def transfer_leadership(call: Call) -> Answer:
    """Ask the leader of a partition to hand over to a member."""
    cluster = _cluster(call)
    body = call.read(requests.TransferBody)
    cluster.transfer(body.partition, body.member)
    return call.tell(answers.LeadershipTransfer(partition=body.partition, member=body.member))


@ROUTES.post(
    "/v0/cluster/verify",
    answer=answers.PartitionComparison,
    scope=ADMIN,
    body=requests.VerifyBody,
    errors=(NotClustered, NoLeader, StateMoved),
)
async def verify_partition(call: Call) -> Answer:
    """Compare a partition on all members, at the same index of its log.

    Its leader takes no write of the partition until every member has captured its state, which
    takes a few milliseconds, or 5 seconds where a member does not answer.
    """
    cluster = _cluster(call)
    partition = _partition(call, call.read(requests.VerifyBody).partition)
    return call.tell(await verify(call, cluster, partition))


@ROUTES.post(
    "/v0/cluster/digest",
    answer=answers.DigestAnswer,
    scope=ADMIN,
    body=requests.DigestBody,
    errors=(NotClustered, NoLeader, StateMoved),
)
async def show_digest(call: Call) -> Answer:
    """Capture a partition of this node at an index of its log, or with `take` tell its digest.

    The leader of the partition asks all members so, for `POST /v0/cluster/verify`.
    """
    cluster = _cluster(call)
    body = call.read(requests.DigestBody)
    partition, digests = _partition(call, body.partition), call.context.engine.digests
    if body.take:
        answer = answers.DigestAnswer(digest=await digests.take(partition, body.index))
    else:
        await cluster.confirm(partition)
        answer = answers.DigestAnswer(index=await digests.capture(partition, body.index))
    return call.tell(answer, "index", "digest")


def _partition(call: Call, partition: int) -> int:
    count = call.context.engine.options.partitions
    if partition >= count:
        raise InvalidRequest(f"there is no partition {partition}: there are {count}")
    return partition


def _cluster(call: Call) -> Cluster:
    call.check_unbounded()
    cluster = call.context.cluster
    if cluster is None:
        raise NotClustered("this server is a node alone: `penstock cluster init` makes it one")
    return cluster


def _file(call: Call, content: dict[str, Any]) -> Answer:
    return call.tell(answers.MemberFile(file=content))
