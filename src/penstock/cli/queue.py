"""`penstock queue`: look at the queues of a running server, and at what failed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.cli.options import Outage, json_flag, server_options
from penstock.cli.output import DIM, Output, grid, many, visible, when
from penstock.client import Client, ClientSettings
from penstock.protocol.queues import QueueState

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def queue() -> None:
    """Show queues of a running server; replay or discard dead letters."""


@queue.command()
@click.argument("name", metavar="QUEUE")
@json_flag
@server_options
def show(name: str, as_json: bool, **place: Any) -> None:
    """Show the jobs of a queue by state, its workers and its dead letters."""
    output = Output(as_json)
    with Client(ClientSettings(**place), on_trouble=Outage()) as client:
        found = client.get_queue(name)
    if output.plain:
        output.json(found)
    else:
        _show(output, found)


def letter_options(function: F) -> F:
    """Which dead letters a command is about."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="All dead letters of the queue."),
        click.option("--reason", help='Those with this reason; "" selects those without one.'),
        click.option(
            "--seq",
            "seqs",
            type=click.IntRange(min=1),
            multiple=True,
            help="A dead letter by its seq in the dead letter topic. May be repeated.",
        ),
    ):
        function = option(function)
    return function


def _chosen(seqs: tuple[int, ...], reason: str | None, everything: bool) -> dict[str, Any]:
    if bool(seqs) + (reason is not None) + everything != 1:
        raise click.UsageError("say which dead letters: by --seq, by --reason, or --all")
    return {"seqs": seqs or None, "reason": reason, "everything": everything}


@queue.command()
@click.argument("name", metavar="QUEUE")
@letter_options
@click.option("--to", metavar="TOPIC", help="Destination topic. [default: the queue itself]")
@json_flag
@server_options
def redrive(
    name: str,
    seqs: tuple[int, ...],
    reason: str | None,
    everything: bool,
    to: str | None,
    as_json: bool,
    **place: Any,
) -> None:
    """Turn dead letters back into jobs, in one commit; they keep a note of their earlier failure.

    Moves at most 10,000 letters, oldest first, and reports whether more remain.
    """
    chosen = _chosen(seqs, reason, everything)
    with Client(ClientSettings(**place), on_trouble=Outage()) as client:
        moved = client.redrive(name, to=to, **chosen)
    output = Output(as_json)
    if output.plain:
        output.json(moved)
    else:
        output.console.print(f"{many(moved.moved, 'letter')} moved to {visible(moved.to)}")
        _show_rest(output, moved.skipped, moved.more)


@queue.command()
@click.argument("name", metavar="QUEUE")
@letter_options
@click.confirmation_option(
    "--yes", prompt="Delete these dead letters for ever?", help="Do not ask for confirmation."
)
@json_flag
@server_options
def discard(
    name: str,
    seqs: tuple[int, ...],
    reason: str | None,
    everything: bool,
    as_json: bool,
    **place: Any,
) -> None:
    """Delete dead letters permanently."""
    chosen = _chosen(seqs, reason, everything)
    with Client(ClientSettings(**place), on_trouble=Outage()) as client:
        gone = client.discard_letters(name, **chosen)
    output = Output(as_json)
    if output.plain:
        output.json(gone)
    else:
        output.console.print(f"{many(gone.discarded, 'letter')} deleted")
        _show_rest(output, gone.skipped, gone.more)


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("seqs", metavar="SEQ...", type=click.IntRange(min=1), nargs=-1, required=True)
@click.option("--node", required=True, help="The worker that holds the jobs.")
@click.option("--reason", default="", help="Why they were not finished.")
@click.option(
    "--delay-ms",
    type=click.IntRange(min=0),
    default=0,
    help="Delay before the jobs become ready again.",
)
@json_flag
@server_options
def nack(
    name: str,
    seqs: tuple[int, ...],
    node: str,
    reason: str,
    delay_ms: int,
    as_json: bool,
    **place: Any,
) -> None:
    """Return jobs held by a worker to their queue, to be delivered again."""
    with Client(ClientSettings(**place), on_trouble=Outage()) as client:
        answer = client.nack(name, node, seqs, delay_ms=delay_ms, reason=reason)
    output = Output(as_json)
    if output.plain:
        output.json(answer)
    else:
        output.console.print(f"{many(answer.nacked, 'job')} returned to {visible(name)}")
        _show_rest(output, answer.skipped, more=False)


def _show_rest(output: Output, skipped: list[int], more: bool) -> None:
    if skipped:
        names = ", ".join(map(str, skipped[:10])) + (", ..." if len(skipped) > 10 else "")
        output.console.print(f"not there any more, or held by a worker: {names}", style=DIM)
    if more:
        output.console.print("more of them wait: run the command again", style=DIM)


def _show(output: Output, found: QueueState) -> None:
    output.console.print(
        f"{visible(found.queue)}: {found.ready:,} ready, {found.leased:,} leased, "
        f"{found.delayed:,} delayed, {found.dead:,} dead"
    )
    if found.oldest_ready_ms is not None:
        output.console.print(f"the next job has waited for {found.oldest_ready_ms:,} ms")
    if found.workers:
        rows = grid("worker", "jobs", "first lease ends")
        for worker in found.workers:
            ends = when(worker.next_deadline, millis=False)
            rows.add_row(visible(worker.node), f"{worker.leases:,}", ends)
        output.console.print(rows)
    if found.letters:
        rows = grid("dead letter", "was", "deliveries", "redriven", "since", "tag", "reason")
        for letter in found.letters:
            rows.add_row(
                str(letter.seq),
                "" if letter.src_seq is None else str(letter.src_seq),
                "" if letter.deliveries is None else str(letter.deliveries),
                str(letter.redrives or ""),
                when(letter.ts, millis=False),
                visible(letter.tag or ""),
                visible(letter.reason or ""),
            )
        output.console.print(rows)
    if found.dead > len(found.letters):
        left = many(found.dead - len(found.letters), "older letter")
        output.console.print(f"and {left} in {visible(found.dead_letter or '')}", style=DIM)
