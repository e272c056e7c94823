"""`penstock events`: the last things that happened to a running server."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from penstock.cli.options import Outage, json_flag, server_options
from penstock.cli.output import DIM, Output, visible, when
from penstock.client import Client, ClientSettings, Records
from penstock.protocol.server_events import EVENTS_KEPT, EVENTS_TOPIC, ServerEvent

SHOWN: Final = 20
STYLES: Final = {"ok": "green", "slow": "yellow", "bad": "red", "info": ""}


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(1, EVENTS_KEPT),
    default=SHOWN,
    show_default=True,
    help="Show at most this many of the newest events.",
)
@click.option("--kind", help="Only events of this kind, such as rung or snapshot_made.")
@click.option(
    "--follow", is_flag=True, help="Keep showing new events as they happen, until Ctrl-C."
)
@json_flag
@server_options
def events(limit: int, kind: str | None, follow: bool, as_json: bool, **place: Any) -> None:
    """Show the latest events of a running server.

    Such as pressure rising or falling, a snapshot, a disconnected watcher, or a part that was lost
    and came back. Oldest first.
    """
    output = Output(as_json)
    with Client(ClientSettings(**place), on_trouble=Outage()) as client:
        page = client.events(limit=limit, kind=kind)
        for event in reversed(page.events):
            _show(output, event)
        if not page.events and not follow and not output.plain:
            output.console.print("nothing has happened yet")
        if follow:
            _follow(client, output, page.last_id, kind)


def _follow(client: Client, output: Output, after_id: int, kind: str | None) -> None:
    """Show what happens from now on; the topic is made by the first event."""
    try:
        with client.watch(prefixes=[EVENTS_TOPIC], tag=kind) as watch:
            for news in watch:
                if not isinstance(news, Records) or news.topic != EVENTS_TOPIC:
                    continue
                for record in news.records:
                    event = record.data_as(ServerEvent)
                    if event.id > after_id:
                        _show(output, event)
                sys.stdout.flush()
    except KeyboardInterrupt:
        output.end()


def _show(output: Output, event: ServerEvent) -> None:
    if output.plain:
        output.json(event)
        return
    from rich.text import Text

    name = f" {visible(event.name)}" if event.name else ""
    line = Text.assemble(
        (f"{when(event.ts, millis=False)} ", DIM),
        (event.kind, STYLES[event.level]),
        (name, "cyan"),
        f" {visible(event.text)}",
    )
    output.console.print(line, soft_wrap=True)
