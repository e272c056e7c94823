"""What the next refresh of a table would read, and what would be chosen, by the catalog alone.

Nothing is run. A worker decides by the same estimates, after it has read the changes: rows that
came and went between two refreshes are counted here and not there.
"""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.kernel.errors import Gone, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import TableVersion
from penstock.tables import rows
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode, TableDefinition
from penstock.tables.delta.compiler import Compiled
from penstock.tables.delta.cost import Workload, choose, learned
from penstock.tables.delta.explain import PlainNames
from penstock.tables.delta.modes import Differentiation
from penstock.tables.delta.rules import Texts

Inputs = dict[str, dict[str, int | None]]


def next_refresh(
    lake: Catalog, table: TableDefinition, found: Differentiation, frontier: Frontier | None
) -> dict[str, Any]:
    """What would be read of each input, and the mode that would be chosen now, with the reason."""
    if frontier is None:
        return _full(ReasonCode.FIRST_LOAD, "it was never filled", {})
    inputs, lost = _inputs(lake, table, frontier)
    if table.mode is Mode.FULL:
        return _full(ReasonCode.AS_CONFIGURED, "it is configured as FULL", inputs)
    if found.compiled is None:
        return _full(found.reason, found.text, inputs)
    if lost:
        return _full(ReasonCode.HISTORY_EXPIRED, lost, inputs)
    changed = {name for name, read in inputs.items() if read["changed_rows"] != 0}
    if not changed:
        text = "nothing it reads has changed"
        return {"mode": None, "reason": None, "text": text, "inputs": inputs, "choice": None}
    with lake.look() as reader:
        past = [json.loads(choice) for (choice,) in reader.rows(rows.SELECT_CHOICES, table.name)]
        has_state = bool(reader.rows(rows.SELECT_VALUE, f"{rows.STATE}{table.name}"))
    read_rows = _read_rows(found.compiled, changed, inputs, has_state=has_state)
    workload = Workload(
        full_rows=sum(read["rows_held"] or 0 for read in inputs.values()),
        result_rows=_held(lake.table_at(table.name)),
        delta_rows=sum(read["changed_rows"] or 0 for read in inputs.values()),
        delta_read_rows=sum(read_rows.values()),
    )
    for name, count in read_rows.items():
        inputs[name]["rows_read"] = count
    only = Mode.DIFFERENTIAL if table.mode is Mode.DIFFERENTIAL else None
    choice = choose(workload, learned(past), only=only)
    is_full = choice.mode is Mode.FULL
    reason = ReasonCode.FULL_IS_CHEAPER if is_full else ReasonCode.AS_CONFIGURED
    return {
        "mode": choice.mode.value,
        "reason": reason.value,
        "text": f"{workload.delta_rows:,} changed rows: about {choice.differential_ms:,.0f} ms "
        f"from the changes, {choice.full_ms:,.0f} ms for the whole query",
        "inputs": inputs,
        "choice": choice.as_dict(),
    }


def _full(reason: ReasonCode, text: str, inputs: Inputs) -> dict[str, Any]:
    return {
        "mode": Mode.FULL.value,
        "reason": reason.value,
        "text": text,
        "inputs": inputs,
        "choice": None,
    }


def _inputs(lake: Catalog, table: TableDefinition, frontier: Frontier) -> tuple[Inputs, str]:
    """Rows held and changed of each input, None where only its server knows; and what is lost."""
    found: Inputs = {}
    lost = ""
    for name in table.sources:
        at = frontier.get(name)
        found[name] = {"rows_held": None, "changed_rows": None, "rows_read": 0}
        if not isinstance(at, LakePosition):
            continue
        try:
            version = lake.table_at(name)
            found[name]["rows_held"] = _held(version)
            found[name]["changed_rows"] = lake.changes(version.table, at.snapshot).count
        except (Gone, Rejected) as error:  # rejected: the frontier is ahead of a restored lake
            lost = error.message
    return found, lost


def _read_rows(
    compiled: Compiled, changed: set[str], inputs: Inputs, *, has_state: bool
) -> dict[str, int]:
    """How many old rows of each input the delta query reads, before anything is pruned."""
    names = PlainNames()
    if has_state and compiled.root is not None:
        texts = Texts(names, changed)
        sql = texts.complete(texts.delta(compiled.root.aggregate.child) or "")
    else:
        sql = compiled.delta(changed, names) or ""
    return {
        name: len(re.findall(re.escape(names.old(name)), sql)) * (read["rows_held"] or 0)
        for name, read in inputs.items()
    }


def _held(version: TableVersion) -> int:
    return sum(file.record_count for file in version.files) + int(version.inlined.rows.num_rows)
