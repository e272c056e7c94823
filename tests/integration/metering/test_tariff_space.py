"""Tariffs on a real server: changed by several at once, from Python and from the shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client
from penstock.metering.errors import BadTariff
from penstock.metering.tariff_files import Row, Sheet
from penstock.metering.tariff_space import Changed, TariffSpace
from penstock.protocol.commits import Commit, CommitWrite
from tests.conformance.servers import ServerProcess

NUMBERS = count(1)
LIMIT_S = 120
TOML = """
[tariffs.night]
zone = "Europe/Berlin"
[[tariffs.night.versions]]
valid_from = 2026-01-01
kind = "time_of_use"
bands = [{ hours = "22-6", price_per_kwh = 0.190 }]
otherwise = 0.36
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    try:
        yield process.start().address.url
    finally:
        process.close()


@pytest.fixture
def space() -> str:
    return f"tariffs{next(NUMBERS)}"


def flat(price: str, since: str = "2026-01-01") -> dict[str, Any]:
    return {"kind": "flat", "valid_from": since, "price_per_kwh": price}


def test_three_who_add_to_one_tariff_at_once_leave_a_list_of_three(url: str, space: str) -> None:
    ready = threading.Barrier(3)
    failures: list[BaseException] = []

    def add(month: int) -> None:
        try:
            with TariffSpace(url, space) as there:
                ready.wait(LIMIT_S)
                for day in (1, 2, 3):
                    there.add("flat", [flat(f"0.{month}", f"2026-{month:02}-{day:02}")])
                    there.assign("flat", ["7"], f"2026-{month:02}-{day:02}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=add, args=(month,), daemon=True) for month in (3, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failures == []
    with Client(url) as client:
        versions = client.get_entity(space, "tariff:flat").doc["versions"]
        assigned = client.get_entity(space, "meter:7").doc["assignments"]
    days = [f"2026-0{month}-0{day}T00:00:00Z" for month in (1, 2, 3) for day in (1, 2, 3)]
    assert [each["valid_from"] for each in versions] == days
    assert [each["valid_from"] for each in assigned] == days


def test_loading_twice_changes_nothing_and_replace_takes_the_rest_away(
    url: str, space: str
) -> None:
    rows = [Row(str(number), "flat", "2026-01-01") for number in range(450)]
    sheet = Sheet({"flat": {"versions": [flat("0.3")]}}, rows)
    with TariffSpace(url, space) as there:
        assert there.load(sheet) == Changed(tariffs=1, meters=450, unchanged=0, seq=4)
        assert there.load(sheet) == Changed(unchanged=451)
        assert there.add("flat", [flat("0.4", "2026-07-01")]).seq == 5
        assert there.load(sheet) == Changed(unchanged=451)
        assert there.load(sheet, replace=True) == Changed(tariffs=1, unchanged=450, seq=6)
    with Client(url) as client:
        doc = client.get_entity(space, "tariff:flat").doc
    assert doc == {"versions": [flat("0.3") | {"valid_from": "2026-01-01T00:00:00Z"}]}


def test_a_change_that_makes_no_sense_leaves_everything_as_it_was(url: str, space: str) -> None:
    with TariffSpace(url, space) as there:
        there.add("flat", [flat("0.3")])
        with pytest.raises(BadTariff, match="tariff 'flat': version 1: expected a price"):
            there.add("flat", [flat("0,4")])
        with pytest.raises(BadTariff, match=r"there is no tariff .falt.; do you mean .flat."):
            there.assign("falt", ["7"], "2026-01-01")
        with pytest.raises(BadTariff, match="meter '7': expected a day such as"):
            there.assign("flat", ["7"], "soon")
        assert there.names() == ["flat"]
    with Client(url) as client:
        assert client.get_topic(space).head_seq == 1


def called(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "metering", "tariffs", *words],
        env=os.environ | {"PENSTOCK_URL": url}, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def run(url: str, *words: str) -> list[Any]:
    done = called(url, *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(url: str, *words: str) -> str:
    done = called(url, *words)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


def test_files_are_loaded_shown_and_changed_from_the_shell(
    url: str, space: str, tmp_path: Path
) -> None:
    toml, csv = tmp_path / "prices.toml", tmp_path / "meters.csv"
    toml.write_text(TOML)
    csv.write_text("meter,tariff,valid_from\n7,night,2026-01-01\n8,night,2026-01-01\n")
    here = ("--space", space)
    files = (str(toml), str(csv))
    assert run(url, "load", *files, "--check", *here) == [{"tariffs": 1, "assignments": 2}]
    (done,) = run(url, "load", *files, *here)
    assert done == {"tariffs": 1, "meters": 2, "unchanged": 0, "seq": 2}
    bands = ("--band", "0.2 months=10-2 hours=22-6", "--otherwise", "0.4")
    (done,) = run(url, "set", "seasons", "--from", "2026-02-01", *bands, *here)
    assert done["seq"] == 3
    (done,) = run(url, "assign", "seasons", "8", "9", "--from", "2026-02-01", *here)
    assert (done["meters"], done["seq"]) == (2, 4)
    night, seasons = run(url, "show", *here)
    assert (night["tariff"], night["meters"], night["problem"]) == ("night", 2, None)
    assert night["doc"]["versions"][0]["valid_from"] == "2025-12-31T23:00:00Z"
    assert seasons["doc"]["versions"] == [
        {"kind": "seasonal", "valid_from": "2026-02-01T00:00:00Z", "otherwise": "0.4",
         "bands": [{"price_per_kwh": "0.2", "months": "10-2", "hours": "22-6"}]}
    ]  # fmt: skip
    assert [row["tariff"] for row in run(url, "show", "--at", "2", *here)] == ["night"]
    meters = run(url, "meters", "--tariff", "seasons", *here)
    assert [row["meter"] for row in meters] == ["8", "9"]
    assert len(meters[0]["doc"]["assignments"]) == 2


def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(
    url: str, space: str, tmp_path: Path
) -> None:
    here = ("--space", space)
    bad = tmp_path / "bad.toml"
    bad.write_text(TOML.replace("otherwise = 0.36", ""))
    assert (
        "Error: bad.toml: tariff 'night': version 1: no price for Mondays in January at "
        "06:00: add a band, or 'otherwise' for all other hours"
    ) in refused(url, "load", str(bad), *here)
    assert "give the new price: --price, or --band" in refused(
        url, "set", "a", "--from", "2026-01-01", *here
    )
    assert "expected a band such as" in refused(
        url, "set", "a", "--from", "2026-01-01", "--band", "0.2 hour=1-2", *here
    )
    assert "expected a price such as '0.31'" in refused(
        url, "set", "a", "--from", "2026-01-01", "--price", "cheap", *here
    )
    assert "there is no tariff 'a'" in refused(
        url, "assign", "a", "7", "--from", "2026-01-01", *here
    )
    with Client(url) as client:
        assert [row.topic for row in client.list_topics(space)] == []


def test_a_server_that_is_not_there_is_said_so_soon() -> None:
    words = ("--timeout-s", "0.5", "set", "flat", "--from", "2026-01-01", "--price", "1")
    assert "cannot connect to http://127.0.0.1:1" in refused("http://127.0.0.1:1", *words)


def test_a_document_that_somebody_broke_by_hand_stands_out(url: str, space: str) -> None:
    with TariffSpace(url, space) as there:
        there.add("good", [flat("1")])
    with Client(url) as client:
        write = CommitWrite("tariff:bad", set={"versions": [flat("1")]})
        client.commit(space, Commit(session="by-hand", local_seq=1, writes=(write,)))
    bad, good = run(url, "show", "--space", space)
    assert good["problem"] is None
    assert bad["problem"] == (
        "version 1: expected a time such as '2026-01-01T00:00:00Z', found '2026-01-01'"
    )
    assert "tariff 'bad': version 1: expected a time" in refused(
        url, "set", "bad", "--from", "2026-02-01", "--price", "2", "--space", space
    )
