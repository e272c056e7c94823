"""`penstock cluster`: make a data directory a cluster, and say who is in it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct, to_builtins

from penstock.cli.options import Outage, json_flag, server_options, usage
from penstock.cli.output import Output, grid, many, visible
from penstock.client import Client, ClientSettings
from penstock.protocol.cluster_answers import PartitionComparison

PARTITIONS: Final = 6
"""Partitions of a new cluster: enough to spread leaders over three or five nodes."""
MEMBERS: Final = ("name", "state", "address", "url", "link", "reads", "problem")
GROUPS: Final = ("partition", "leader", "term", "last", "committed", "applied", "stopped")
"""Columns of `status`."""
LOOK_S: Final = 0.25
"""How often `status --wait` asks."""

_force = click.option(
    "--force", is_flag=True, help="Proceed even if no majority of the other nodes can be reached."
)
_new_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="New data directory of the member, on this machine. [default: say what is to be in it]",
)


@click.group()
def cluster() -> None:
    """Turn a data directory into a cluster, add and remove nodes, and show their state."""


@cluster.command()
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), default="topics-data",
    show_default=True, help="The data directory: a new one, or that of a single node.",
)  # fmt: skip
@click.option(
    "--wal-shards", type=click.IntRange(1, 64), default=PARTITIONS, show_default=True,
    help="Number of partitions of a new directory; cannot be changed later.",
)  # fmt: skip
@json_flag
def init(name: str, address: str, data_dir: Path, wal_shards: int, as_json: bool) -> None:
    """Turn a data directory into a cluster of one node, reachable by its peers at HOST:PORT.

    The directory's server must be stopped. Existing data is kept; a missing directory is created.
    """
    from penstock.app.cluster import init_cluster
    from penstock.log.disk import lock_directory
    from penstock.topics.persist.data_dir import LOG_DIR

    with usage():
        if (data_dir / LOG_DIR).is_dir():
            lock_directory(data_dir / LOG_DIR)()  # refuses if a server has it open
        file = init_cluster(data_dir, name=name, address=address, partitions=wal_shards)
    Output(as_json).say(
        f"{data_dir} is {name}, the first node of cluster {file.cluster}; start it with\n"
        f"  penstock serve --data-dir {data_dir} --peer-listen {address}",
        cluster=file.cluster, member=name, id=f"{file.member.id:016x}",
    )  # fmt: skip


@cluster.command()
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@_new_dir
@json_flag
@server_options
def add(name: str, address: str, data_dir: Path | None, as_json: bool, **place: Any) -> None:
    """Add a node, reachable by its peers at HOST:PORT.

    Run it where the new node will be, with --data-dir; or put the printed `cluster.json` into its
    data directory. The node is a learner until it has caught up, which needs no further command.
    """
    _check_new(data_dir)
    with _client(place) as client:
        answer = client.add_member(name, address)
    _joined(answer.file, data_dir, as_json=as_json)


@cluster.command()
@click.argument("name")
@click.argument("address", metavar="[HOST:PORT]", default="")
@_new_dir
@_force
@json_flag
@server_options
def replace(
    name: str, address: str, data_dir: Path | None, force: bool, as_json: bool, **place: Any
) -> None:
    """Replace a node whose directory is lost or damaged by a new one of the same name."""
    _check_new(data_dir)
    with _client(place) as client:
        answer = client.replace_member(name, address, force=force)
    _joined(answer.file, data_dir, as_json=as_json)


@cluster.command()
@click.argument("name")
@_force
@json_flag
@server_options
def remove(name: str, force: bool, as_json: bool, **place: Any) -> None:
    """Remove a node. Its process may be stopped once `status` no longer lists it."""
    with _client(place) as client:
        answer = client.remove_member(name, force=force)
    Output(as_json).say(f"{name} is no member any more", **_plain(answer))


@cluster.command()
@click.argument("member")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition. [default: all]")
@json_flag
@server_options
def transfer(member: str, partition: int | None, as_json: bool, **place: Any) -> None:
    """Transfer the leadership of partitions to a node, for example after its restart."""
    with _client(place) as client:
        found = client.get_cluster().partitions
        wanted = [each for each in found if partition in (None, each.partition)]
        moved = [each.partition for each in wanted if each.leader != member]
        for number in moved:
            client.transfer_leadership(number, member)
    text = f"{many(len(moved), 'partition')} handed over to {member}"
    Output(as_json).say(text, member=member, partitions=moved)


@cluster.command()
@click.option("--wait", is_flag=True, help="First wait until no membership change is in progress.")
@json_flag
@server_options
def status(wait: bool, as_json: bool, **place: Any) -> None:
    """Show the state of the cluster as the server at --url sees it.

    Also lists problems with the clocks, versions, logs and disks of the nodes.
    """
    output = Output(as_json)
    with _client(place) as client:
        found = _plain(client.get_cluster())
        said = ""
        while wait and found["underway"]:
            if found["underway"] != said:
                said = found["underway"]
                click.echo(f"{said}; waiting", err=True)
            time.sleep(LOOK_S)
            found = _plain(client.get_cluster())
        checked = _plain(client.check_cluster())
    found |= {"nodes": checked["nodes"], "problems": checked["problems"]}
    if output.plain:
        output.json(found)
        return
    output.say(f"cluster {found['cluster']} as {found['member']} sees it")
    if found["underway"]:
        output.say(f"under way: {found['underway']}")
    if found["entries"]:
        output.say(f"entries are written in version {found['entries']['active']}")
    for rows, columns in ((found["members"], MEMBERS), (found["partitions"], GROUPS)):
        table = grid(*columns)
        for row in rows:
            table.add_row(*(visible(_shown(row.get(name))) for name in columns))
        output.console.print(table)
    for problem in found["problems"]:
        output.say(visible(problem))


@cluster.command()
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition. [default: all]")
@json_flag
@server_options
def verify(partition: int | None, as_json: bool, **place: Any) -> None:
    """Compare the state of all nodes at the same index of each partition's log.

    Exits with 1 if nodes differ or if one could not be compared. Writes to a partition wait while
    its state is captured, usually for a few milliseconds.
    """
    output = Output(as_json)
    whole = True
    with _client(place) as client:
        numbers = [each.partition for each in client.get_cluster().partitions]
        for number in numbers if partition is None else [partition]:
            found = client.verify_partition(number)
            whole = whole and found.equal and found.complete
            if output.plain:
                output.json(_plain(found))
            else:
                output.say(_verified(found))
    if not whole:
        raise click.ClickException("not all members have the same state, or not all were compared")


def _verified(found: PartitionComparison) -> str:
    """What was found of a partition, in words."""
    what = f"{many(found.topics, 'topic')} with {many(found.records, 'record')}"
    lines = [f"partition {found.partition} at {found.index}: {what}"]
    for member in found.members:
        line = f"  {member.name}: {member.state}"
        if member.state == "different":
            names = ", ".join(map(visible, member.differs_in))
            more = member.differing - len(member.differs_in)
            line += f" in {names}" + (f" and {more} more" if more else "")
        elif member.problem:
            line += f", {visible(member.problem)}"
        lines.append(line)
    if found.not_compared:
        alone = many(len(found.not_compared), "topic")
        lines.append(f"  not compared, as only the leader has all records: {alone}")
    return "\n".join(lines)


def _plain(answer: Struct) -> dict[str, Any]:
    found: dict[str, Any] = to_builtins(answer)
    return found


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _client(place: dict[str, Any]) -> Client:
    return Client(ClientSettings(**place), on_trouble=Outage())


def _check_new(data_dir: Path | None) -> None:
    """Refuse a directory that has something in it, before the cluster is asked."""
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.UsageError(f"{data_dir} has files in it: a new member begins with an empty one")


def _joined(content: dict[str, Any], data_dir: Path | None, *, as_json: bool) -> None:
    if data_dir is None:
        click.echo(json.dumps(content))
        return
    from penstock.app.cluster import join_cluster

    file = join_cluster(data_dir, content)
    named = file.member
    Output(as_json).say(
        f"{data_dir} is {named.name} of cluster {file.cluster}; start it with\n"
        f"  penstock serve --data-dir {data_dir} --peer-listen {named.address}",
        cluster=file.cluster, member=named.name, id=f"{named.id:016x}",
    )  # fmt: skip
