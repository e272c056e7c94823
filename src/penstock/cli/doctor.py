"""`penstock doctor`: everything that is checked about a server and its cluster, and what is wrong.

Of a node alone these are readiness and the verdict of `penstock status`; of a cluster also the
clocks, versions, links, disks, logs and partitions of all nodes, as in `penstock cluster status`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click
from msgspec import to_builtins

from penstock.cli.options import json_flag, server_options
from penstock.cli.output import Output, grid, many, visible
from penstock.cli.status import GOOD, look
from penstock.client import Client, ClientSettings
from penstock.client.retry import RetryPolicy
from penstock.kernel.units import format_bytes
from penstock.protocol.cluster_answers import ClusterState, NodeCheck
from penstock.protocol.errors import CallError, NotClustered

NODES: Final = ("node", "version", "clock", "free of disk", "log")


@click.command()
@server_options
@json_flag
def doctor(as_json: bool, **place: Any) -> None:
    """Check a server and all nodes of its cluster, and list what is wrong.

    Checks readiness and the verdict and, in a cluster, the clocks, versions, links, disks and logs
    of all nodes. The exit code is 1 if there is a problem.
    """
    output = Output(as_json)
    with Client(ClientSettings(**place, retry=RetryPolicy(tries_max=1))) as client:
        nodes, problems = examine(client)
    if output.plain:
        output.json({"healthy": not problems, "nodes": to_builtins(nodes), "problems": problems})
    else:
        _show(output, nodes, problems)
    if problems:
        sys.exit(1)


def examine(client: Client) -> tuple[tuple[NodeCheck, ...], list[str]]:
    """The nodes of the cluster, none of a node alone, and every problem in a sentence."""
    problems: list[str] = []
    try:
        client.ready()
    except CallError as error:
        problems.append(f"not ready: {error.message}")
    verdict = look(client).verdict
    if verdict.level not in GOOD:
        problems.append(" ".join(part for part in (verdict.sentence, verdict.line) if part))
    nodes: tuple[NodeCheck, ...] = ()
    try:
        checked = client.check_cluster()
        nodes = checked.nodes
        problems += (*checked.problems, *_of_cluster(client.get_cluster()))
    except NotClustered:
        pass
    except CallError as error:
        problems.append(f"the cluster cannot be checked: {error.message}")
    return nodes, list(dict.fromkeys(problems))


def _of_cluster(cluster: ClusterState) -> Iterator[str]:
    """What links and partitions say, as the server that was asked sees them."""
    for member in cluster.members:
        if member.link in ("down", "none"):
            yield f"the link to {member.name} is down: {member.problem or 'not connected'}"
    for group in cluster.partitions:
        if not group.leader:
            yield f"partition {group.partition} has no leader that this node knows"
        if group.stopped:
            yield f"partition {group.partition} has stopped here: {group.stopped}"


def _show(output: Output, nodes: Iterable[NodeCheck], problems: list[str]) -> None:
    if nodes:
        table = grid(*NODES)
        for node in nodes:
            table.add_row(*map(visible, _row(node)))
        output.console.print(table)
    for problem in problems:
        output.say(visible(problem))
    output.say(many(len(problems), "problem") if problems else "nothing is wrong")


def _row(node: NodeCheck) -> tuple[str, ...]:
    facts = node.facts
    if facts is None:
        return node.name, "", "", "", node.problem
    return (
        node.name,
        facts.version,
        f"{node.ahead_ms:+} ms",
        format_bytes(facts.disk_free_bytes),
        facts.log or "takes writes",
    )
