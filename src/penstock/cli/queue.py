"""`penstock queue`: look at the queues of a running server."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.options import Outage, json_flag, server_options
from penstock.cli.output import DIM, Output, grid, many, visible, when
from penstock.client import Client, ClientSettings
from penstock.protocol.queues import QueueState


@click.group()
def queue() -> None:
    """Look at queues of a running server: jobs, workers, dead letters."""


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
        rows = grid("dead letter", "was", "deliveries", "since", "tag")
        for letter in found.letters:
            rows.add_row(
                str(letter.seq),
                "" if letter.src_seq is None else str(letter.src_seq),
                "" if letter.deliveries is None else str(letter.deliveries),
                when(letter.ts, millis=False),
                visible(letter.tag or ""),
            )
        output.console.print(rows)
    if found.dead > len(found.letters):
        left = many(found.dead - len(found.letters), "older letter")
        output.console.print(f"and {left} in {visible(found.dead_letter or '')}", style=DIM)
