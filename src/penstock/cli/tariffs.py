"""`penstock metering tariffs`: tariffs, and which meter has which tariff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import json_flag, server_options
from penstock.cli.output import DIM, Output, many
from penstock.cli.topic import command
from penstock.client import Client
from penstock.metering.errors import BadTariff
from penstock.metering.hours import instant_of
from penstock.metering.tariff_files import Sheet, parse_sheet
from penstock.metering.tariffs import (
    METER,
    SPACE,
    TARIFF,
    Tariff,
    meter_id,
    name_of,
    parse_meter,
    parse_tariff,
    tariff_id,
)
from penstock.protocol.answers import EntityState

if TYPE_CHECKING:
    from penstock.metering.tariff_space import Changed

BAND_TIMES = ("months", "days", "hours")


@click.group()
@server_options
@click.pass_context
def tariffs(ctx: click.Context, /, **place: Any) -> None:
    """Show and change tariffs and their assignment to meters.

    Tariffs and meters are entities of a space on the topic server. Several people may change them
    at once: each change takes effect as a whole or reports why not. The options below may also
    follow the command.
    """
    ctx.obj = place


space_option = click.option(
    "--space", default=SPACE, show_default=True, help="The space that holds the tariffs."
)
from_option = click.option(
    "--from", "valid_from", required=True, metavar="DAY",
    help="Start: 2026-07-01, or a time; without an offset, in the tariff's own time zone.",
)  # fmt: skip
at_option = click.option(
    "--at",
    "at_seq",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Show the state as of this seq.",
)


@tariffs.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--replace", is_flag=True,
    help="Replace the files' tariffs and meters instead of only adding new versions.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Only check the files.")
@space_option
@json_flag
@command
def load(
    client: Client, files: tuple[Path, ...], replace: bool, check: bool, space: str, as_json: bool
) -> None:
    """Load tariffs and assignments from .toml, .json and .csv files.

    All files are read and checked first. Loading them again changes nothing.
    """
    sheet = read_sheets(files)
    output = TariffOutput(as_json)
    if check:
        output.checked(sheet)
        return
    with _space(client, space) as there:
        output.changed(there.load(sheet, replace=replace), space)


@tariffs.command("set")
@click.argument("name", metavar="TARIFF")
@from_option
@click.option("--price", metavar="PRICE", help="One price per kWh at all times.")
@click.option(
    "--band", "bands", multiple=True, metavar="'PRICE hours=22-6 days=mon-fri months=10-2'",
    help="A price and the hours in which it applies. May be repeated.",
)  # fmt: skip
@click.option("--otherwise", metavar="PRICE", help="The price outside of all bands.")
@click.option("--zone", help="Time zone of the bands' hours. [default: unchanged, or UTC]")
@space_option
@json_flag
@command
def set_(
    client: Client,
    name: str,
    valid_from: str,
    price: str | None,
    bands: tuple[str, ...],
    otherwise: str | None,
    zone: str | None,
    space: str,
    as_json: bool,
) -> None:
    """Create a tariff, or give one a new price from a given day on.

    Replaces a version with the same start; other versions stay.
    """
    version = version_of(price, bands, otherwise) | {"valid_from": valid_from}
    with _space(client, space) as there:
        TariffOutput(as_json).changed(there.add(name, [version], zone=zone), space)


@tariffs.command()
@click.argument("name", metavar="TARIFF")
@click.argument("meters", nargs=-1, required=True, metavar="METER...")
@from_option
@space_option
@json_flag
@command
def assign(
    client: Client, name: str, meters: tuple[str, ...], valid_from: str, space: str, as_json: bool
) -> None:
    """Assign a tariff to meters from a given day on."""
    with _space(client, space) as there:
        TariffOutput(as_json).changed(there.assign(name, meters, valid_from), space)


@tariffs.command()
@click.argument("names", nargs=-1, metavar="[TARIFF]...")
@at_option
@space_option
@json_flag
@command
def show(
    client: Client, names: tuple[str, ...], at_seq: int | None, space: str, as_json: bool
) -> None:
    """Show all or some tariffs, now or as of a seq; errors are highlighted."""
    wanted = {tariff_id(name) for name in names}
    found = list(client.list_entities(space, TARIFF, at_seq=at_seq))
    meters = list(client.list_entities(space, METER, at_seq=found[0].head)) if found else []
    chosen = [state for state in found if not wanted or state.entity in wanted]
    _check_found(names, {state.entity for state in found}, tariff_id, "tariff")
    TariffOutput(as_json).tariffs(chosen, meters)


@tariffs.command("meters")
@click.argument("names", nargs=-1, metavar="[METER]...")
@click.option("--tariff", help="Only meters that have, had or will have this tariff.")
@at_option
@space_option
@json_flag
@command
def meters_(
    client: Client,
    names: tuple[str, ...],
    tariff: str | None,
    at_seq: int | None,
    space: str,
    as_json: bool,
) -> None:
    """Show the tariffs of all or some meters, now or as of a seq."""
    wanted = {meter_id(name) for name in names}
    found = list(client.list_entities(space, METER, at_seq=at_seq))
    _check_found(names, {state.entity for state in found}, meter_id, "meter")
    TariffOutput(as_json).meters([s for s in found if not wanted or s.entity in wanted], tariff)


def read_sheets(files: tuple[Path, ...]) -> Sheet:
    """The contents of several files combined; the same tariff in two of them is refused."""
    whole = Sheet()
    for path in files:
        try:
            sheet = parse_sheet(path.name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadTariff(f"cannot read {path}: {error}") from error
        twice = sorted(sheet.tariffs.keys() & whole.tariffs.keys())
        if twice:
            raise BadTariff(f"{path.name}: tariff {twice[0]!r} is in another file too; keep one")
        whole.tariffs |= sheet.tariffs
        whole.assignments += sheet.assignments
    return whole


def version_of(price: str | None, bands: tuple[str, ...], otherwise: str | None) -> dict[str, Any]:
    """A version as the options of `set` have it.

    >>> version_of(None, ("0.19 hours=22-6",), "0.36")["bands"]
    [{'price_per_kwh': '0.19', 'hours': '22-6'}]
    """
    if price is not None:
        if bands or otherwise is not None:
            raise BadTariff("give either --price, or --band and --otherwise, not both")
        return {"kind": "flat", "price_per_kwh": price}
    if not bands:
        raise BadTariff("give the new price: --price, or --band and --otherwise")
    made = [_band(text) for text in bands]
    kind = "seasonal" if any("months" in band for band in made) else "time_of_use"
    rest = {} if otherwise is None else {"otherwise": otherwise}
    return {"kind": kind, "bands": made, **rest}


def _band(text: str) -> dict[str, str]:
    price, *rest = text.split() or [""]
    band = {"price_per_kwh": price}
    for part in rest:
        key, equals, value = part.partition("=")
        if key not in BAND_TIMES or not equals or key in band:
            raise BadTariff(
                f"expected a band such as '0.19 hours=22-6 days=mon-fri', found {text!r}"
            )
        band[key] = value
    return band


def _check_found(
    names: tuple[str, ...], found: set[str], id_of: Callable[[str], str], what: str
) -> None:
    for name in names:
        if id_of(name) not in found:
            raise BadTariff(f"there is no {what} named {name!r}")


def _space(client: Client, space: str) -> Any:
    from penstock.metering.tariff_space import TariffSpace  # the runtime is slow to import

    client.health()  # fail early: a runtime would wait for a server that is down
    return TariffSpace(client.settings, space)


class TariffOutput(Output):
    """The output of `penstock metering tariffs`."""

    def checked(self, sheet: Sheet) -> None:
        """Files that passed the check."""
        count = {"tariffs": len(sheet.tariffs), "assignments": len(sheet.assignments)}
        if self.plain:
            self.json(count)
        else:
            self._say(f"right: {many(count['tariffs'], 'tariff')}, "
                      f"{many(count['assignments'], 'assignment')}")  # fmt: skip

    def changed(self, changed: Changed, space: str) -> None:
        """A change that was made on the server."""
        if self.plain:
            self.json(changed._asdict())
        elif changed.seq is None:
            self._say(f"nothing to change: {space} has all of it")
        else:
            rest = f" · {changed.unchanged:,} were so already" if changed.unchanged else ""
            said = [many(n, what) for n, what in
                    ((changed.tariffs, "tariff"), (changed.meters, "meter")) if n]  # fmt: skip
            self._say(f"changed {' and '.join(said)} in {space} at seq {changed.seq}{rest}")

    def tariffs(self, tariffs: Sequence[EntityState], meters: Sequence[EntityState]) -> None:
        """Tariffs with all their versions."""
        counts = _counts(meters)
        if self.plain:
            for state in tariffs:
                name = name_of(state.entity)
                _, problem = _parsed(state.doc)
                facts = {"tariff": name, "seq": state.seq, "head": state.head}
                self.json(facts | {"meters": counts[name], "problem": problem, "doc": state.doc})
            return
        from rich.text import Text

        for state in tariffs:
            self._tariff(name_of(state.entity), state.doc, counts)
        said = f"as of seq {tariffs[0].head}" if tariffs else "no tariffs"
        self.console.print(Text(said, DIM))

    def meters(self, meters: Sequence[EntityState], tariff: str | None) -> None:
        """Meters with their assignments."""
        from rich.table import Table
        from rich.text import Text

        table = Table("meter", "from", "tariff")
        for state in meters:
            name = name_of(state.entity)
            try:
                assigned, problem = parse_meter(state.doc), None
            except BadTariff as error:
                assigned, problem = (), error.message
            if tariff is not None and tariff not in {each.tariff for each in assigned}:
                continue
            if self.plain:
                facts = {"meter": name, "seq": state.seq, "head": state.head}
                self.json(facts | {"problem": problem, "doc": state.doc})
            elif problem is not None:
                table.add_row(Text(name), "", Text(problem, "bold red"))
            for number, each in enumerate(assigned):
                begin = f"{each.valid_from:%Y-%m-%d %H:%M} UTC"
                table.add_row(Text("" if number else name), begin, Text(each.tariff))
        if not self.plain:
            self.console.print(table if table.row_count else "no meters")

    def _tariff(self, name: str, doc: Any, counts: Mapping[str, int]) -> None:
        from rich.text import Text

        tariff, problem = _parsed(doc)
        if tariff is None:
            self.console.print(Text.assemble((name, "cyan"), " ", (problem or "", "bold red")))
            return
        facts = f" · {tariff.zone.key} · {many(counts[name], 'meter')}"
        self.console.print(Text.assemble((name, "cyan"), facts))
        for version in doc["versions"]:
            begin = instant_of(version["valid_from"]).astimezone(tariff.zone)
            self._say(f"  from {begin:%Y-%m-%d %H:%M}: {version['kind']}")
            for price, when in prices_of(version):
                self._say(f"    {price:>8}  {when}".rstrip())

    def _say(self, text: str) -> None:
        from rich.text import Text

        self.console.print(Text(text), soft_wrap=True)


def prices_of(version: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The prices of a version, each with its hours in words.

    >>> prices_of({"bands": [{"hours": "22-6", "price_per_kwh": "0.19"}], "otherwise": "0.36"})
    [('0.19', 'hours 22-6'), ('0.36', 'otherwise')]
    """
    if "price_per_kwh" in version:
        return [(version["price_per_kwh"], "")]
    found = []
    for band in version["bands"]:
        when = [f"{key} {band[key]}" for key in ("months", "days", "hours") if key in band]
        found.append((band["price_per_kwh"], ", ".join(when)))
    return [*found, *([(version["otherwise"], "otherwise")] if "otherwise" in version else [])]


def _parsed(document: Any) -> tuple[Tariff | None, str | None]:
    try:
        return parse_tariff(document), None
    except BadTariff as error:
        return None, error.message


def _counts(meters: Sequence[EntityState]) -> Counter[str]:
    """How many meters have, had or will have each tariff."""
    found: Counter[str] = Counter()
    for state in meters:
        try:
            found.update({each.tariff for each in parse_meter(state.doc)})
        except BadTariff:
            continue
    return found
