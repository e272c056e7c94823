"""`penstock status` and `penstock top`: how a server and everything around it stands."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.cli.options import json_flag, server_options
from penstock.cli.output import DIM, Output, grid, visible, when
from penstock.kernel.units import format_ms
from penstock.protocol.part_answers import PartState, Verdict, Waiting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.client import Client

GOOD: Final = frozenset({"ok", "slow"})
"""Levels with exit code 0: slower is not a failure."""
STYLES: Final = {
    "ok": "green",
    "slow": "yellow",
    "failing": "red",
    "refusing": "red",
    "away": "red",
}
TOP_S: Final = 1.0
LINES_MAX: Final = 20


class Standing(NamedTuple):
    """What one look at a server gives."""

    verdict: Verdict
    waiting: Sequence[Waiting] = ()
    parts: Sequence[PartState] = ()

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return self._asdict()


@click.command()
@server_options
@json_flag
def status(as_json: bool, **place: Any) -> None:
    """Summarise the state of a server in one sentence, with what is waiting and why.

    The exit code is 0 if all is well or merely slow, 1 if something is failing, refusing or away.
    """
    output = Output(as_json)
    with _client(place) as client:
        found = look(client)
    if output.plain:
        output.json(found.plain())
    else:
        output.console.print(picture(found))
    if found.verdict.level not in GOOD:
        sys.exit(1)


@click.command()
@server_options
@json_flag
def top(as_json: bool, **place: Any) -> None:
    """Show the state of a server, updated every second, until Ctrl-C."""
    output = Output(as_json)
    try:
        with _client(place) as client:
            _follow(client, output)
    except KeyboardInterrupt:
        output.end()


def _follow(client: Client, output: Output) -> None:
    if output.plain:
        while True:
            found = look(client)
            output.json(found.plain())
            sys.stdout.flush()
            time.sleep(TOP_S)
    from rich.live import Live

    with Live(console=output.console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(picture(look(client)), refresh=True)
            time.sleep(TOP_S)


def _client(place: dict[str, Any]) -> Client:
    """One try for each look: that the server is away is an answer."""
    from penstock.client import Client, ClientSettings
    from penstock.client.retry import RetryPolicy

    return Client(ClientSettings(**place, retry=RetryPolicy(tries_max=1)))


def look(client: Client) -> Standing:
    """The verdict of a server and what waits there; if it does not answer, that is the verdict."""
    from penstock.protocol.errors import Forbidden, ServerUnavailable
    from penstock.server.overview.verdict import Facts, verdict

    try:
        told, waiting = client.verdict(), client.waiting().waiting
        with suppress(Forbidden):  # a key with prefixes is not told of parts
            return Standing(told, waiting, client.parts().parts)
        return Standing(told, waiting)
    except ServerUnavailable as error:
        now_ms = time.time_ns() // 1_000_000
        return Standing(verdict(Facts(now_ms, None, visible(error.message))))


def picture(found: Standing) -> RenderableType:
    """A look for people."""
    from rich.console import Group
    from rich.text import Text

    told = found.verdict
    shown: list[RenderableType] = [
        Text(told.sentence, f"bold {STYLES.get(told.level, '')}"),
    ]
    if told.line:
        shown.append(Text(visible(told.line)))
    shown += [  # the line above has room for a few facts: a damaged file is always named
        Text(visible(fact.text))
        for fact in told.facts
        if fact.failed is not None and fact.text not in told.line
    ]
    if found.parts:
        shown += [Text(), _parts(found.parts)]
    if found.waiting:
        shown += [Text(), _waiting(found.waiting)]
    if len(found.waiting) > LINES_MAX:
        shown.append(Text(f"and {len(found.waiting) - LINES_MAX} more", DIM))
    return Group(*shown)


def _parts(parts: Sequence[PartState]) -> RenderableType:
    from rich.text import Text

    table = grid("part", "state", "since", "what it says")
    for part in parts:
        table.add_row(
            Text(visible(part.part)),
            Text(part.state, STYLES["away"] if part.state in ("away", "failing") else ""),
            Text(when(part.since, millis=False)),
            Text(visible(part.text)),
        )
    return table


def _waiting(waiting: Sequence[Waiting]) -> RenderableType:
    from rich.text import Text

    table = grid("what waits", "for", "why", "what would help")
    for each in waiting[:LINES_MAX]:
        table.add_row(
            Text(visible(f"{each.kind} {each.name}")),
            Text("–" if each.for_ms is None else format_ms(each.for_ms)),
            Text(visible(each.text)),
            Text(visible(each.help), DIM),
        )
    return table
