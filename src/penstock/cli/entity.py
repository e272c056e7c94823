"""`penstock entity`: show, change and follow entities of a running server from the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from uuid import uuid4

import click
import msgspec
from msgspec import UNSET

from penstock.cli.options import json_flag, server_options
from penstock.cli.output import DIM, Output, visible, when
from penstock.cli.topic import command
from penstock.client import Client, Position
from penstock.protocol.answers import CommitAccepted, EntityCommit, EntityState
from penstock.protocol.commits import Commit, CommitRead, CommitWrite, Precondition
from penstock.protocol.events import Records, Tombstone, TopicDeleted, WatchEvent

SEQ = click.IntRange(min=0)


@click.group()
@server_options
@click.pass_context
def entity(ctx: click.Context, /, **place: Any) -> None:
    """Show and change entities of a running server: JSON documents in a space.

    Every change is one commit. With --if-seq it takes effect only if the entity was not
    written after that seq. On a terminal the output is formatted; piped or with --json it is
    lines of JSON. The options below may also follow the command.
    """
    ctx.obj = place


def change_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every change."""
    for option in (
        json_flag,
        click.option(
            "--event-id",
            metavar="ID",
            help="Take effect only once: refused if a commit with this id was accepted before.",
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
    """Replace an entity's document, given as an argument or on standard input."""
    write = CommitWrite(entity=name, set=_document(document))
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
    write = CommitWrite(entity=name, patch=_document(document))
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
    """Delete an entity. Earlier versions stay available with `get --at`."""
    client.get_entity(space, name)  # so that a wrong id is reported
    _commit(client, space, CommitWrite(entity=name, delete=True), if_seq, event_id, as_json)


@entity.command()
@space_argument
@entity_argument
@click.option("--after", "after_seq", type=SEQ, default=0, help="Start after this seq.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many commits.")
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
@click.option("--from-seq", type=SEQ, help="Start after this seq instead of at the head.")
@json_flag
@command
def watch(
    client: Client, space: str, names: tuple[str, ...], from_seq: int | None, as_json: bool
) -> None:
    """Show changes as they are committed, until Ctrl-C; resumes after a server restart.

    Watches all entities of the space, or only those named.
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
    write: CommitWrite,
    if_seq: int | None,
    event_id: str | None,
    as_json: bool,
) -> None:
    """Commit one write in a new session."""
    reads = () if if_seq is None else (CommitRead(entity=write.entity, seq=if_seq),)
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
            f"{shown!r} is not JSON: {error} (text needs quotes: '\"text\"')"
        ) from error


class _Recorded(msgspec.Struct):
    """The fields of a commit's record."""

    session: str
    local_seq: int
    writes: list[CommitWrite]
    event_id: str | None = None


class EntityOutput(Output):
    """The output of `penstock entity`."""

    def entity(self, state: EntityState) -> None:
        """One entity in full."""
        if self.plain:
            self.json(_row(state) | {"head": state.head})
            return
        from rich.text import Text

        self.console.print(Text(_pretty(state.doc)), soft_wrap=True)
        self._note(f"{state.entity}, written at seq {state.seq}, as of seq {state.head}", DIM)

    def entities(self, states: Iterable[EntityState]) -> None:
        """Entities, one on each line."""
        from rich.text import Text

        count = 0
        for state in states:
            count += 1
            if self.plain:
                self.json(_row(state))
            else:
                parts = [(f"{state.seq:>8} ", "bold"), (f"{state.entity} ", "cyan")]
                self.console.print(Text.assemble(*parts, _short(state.doc)), soft_wrap=True)
        if not count and not self.plain:
            self.console.print("no entities")

    def accepted(self, write: CommitWrite, accepted: CommitAccepted) -> None:
        """A change that took effect."""
        if self.plain:
            self.json({"entity": write.entity, "seq": accepted.seq, "ts": accepted.ts})
        else:
            self.console.print(f"{_verb(write)} {write.entity} at seq {accepted.seq}", markup=False)

    def commit(self, row: EntityCommit) -> None:
        """A commit that wrote an entity."""
        if self.plain:
            self.json(row)
            return
        for write in row.writes:
            self._line(row.seq, row.ts, row.session, write)

    def event(self, event: WatchEvent, names: Collection[str]) -> None:
        """An event of a watch: the writes to these entities, or to all if none are named."""
        match event:
            case Records():
                for record in event.records:
                    commit = record.data_as(_Recorded)
                    for write in _of(commit.writes, names):
                        self._change(record.seq, record.ts_ms, commit, write)
            case Tombstone():
                if self.plain:
                    gap = {"gap_from": event.gap_from, "gap_to": event.gap_to}
                    self.json({"tombstone": gap | {"reason": event.reason}})
                else:
                    text = f"seqs {event.gap_from} to {event.gap_to} are gone ({event.reason})"
                    self._note(text, "yellow")
            case TopicDeleted():
                if self.plain:
                    self.json({"space_deleted": event.topic})
                else:
                    self._note(f"{event.topic} was deleted", "yellow")
        sys.stdout.flush()

    def _change(self, seq: int, ts_ms: int, commit: _Recorded, write: CommitWrite) -> None:
        if self.plain:
            change = {"seq": seq, "ts": ts_ms, "session": commit.session}
            self.json(change | msgspec.to_builtins(write))
        else:
            self._line(seq, ts_ms, commit.session, write)

    def _line(self, seq: int, ts_ms: int, session: str, write: CommitWrite) -> None:
        from rich.text import Text

        what = write.patch if write.patch is not UNSET else write.set
        text = Text.assemble(
            (f"{seq:>8} ", "bold"),
            (f"{when(ts_ms)} ", DIM),
            (f"{visible(session)} ", "green"),
            f"{_verb(write)} ",
            (write.entity, "cyan"),
            "" if write.delete else f" {_short(what)}",
        )
        self.console.print(text, soft_wrap=True)

    def _note(self, text: str, style: str) -> None:
        from rich.text import Text

        self.console.print(Text(text, style))


def _row(state: EntityState) -> dict[str, Any]:
    return {"entity": state.entity, "seq": state.seq, "doc": state.doc}


def _of(writes: Iterable[CommitWrite], names: Collection[str]) -> Iterator[CommitWrite]:
    return (write for write in writes if not names or write.entity in names)


def _verb(write: CommitWrite) -> str:
    if write.delete:
        return "deleted"
    return "patched" if write.patch is not UNSET else "set"


def _short(document: Any) -> str:
    return visible(msgspec.json.encode(document).decode())


def _pretty(document: Any) -> str:
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return "\n".join(visible(line) for line in text.split("\n"))
