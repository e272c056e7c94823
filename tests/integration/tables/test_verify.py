"""`table verify`: contents that are compared with the query they were made by."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.protocol.errors import NoContents
from tests.integration.tables.place import ENGINE, Place


def test_contents_are_compared_as_multisets_at_their_frontier(place: Place) -> None:
    warehouse = place.warehouse
    place.write("raw", [1, 2, 2, 3])
    warehouse.create("a", "SELECT id, id / 7.0::DOUBLE AS part FROM raw WHERE id > 1")
    with pytest.raises(NoContents):
        warehouse.verify("a")
    assert warehouse.refresh("a").ok
    assert warehouse.verify("a").is_same
    place.write("raw", [5])
    assert warehouse.verify("a").is_same, "what came since is not in the contents"
    assert warehouse.refresh("a").ok
    change = place.lake.begin()
    table = place.lake.table("a")
    rows = pa.table({"id": [2, 9], "part": [2 / 7, 9 / 7]}).cast(table.arrow_schema)
    change.add_files(table, [place.lake.write(table, rows, token=change.token)])
    place.lake.commit(change)
    found = warehouse.verify("a")
    assert (found.missing, found.surplus, found.columns) == (0, 2, ("id", "part"))
    assert sorted(row[0] for row in found.surplus_rows) == [2, 9], "one of three, and a stranger"
    environment = {
        "PENSTOCK_CATALOG": place.address,
        "PENSTOCK_RUNNER": ENGINE,
        "PENSTOCK_RUNNER_OPTIONS": json.dumps(place.options),
    }
    told = CliRunner().invoke(main, ("table", "verify", "a"), env=environment)
    said = json.loads(told.stdout)
    assert (told.exit_code, said["same"], said["surplus"]) == (1, False, 2)
    assert {row["id"] for row in said["examples"]["surplus"]} == {2, 9}
    assert warehouse.refresh("a", force=True).ok
    told = CliRunner().invoke(main, ("table", "verify", "a"), env=environment)
    assert (told.exit_code, json.loads(told.stdout)["same"]) == (0, True)
