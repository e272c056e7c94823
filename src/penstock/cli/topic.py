"""`penstock topic`: write, read and follow topics of a running server from the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, TypeVar

import click

from penstock.cli.failing import OutcomeOpen, failure, told
from penstock.cli.options import (
    SERVER,
    Outage,
    command_options,
    json_flag,
    merged,
    server_options,
)
from penstock.cli.topic_view import TopicOutput
from penstock.client import AUTO_KEY, Client, ClientSettings, Position, Record
from penstock.client.records import checked_json
from penstock.kernel.errors import PenstockError, Rejected
from penstock.kernel.units import parse_bytes
from penstock.protocol.config import TYPES, ConfigField, config_fields
from penstock.protocol.errors import InvalidRequest, OutcomeUnknown

F = TypeVar("F", bound=Callable[..., Any])

BATCH_MAX = 1_000
"""The most lines of standard input in one request."""
COUNT: Final = click.IntRange(min=0)


def size(text: str) -> int:
    """A size in bytes as people write it: 4096, 64KiB, 1 GiB."""
    try:
        return parse_bytes(text)
    except Rejected as error:
        raise click.BadParameter(error.message) from error


@click.group()
@server_options
@click.pass_context
def topic(ctx: click.Context, /, **place: Any) -> None:
    """Write, read and follow topics of a running server.

    On a terminal the output is formatted; piped or with --json it is lines of JSON. The options
    below may also follow the command.
    """
    ctx.obj = place


def command(function: F) -> F:
    """Pass a client of the server to a command."""

    @command_options(SERVER)
    @wraps(function)
    def run(*args: Any, **options: Any) -> None:
        settings = ClientSettings(**merged(SERVER, options))
        with Client(settings, on_trouble=Outage()) as client:
            function(client, *args, **options)

    return run  # type: ignore[return-value]  # the context stands in for the first argument


def config_options(function: F) -> F:
    """Add an option for every key of a topic's configuration."""
    for field in reversed(config_fields().values()):
        function = config_option(field)(function)
    return function


def config_option(field: ConfigField) -> Callable[[F], F]:
    """The option of a key: it has the key's type, and its description as help."""
    name = field.name.replace("_", "-")
    shapes = [shape for shape in field.shape.get("anyOf", [field.shape]) if "type" in shape]
    kind: dict[str, Any] = {"metavar": "TOPIC"}
    if "enum" in field.shape:
        kind = {"type": click.Choice(field.shape["enum"])}
    elif shapes[0]["type"] == "boolean":
        kind = {"default": None}
        name = f"{name}/--no-{name}"
    elif shapes[0]["type"] == "integer" and name.endswith("-bytes"):
        kind = {"type": size, "metavar": "SIZE"}
    elif shapes[0]["type"] == "integer":
        kind = {"type": click.IntRange(min=shapes[0].get("minimum"))}
    return click.option(f"--{name}", help=field.shape["description"], **kind)


@topic.command()
@click.argument("name", metavar="TOPIC")
@config_options
@json_flag
@command
def create(client: Client, name: str, as_json: bool, **options: Any) -> None:
    """Create a topic, or change the given settings of an existing one.

    A topic is otherwise created by the first write to it, with the server's default settings.
    """
    given = {key: value for key, value in options.items() if value is not None}
    TopicOutput(as_json).topic_put(client.put_topic(name, **given))


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.argument("values", metavar="[JSON]...", nargs=-1)
@click.option("--tag", help="Tag of every record.")
@click.option("--node", help="Name of the writer; readers of the same name do not get the records.")
@click.option(
    "--key", help="Idempotency key: a repeated write with the same key takes effect once."
)
@json_flag
@command
def write(
    client: Client,
    name: str,
    values: tuple[str, ...],
    tag: str | None,
    node: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Write records, given as JSON arguments or as lines on standard input.

    Standard input is read if there are no arguments, or only -; each line is a record.
    """
    if key == "":
        raise click.BadParameter("an idempotency key cannot be empty", param_hint="'--key'")
    output = TopicOutput(as_json)
    if values and values != ("-",):
        records = [_record(text, tag) for text in values]
        _write_once(client, output, name, records, node=node, key=key or AUTO_KEY)
    elif key is not None:
        try:
            lines = list(_lines(tag))
        except BadLine as error:
            raise click.BadParameter(f"{error}; nothing was written") from error
        _write_once(client, output, name, lines, node=node, key=key)
    else:
        _write_lines(client, output, name, tag, node)


def _write_once(
    client: Client,
    output: TopicOutput,
    name: str,
    records: list[Record],
    *,
    node: str | None,
    key: str,
) -> None:
    """Write records, all or none."""
    try:
        output.written(client.write(name, records, node=node, idempotency_key=key))
    except OutcomeUnknown as error:
        raise OutcomeOpen(
            f"this may or may not have been written; the same again with --key "
            f"{error.idempotency_key} finds out, and writes it at most once: "
            f"{told(error.__cause__ or error)}"
        ) from error


def _write_lines(
    client: Client, output: TopicOutput, name: str, tag: str | None, node: str | None
) -> None:
    """Write standard input as it arrives; stop at a bad line, with the lines before it written."""
    writer = client.writer(name, node=node, batch_max=BATCH_MAX, on_written=output.written_some)
    try:
        with writer, output.counting():
            for record in _lines(tag):
                writer.send(record)
    except BadLine as error:
        raise click.BadParameter(f"{error}; {output.so_far()}") from error
    except OutcomeUnknown as error:
        text = told(error.__cause__ or error)
        raise OutcomeOpen(
            f"the last records may or may not have been written: {text}; {output.so_far()}"
        ) from error
    except PenstockError as error:
        raise failure(error, f"{told(error)}; {output.so_far()}") from error
    output.written_all()


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--from-seq", type=click.IntRange(min=0), default=0, help="Start after this seq.")
@click.option(
    "--from-ts",
    type=click.IntRange(min=0),
    help="Start at this time, in ms since 1970; with --from-seq, at the later of the two.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--tag", help="Only records with this tag; a * at its end matches a prefix.")
@json_flag
@command
def read(
    client: Client,
    name: str,
    from_seq: int,
    from_ts: int | None,
    limit: int | None,
    tag: str | None,
    as_json: bool,
) -> None:
    """Read the records of a topic up to its head."""
    output = TopicOutput(as_json)
    left = limit
    is_first = True
    page_size = min(1_000, limit or 1_000)
    for page in client.read(
        name, from_seq=from_seq, from_ts=from_ts, page_size=page_size, tag=tag, include_tags=True
    ):
        if page.tombstone is not None:
            output.gap(name, page.tombstone, asked_seq=from_seq if is_first else 0)
        is_first = False
        records = page.records if left is None else page.records[:left]
        output.records(None, records)
        left = None if left is None else left - len(records)
        if left == 0:
            return


@topic.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--from-seq", type=click.IntRange(min=0), help="Start after this seq instead of at the head."
)
@click.option("--tag", help="Only records with this tag; a * at its end matches a prefix.")
@json_flag
@command
def follow(
    client: Client, names: tuple[str, ...], from_seq: int | None, tag: str | None, as_json: bool
) -> None:
    """Show records as they are written, until Ctrl-C; resumes after a server restart."""
    output = TopicOutput(as_json)
    start = Position(tail=True) if from_seq is None else Position(from_seq)
    shown = names if len(names) > 1 else None
    try:
        with client.watch(dict.fromkeys(names, start), tag=tag, include_tags=True) as watch:
            for event in watch:
                output.event(event, named=shown is not None, asked_seq=from_seq or 0)
    except KeyboardInterrupt:
        output.end()


@topic.command("list")
@click.option("--prefix", default="", help="Only topics whose names start with this.")
@click.option(
    "--sort",
    type=click.Choice(("name", "rate", "behind", "bytes")),
    default="name",
    help="Order: by name, or the top thousand by another value, largest first.",
)
@click.option("--type", "kind", type=click.Choice(TYPES), help="Only topics of this type.")
@json_flag
@command
def list_(client: Client, prefix: str, sort: str, kind: str | None, as_json: bool) -> None:
    """List topics with their rates, watchers and size."""
    order = None if sort == "name" else sort
    TopicOutput(as_json).topics(client.list_topics(prefix, sort=order, type=kind))


@topic.command()
@click.argument("name", metavar="TOPIC")
@json_flag
@command
def show(client: Client, name: str, as_json: bool) -> None:
    """Show a topic's contents and settings."""
    TopicOutput(as_json).topic(client.get_topic(name, touch=False))


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--if-empty", is_flag=True, help="Refuse if the topic holds records.")
@click.option(
    "--before-seq", type=click.IntRange(min=0), help="Delete only records before this seq."
)
@click.option(
    "--match", metavar="TAG", help="Delete only records with this tag, or with tags like 'a*'."
)
@json_flag
@command
def delete(
    client: Client,
    name: str,
    if_empty: bool,
    before_seq: int | None,
    match: str | None,
    as_json: bool,
) -> None:
    """Delete a topic or, with --before-seq or --match, some of its records."""
    output = TopicOutput(as_json)
    if before_seq is None and match is None:
        deletion = client.delete_topic(name, if_empty=if_empty)
        if not deletion.deleted:
            raise click.ClickException(f"there is no topic {name}")
        output.topic_deleted(deletion)
        return
    if if_empty:
        raise click.UsageError("--if-empty is for a whole topic, not with --before-seq or --match")
    output.records_deleted(client.delete_records(name, before_seq=before_seq, match=match))


class BadLine(ValueError):
    """A line of standard input that is not a record."""


def _lines(tag: str | None) -> Iterator[Record]:
    """The records of standard input; an invalid one is reported by its line number."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            try:
                yield _record(line, tag)
            except click.BadParameter as error:
                raise BadLine(f"line {number}: {error.message}") from error


def _record(text: str | bytes, tag: str | None) -> Record:
    raw = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
    raw = raw.strip()
    try:
        return Record(checked_json(raw), tag=tag)
    except InvalidRequest as error:
        hint = "" if raw.startswith((b'"', b"{", b"[")) else " (text needs quotes: '\"text\"')"
        raise click.BadParameter(f"{error}{hint}") from error
