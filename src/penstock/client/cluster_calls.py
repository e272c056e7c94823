"""Calls about the cluster that a server is a node of.

>>> remove_member("b", force=True).request.target
'/v0/cluster/members/b?force=true'
"""

from __future__ import annotations

import msgspec

from penstock.client.calls import ApiCall, T, query_text, quoted, reads
from penstock.client.wire import HttpRequest
from penstock.protocol import cluster_answers as answers
from penstock.protocol import requests


def cluster() -> ApiCall[answers.ClusterState]:
    """How the cluster stands, as the server sees it."""
    return ApiCall(HttpRequest("GET", "/v0/cluster"), reads(answers.ClusterState))


def checks() -> ApiCall[answers.ClusterChecks]:
    """Clocks, versions, logs and disks of all nodes, and what is wrong with them."""
    return ApiCall(HttpRequest("GET", "/v0/cluster/checks"), reads(answers.ClusterChecks))


def add_member(name: str, address: str) -> ApiCall[answers.MemberFile]:
    """Take a new member in."""
    body = requests.MemberBody(name=name, address=address)
    return _change("POST", "/v0/cluster/members", body, answers.MemberFile)


def replace_member(name: str, address: str, *, force: bool = False) -> ApiCall[answers.MemberFile]:
    """Take a member out whose directory is lost, and a new one in by its name."""
    body = requests.ReplaceBody(name=name, address=address)
    return _change(
        "POST", "/v0/cluster/replace" + query_text(force=force or None), body, answers.MemberFile
    )


def remove_member(name: str, *, force: bool = False) -> ApiCall[answers.MemberRemoval]:
    """Take a member out of the cluster."""
    target = f"/v0/cluster/members/{quoted(name)}{query_text(force=force or None)}"
    return ApiCall(HttpRequest("DELETE", target), reads(answers.MemberRemoval), repeatable=False)


def transfer_leadership(partition: int, member: str) -> ApiCall[answers.LeadershipTransfer]:
    """Hand the leadership of a partition over to a member."""
    body = requests.TransferBody(partition=partition, member=member)
    return _change("POST", "/v0/cluster/transfer", body, answers.LeadershipTransfer)


def verify_partition(partition: int) -> ApiCall[answers.PartitionComparison]:
    """Compare a partition on all members."""
    body = msgspec.json.encode(requests.VerifyBody(partition=partition))
    return ApiCall(
        HttpRequest("POST", "/v0/cluster/verify", body), reads(answers.PartitionComparison)
    )


def _change(method: str, target: str, body: msgspec.Struct, kind: type[T]) -> ApiCall[T]:
    request = HttpRequest(method, target, msgspec.json.encode(body))
    return ApiCall(request, reads(kind), repeatable=False)
