"""The output of `penstock metering tariffs`: for people, or lines of JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.output import DIM, Output, many
from penstock.metering.errors import BadTariff
from penstock.metering.hours import instant_of
from penstock.metering.tariff_files import Sheet
from penstock.metering.tariffs import Tariff, name_of, parse_meter, parse_tariff
from penstock.protocol.answers import EntityState

if TYPE_CHECKING:
    from penstock.metering.tariff_space import Changed


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
