"""Tariffs and assignments on a server with several writers: a change is accepted or refused.

Each change is computed from the current documents and committed if they have not changed since. On
a conflict it is computed again, so concurrent additions to one tariff are all kept.
"""

from __future__ import annotations

import difflib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from penstock.client.blocking.runtime import Handle, Runtime
from penstock.client.errors import HandlerFailed
from penstock.client.runtime.events import Event
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import DEFAULT_URL, ClientSettings
from penstock.metering.errors import BadTariff, about
from penstock.metering.hours import zone_of
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariffs import (
    SPACE,
    TARIFF,
    meter_id,
    name_of,
    tariff_id,
    with_assignments,
    with_versions,
)

ENTITIES_MAX: Final = 200
"""Entities that one commit writes."""
AHEAD_MAX: Final = 8
"""Commits on their way at the same time."""


class Changed(NamedTuple):
    """What a change did: entities that are others now, and those that were so already."""

    tariffs: int = 0
    meters: int = 0
    unchanged: int = 0
    seq: int | None = None
    """The last commit; None if nothing had to change."""


class TariffSpace:
    """The tariffs of a space, for a `with` block. For threads; `Runtime` has the rules.

    Every method returns when the change is on the server's disk, or raises: `BadTariff` if it is
    invalid, `CommitConvergenceError` if it keeps conflicting with other writers.
    """

    def __init__(self, url: str | ClientSettings = DEFAULT_URL, space: str = SPACE) -> None:
        self._runtime = Runtime(url, space)
        self._runtime.on_error(lambda _failure: None)  # all of them are raised
        self._runtime.register("tariffs", self._set_tariffs)
        self._runtime.register("assignments", self._assign)
        self._done: dict[str, Changed] = {}

    def __enter__(self) -> Self:
        self._runtime.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._runtime.close(drain=error is None)

    def names(self) -> list[str]:
        """The tariffs there are."""
        return [name_of(entity) for entity in self._runtime.entities(TARIFF)]

    def load(self, sheet: Sheet, *, replace: bool = False) -> Changed:
        """Add what a file has: tariffs in one go, up to 200 of them, then meters, as many at once.

        Versions and assignments that are not in it stay, unless `replace`: then what the file names
        becomes what the file says.
        """
        self._check_names({row.tariff for row in sheet.assignments}, sheet.tariffs)
        meters: dict[str, list[Row]] = defaultdict(list)
        for row in sheet.assignments:
            meters[row.meter].append(row)
        work: list[tuple[str, Any]] = [
            ("tariffs", {"replace": replace, "tariffs": part}) for part in _parts(sheet.tariffs)
        ]
        work += [("assignments", {"replace": replace, "meters": part}) for part in _parts(meters)]
        return self._through(work)

    def add(
        self, name: str, versions: Sequence[Mapping[str, Any]], *, zone: str | None = None
    ) -> Changed:
        """Add versions to a tariff; creates it if it does not exist."""
        tariff = {"versions": list(versions)} | ({} if zone is None else {"zone": zone})
        return self._through([("tariffs", {"replace": False, "tariffs": {name: tariff}})])

    def assign(self, tariff: str, meters: Iterable[str], valid_from: str) -> Changed:
        """Give meters a tariff from a day or a time on."""
        rows = [Row(meter, tariff, valid_from) for meter in meters]
        return self.load(Sheet(assignments=rows))

    # In the runtime's thread

    def _set_tariffs(self, tx: Transaction, event: Event) -> None:
        changed = 0
        for name, wanted in event.data["tariffs"].items():
            entity = tariff_id(name)
            before = tx.get(entity)
            basis = None if event.data["replace"] else before
            with about(f"tariff {name!r}"):
                made = with_versions(basis, wanted["versions"], zone=wanted.get("zone"))
            if made != before:
                tx.set(entity, made)
                changed += 1
        self._done[event.id] = Changed(changed, 0, len(event.data["tariffs"]) - changed)

    def _assign(self, tx: Transaction, event: Event) -> None:
        meters = event.data["meters"]
        wanted = {tariff for rows in meters.values() for _, tariff, _ in rows}
        zones = {
            name: zone_of(tx.get(tariff_id(name), "/zone", "UTC"))
            for name in wanted if tx.exists(tariff_id(name))
        }  # fmt: skip
        changed = 0
        for meter, rows in meters.items():
            entity = meter_id(meter)
            before = tx.get(entity)
            basis = None if event.data["replace"] else before
            with about(f"meter {meter!r}"):
                made = with_assignments(basis, [(tariff, when) for _, tariff, when in rows], zones)
            if made != before:
                tx.set(entity, made)
                changed += 1
        self._done[event.id] = Changed(0, changed, len(meters) - changed)

    # The rest

    def _through(self, work: Iterable[tuple[str, Any]]) -> Changed:
        """Send changes, a few at a time, and add up what came of them."""
        total = Changed()
        waiting: deque[Handle] = deque()
        for kind, data in work:
            waiting.append(self._runtime.send(kind, data))
            if len(waiting) >= AHEAD_MAX:
                total = self._add(total, waiting.popleft())
        while waiting:
            total = self._add(total, waiting.popleft())
        return total

    def _add(self, total: Changed, handle: Handle) -> Changed:
        try:
            seq = handle.result().seq
        except HandlerFailed as error:
            if isinstance(error.__cause__, BadTariff):
                raise error.__cause__ from None
            raise
        done = self._done.pop(handle.id)
        return Changed(
            total.tariffs + done.tariffs, total.meters + done.meters,
            total.unchanged + done.unchanged, total.seq if seq is None else seq,
        )  # fmt: skip

    def _check_names(self, wanted: set[str], coming: Iterable[str]) -> None:
        """Refuse tariffs that do not exist, naming the nearest one, before anything is sent."""
        known = {*self.names(), *coming}
        for name in sorted(wanted - known):
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; do you mean {near[0]!r}?" if near else ""
            raise BadTariff(f"there is no tariff {name!r}{hint}")


def _parts(items: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The same in parts that one commit can write."""
    left = iter(items.items())
    while part := dict(islice(left, ENTITIES_MAX)):
        yield part
