"""What the next refresh of a table would read, and what would be chosen, by the catalog alone.

Nothing is run. A worker decides by the same estimates.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.kernel.errors import Gone, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import held_bytes, held_rows
from penstock.tables import rows
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.delta.cost import Held, choose, learned, workload
from penstock.tables.delta.modes import Differentiation
from penstock.tables.delta.stages import Staged, all_staged

Told = dict[str, dict[str, int | None]]


def next_refresh(
    lake: Catalog, table: TableDefinition, found: Differentiation, frontier: Frontier | None
) -> dict[str, Any]:
    """What would be read of each input, and the mode that would be chosen now, with the reason."""
    if frontier is None:
        return _full(ReasonCode.FIRST_LOAD, "it was never filled", {})
    inputs, lost = _inputs(lake, table, frontier)
    told = {name: _told(held) for name, held in inputs.items()}
    if table.mode is Mode.FULL:
        return _full(ReasonCode.AS_CONFIGURED, "it is configured as FULL", told)
    if found.compiled is None:
        return _full(found.reason, found.text, told)
    if lost:
        return _full(ReasonCode.HISTORY_EXPIRED, lost, told)
    changed = {name for name, held in inputs.items() if held is None or held.changed}
    if not changed:
        text = "nothing it reads has changed"
        return {"mode": None, "reason": None, "text": text, "inputs": told, "choice": None}
    with lake.look() as reader:
        past = [json.loads(choice) for (choice,) in reader.rows(rows.SELECT_CHOICES, table.name)]
        has_state = bool(reader.rows(rows.SELECT_VALUE, f"{rows.STATE}{table.name}"))
    plan = all_staged(found.compiled) if has_state else Staged((), found.compiled, None)
    reads = plan.reads(changed)
    held = {name: held or Held() for name, held in inputs.items()}
    facts = workload(held, reads, held_rows(lake.table_at(table.name)))
    for name, each in held.items():
        told[name]["rows_read"] = each.rows * reads.get(name, 0)
    only = Mode.DIFFERENTIAL if table.mode is Mode.DIFFERENTIAL else None
    choice = choose(facts, learned(past), only=only)
    is_full = choice.mode is Mode.FULL
    reason = ReasonCode.FULL_IS_CHEAPER if is_full else ReasonCode.AS_CONFIGURED
    return {
        "mode": choice.mode.value,
        "reason": reason.value,
        "text": f"{facts.delta_rows:,} changed rows: about {choice.differential_ms:,.0f} ms "
        f"from the changes, {choice.full_ms:,.0f} ms for the whole query",
        "inputs": told,
        "choice": choice.as_dict(),
    }


def _full(reason: ReasonCode, text: str, inputs: Told) -> dict[str, Any]:
    return {
        "mode": Mode.FULL.value,
        "reason": reason.value,
        "text": text,
        "inputs": inputs,
        "choice": None,
    }


def _told(held: Held | None) -> dict[str, int | None]:
    if held is None:
        return {"rows_held": None, "changed_rows": None, "rows_read": 0}
    return {"rows_held": held.rows, "changed_rows": held.changed, "rows_read": 0}


def _inputs(
    lake: Catalog, table: TableDefinition, frontier: Frontier
) -> tuple[dict[str, Held | None], str]:
    """What each input holds, None where only its server knows; and what is lost."""
    found: dict[str, Held | None] = {}
    lost = ""
    for name in table.sources:
        at = frontier.get(name)
        found[name] = None
        if not isinstance(at, LakePosition):
            continue
        try:
            version = lake.table_at(name)
            changed = lake.change_span(version.table, at.snapshot).count
            found[name] = Held(held_rows(version), held_bytes(version), changed)
        except (Gone, Rejected) as error:  # rejected: the frontier is ahead of a restored lake
            lost = error.message
    return found, lost
