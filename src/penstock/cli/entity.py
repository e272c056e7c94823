"""`penstock entity`: show, change and follow entities of a running server from the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import click
import msgspec

from penstock.cli.entity_view import EntityOutput
from penstock.cli.output import json_flag
from penstock.cli.placing import server_options
from penstock.cli.topic import command
from penstock.client import Client, Position
from penstock.commits.model import Commit, Precondition, Read, Write

SEQ = click.IntRange(min=0)


@click.group()
@server_options
@click.pass_context
def entity(ctx: click.Context, /, **place: Any) -> None:
    """Look at and change the entities of a running server: JSON documents in a space.

    Every change is one commit. With --if-seq it takes effect only if nobody has written the
    entity since that seq. On a terminal the answers are for people; piped or with --json they are
    lines of JSON. The options below may also stand behind the command.
    """
    ctx.obj = place


def change_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every change."""
    for option in (
        json_flag,
        click.option(
            "--event-id",
            metavar="ID",
            help="Do it once: refused if a commit with this id ever took effect.",
        ),
        click.option(
            "--if-seq",
            type=SEQ,
            metavar="SEQ",
            help="Only if the entity was not written after this seq.",
        ),
    ):
        function = option(function)
    return function


space_argument = click.argument("space", metavar="SPACE")
entity_argument = click.argument("name", metavar="ENTITY")
at_option = click.option(
    "--at", "at_seq", type=SEQ, metavar="SEQ", help="As it was at this seq of the space."
)


@entity.command()
@space_argument
@entity_argument
@at_option
@json_flag
@command
def get(client: Client, space: str, name: str, at_seq: int | None, as_json: bool) -> None:
    """Show an entity, now or as it was."""
    EntityOutput(as_json).entity(client.get_entity(space, name, at_seq=at_seq))


@entity.command("list")
@space_argument
@click.option("--prefix", default="", help="Only entities whose ids begin with this.")
@at_option
@json_flag
@command
def list_(client: Client, space: str, prefix: str, at_seq: int | None, as_json: bool) -> None:
    """List the entities of a space by id, all as of one seq."""
    EntityOutput(as_json).entities(client.list_entities(space, prefix, at_seq=at_seq))


@entity.command("set")
@space_argument
@entity_argument
@click.argument("document", metavar="[JSON]", required=False)
@change_options
@command
def set_(
    client: Client,
    space: str,
    name: str,
    document: str | None,
    if_seq: int | None,
    event_id: str | None,
    as_json: bool,
) -> None:
    """Give an entity a new document, as an argument or on standard input."""
    write = Write(entity=name, set=_document(document))
    _commit(client, space, write, if_seq, event_id, as_json)


@entity.command()
@space_argument
@entity_argument
@click.argument("document", metavar="[JSON]", required=False)
@change_options
@command
def patch(
    client: Client,
    space: str,
    name: str,
    document: str | None,
    if_seq: int | None,
    event_id: str | None,
    as_json: bool,
) -> None:
    """Change some members of an entity with a JSON merge patch; null removes a member.

    The patch is an argument or on standard input.
    """
    write = Write(entity=name, patch=_document(document))
    _commit(client, space, write, if_seq, event_id, as_json)


@entity.command()
@space_argument
@entity_argument
@change_options
@command
def delete(
    client: Client,
    space: str,
    name: str,
    if_seq: int | None,
    event_id: str | None,
    as_json: bool,
) -> None:
    """Delete an entity. What it was can still be had with `get --at`."""
    client.get_entity(space, name)  # so that a wrong id is reported
    _commit(client, space, Write(entity=name, delete=True), if_seq, event_id, as_json)


@entity.command()
@space_argument
@entity_argument
@click.option("--after", "after_seq", type=SEQ, default=0, help="Begin after this seq.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many commits.")
@json_flag
@command
def history(
    client: Client, space: str, name: str, after_seq: int, limit: int | None, as_json: bool
) -> None:
    """Show the commits that wrote an entity, oldest first."""
    output = EntityOutput(as_json)
    page_size = min(1_000, limit or 1_000)
    rows = client.entity_history(space, name, after_seq=after_seq, page_size=page_size)
    for count, row in enumerate(rows, 1):
        output.commit(row)
        if count == limit:
            return


@entity.command()
@space_argument
@click.argument("names", metavar="[ENTITY]...", nargs=-1)
@click.option("--from-seq", type=SEQ, help="Begin after this seq, not at the head.")
@json_flag
@command
def watch(
    client: Client, space: str, names: tuple[str, ...], from_seq: int | None, as_json: bool
) -> None:
    """Show changes as they are committed, until Ctrl-C; goes on after a restart of the server.

    Of all entities of the space, or of those that are named.
    """
    next(client.list_entities(space, page_size=1), None)  # fails if it is not a space
    output = EntityOutput(as_json)
    start = Position(tail=True) if from_seq is None else Position(from_seq)
    try:
        with client.watch({space: start}) as watching:
            for event in watching:
                output.event(event, names)
    except KeyboardInterrupt:
        output.end()


def _commit(
    client: Client,
    space: str,
    write: Write,
    if_seq: int | None,
    event_id: str | None,
    as_json: bool,
) -> None:
    """Commit one write in a new session."""
    reads = () if if_seq is None else (Read(entity=write.entity, seq=if_seq),)
    once = () if event_id is None else (Precondition(receipt_absent=event_id),)
    commit = Commit(
        session=f"cli-{uuid4().hex}",
        local_seq=1,
        writes=(write,),
        reads=reads,
        preconditions=once,
        event_id=event_id,
    )
    EntityOutput(as_json).accepted(write, client.commit(space, commit))


def _document(text: str | None) -> Any:
    """The JSON of an argument or, if it is missing or -, of standard input."""
    if text is None or text == "-":
        raw = sys.stdin.buffer.read()
    else:
        raw = text.encode(errors="surrogateescape")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = raw[:60].decode(errors="backslashreplace")
        raise click.BadParameter(
            f"expected JSON, found {shown!r}: {error} (text needs quotes: '\"text\"')"
        ) from error
