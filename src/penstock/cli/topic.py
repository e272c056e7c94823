"""`penstock topic`: write, read and follow topics of a running server from the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, TypeVar

import click

from penstock.cli.server_place import server_options
from penstock.cli.topic_view import Output
from penstock.client import AUTO_KEY, Client, ClientSettings, Position, Record
from penstock.client.errors import InvalidRequest
from penstock.client.records import checked_json
from penstock.kernel.errors import PenstockError

F = TypeVar("F", bound=Callable[..., Any])

BATCH_MAX = 1_000
"""Lines of standard input that travel together at most."""


@click.group()
@server_options
@click.pass_context
def topic(ctx: click.Context, url: str, token: str | None, timeout_s: float) -> None:
    """Write, read and follow topics of a running server.

    On a terminal the answers are tables for people; piped or with --json they are lines of JSON.
    """
    ctx.obj = {"url": url, "token": token, "timeout_s": timeout_s}


def command(function: F) -> F:
    """Give a command a client, and make its errors one line on standard error."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> None:
        try:
            settings = ClientSettings(**click.get_current_context().obj)
            with Client(settings) as client:
                function(client, *args, **options)
        except PenstockError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except BrokenPipeError:
            sys.stderr.close()  # the reader has had enough, and that is fine
            sys.exit(0)

    return run  # type: ignore[return-value]  # the context stands in for the first argument


json_flag = click.option(
    "--json", "as_json", is_flag=True, help="Lines of JSON, also on a terminal."
)


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.argument("values", metavar="[JSON]...", nargs=-1)
@click.option("--tag", help="A tag for every record.")
@click.option("--node", help="Who writes; readers that name the same node do not get the records.")
@click.option("--key", help="An idempotency key: the same write again lands once.")
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
    """Write records: JSON values as arguments, or lines of standard input.

    Standard input is read if there are no values, or the only one is -. Each line is one record.
    """
    output = Output(as_json)
    if values and values != ("-",):
        records = [_record(text, tag) for text in values]
        output.written(client.write(name, records, node=node, idempotency_key=key or AUTO_KEY))
    elif key is not None:
        lines = [_record(line, tag) for line in _lines(sys.stdin)]
        output.written(client.write(name, lines, node=node, idempotency_key=key))
    else:
        _write_lines(client, output, name, tag, node)


def _write_lines(
    client: Client, output: Output, name: str, tag: str | None, node: str | None
) -> None:
    """Write standard input as it comes; a bad line ends it after those before have landed."""
    with client.writer(
        name, node=node, batch_max=BATCH_MAX, on_written=output.written_some
    ) as writer:
        for line in _lines(sys.stdin):
            writer.send(_record(line, tag))
    output.written_all()


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--from-seq", type=click.IntRange(min=0), default=0, help="Begin after this seq.")
@click.option("--from-ts", type=click.IntRange(min=0), help="Begin at this time, in ms since 1970.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many records.")
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
    """Read the records of a topic, up to its head."""
    output = Output(as_json)
    left = limit
    page_size = min(1_000, limit or 1_000)
    for page in client.read(
        name, from_seq=from_seq, from_ts=from_ts, page_size=page_size, tag=tag, include_tags=True
    ):
        if page.tombstone is not None:
            output.gap(name, page.tombstone)
        records = page.records if left is None else page.records[:left]
        output.records(None, records)
        left = None if left is None else left - len(records)
        if left == 0:
            return


@topic.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--from-seq", type=click.IntRange(min=0), help="Begin after this seq, not at the head."
)
@click.option("--tag", help="Only records with this tag; a * at its end matches a prefix.")
@json_flag
@command
def follow(
    client: Client, names: tuple[str, ...], from_seq: int | None, tag: str | None, as_json: bool
) -> None:
    """Show records as they are written, until Ctrl-C; goes on after a restart of the server."""
    output = Output(as_json)
    start = Position(tail=True) if from_seq is None else Position(from_seq)
    shown = names if len(names) > 1 else None
    try:
        with client.watch(dict.fromkeys(names, start), tag=tag, include_tags=True) as watch:
            for event in watch:
                output.event(event, named=shown is not None)
    except KeyboardInterrupt:
        output.end()


@topic.command("list")
@click.option("--prefix", default="", help="Only topics whose names begin with this.")
@json_flag
@command
def list_(client: Client, prefix: str, as_json: bool) -> None:
    """List topics by name."""
    Output(as_json).topics(client.list_topics(prefix))


@topic.command()
@click.argument("name", metavar="TOPIC")
@json_flag
@command
def show(client: Client, name: str, as_json: bool) -> None:
    """Show what a topic holds and how it is set."""
    Output(as_json).topic(client.get_topic(name, touch=False))


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option("--if-empty", is_flag=True, help="Refuse if the topic holds records.")
@click.option(
    "--before-seq", type=click.IntRange(min=0), help="Delete only records before this seq."
)
@click.option("--match", metavar="TAG", help="Delete only records with this tag, or tags as 'a*'.")
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
    """Delete a topic, or with --before-seq or --match some of its records."""
    output = Output(as_json)
    if before_seq is None and match is None:
        output.topic_deleted(client.delete_topic(name, if_empty=if_empty))
        return
    if if_empty:
        raise click.UsageError("expected --if-empty for a whole topic, found it with records")
    output.records_deleted(client.delete_records(name, before_seq=before_seq, match=match))


def _lines(stream: Iterable[str]) -> Iterator[str]:
    return (line for line in stream if line.strip())


def _record(text: str, tag: str | None) -> Record:
    try:
        return Record(checked_json(text.strip().encode()), tag=tag)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error} (text needs quotes: '\"text\"')") from error
