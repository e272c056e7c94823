"""What failures do to tables, to those below them, and to nobody else: by a real coordinator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.tables.core.failures import FailurePolicy
from penstock.tables.core.history import RefreshOutcome
from tests.integration.tables.place import Place

EVERY = "20ms"


@pytest.fixture
def serial(places: Callable[..., Place]) -> Place:
    place = places("sqlite", parallel_refresh_mode="off")
    place.write("raw", [1])
    return place


def status(place: Place, table: str) -> str:
    return place.warehouse.table(table).status.value


def test_three_retryable_failures_suspend_and_resuming_catches_up_all_that_was_missed(
    serial: Place,
) -> None:
    warehouse = serial.warehouse
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        serial.until(serial.fresh)
        serial.fault("a", "retryable")
        for number in range(2, 6):
            serial.write("raw", [number])
        serial.until(lambda: status(serial, "a") == "SUSPENDED")
        failed = [r for r in warehouse.history("a") if r.outcome is RefreshOutcome.FAILED]
        assert len(failed) == 3
        # The job ends a moment after its table was suspended.
        serial.until(lambda: "3 failures in a row" in warehouse.why("a").text)
        serial.write("raw", [6])
        serial.fault("a", None)
        assert serial.rows("a") == {(1,): 1}, "it stands still until somebody resumes it"
        refreshes = len(warehouse.history("a"))
        warehouse.resume("a")
        serial.until(serial.fresh)
    assert serial.rows("a") == {(number,): 1 for number in range(1, 7)}
    assert len(warehouse.history("a")) == refreshes + 1, "one refresh catches up everything"


@pytest.mark.parametrize("mode", ["off", "on"])
def test_an_engine_that_is_away_suspends_nobody_and_everybody_is_told(
    places: Callable[..., Place], mode: str
) -> None:
    place = places(parallel_refresh_mode=mode, retry=FailurePolicy(base_ms=20, cap_ms=200))
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        place.until(place.fresh)
        place.fault("a", "away")
        place.write("raw", [2])
        place.until(lambda: len(warehouse.jobs()) > 5, "more tries than a failure has")
        assert status(place, "a") == "ACTIVE"
        place.until(lambda: warehouse.why("a").reason.value == "engine_away", "the reason")
        place.until(lambda: "no engine is there" in warehouse.why("a").text)
        place.until(lambda: "no engine is there" in warehouse.health().text, "health to say so")
        place.fault("a", None)
        place.until(place.fresh, "a to catch up by itself")
        place.until(lambda: warehouse.health().state.value == "ok", "health to be well again")
    assert [record.outcome for record in warehouse.history("a")] == [RefreshOutcome.SUCCEEDED] * 2
    place.check_contents()


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_query_that_ends_an_engine_three_times_is_suspended_and_the_others_go_on(
    places: Callable[..., Place], mode: str
) -> None:
    place = places(parallel_refresh_mode=mode, retry=FailurePolicy(base_ms=20, cap_ms=200))
    warehouse = place.warehouse
    place.write("raw", [1])
    for name in ("a", "killer"):
        warehouse.create(name, "SELECT id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        place.until(place.fresh)
        place.fault("killer", "lost")
        place.write("raw", [2])
        place.until(lambda: status(place, "killer") == "SUSPENDED")
        text = "3 failures in a row, the last: the engine ended during the refresh"
        place.until(lambda: text in warehouse.why("killer").text, "the reason")
        place.until(lambda: text in warehouse.health().text, "health to say so")
        place.until(lambda: place.rows("a") == {(1,): 1, (2,): 1}, "the other table")
        place.fault("killer", None)
        warehouse.resume("killer")
        place.until(place.fresh, "the killer to catch up")
    assert {r.outcome for r in warehouse.history()} == {RefreshOutcome.SUCCEEDED}
    place.check_contents()


def test_one_permanent_failure_is_an_error_and_tables_below_go_on_and_say_so(
    serial: Place,
) -> None:
    warehouse = serial.warehouse
    serial.write("other", [10])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM a UNION ALL SELECT id FROM other", schedule=EVERY)
    with warehouse.coordinator():
        serial.until(serial.fresh)
        serial.fault("a", "permanent")
        serial.write("raw", [2])
        serial.until(lambda: status(serial, "a") == "ERROR")
        assert sum(r.outcome is RefreshOutcome.FAILED for r in warehouse.history("a")) == 1
        serial.until(lambda: "the query of a is wrong" in warehouse.why("a").text)
        serial.write("other", [20])
        serial.until(lambda: (20,) in serial.rows("b"), "b to go on")
        assert warehouse.history("b", limit=1)[0].stale == ("table:a",)
        serial.fault("a", None)
        warehouse.resume("a")
        serial.until(serial.fresh)
        serial.until(lambda: (2,) in serial.rows("b"))
    assert warehouse.history("b", limit=1)[0].stale == ()
    serial.check_contents()


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_corrected_query_does_not_pay_for_the_wrong_one_that_was_still_running(
    places: Callable[..., Place], mode: str
) -> None:
    place = places(parallel_refresh_mode=mode)
    warehouse = place.warehouse
    place.write("raw", [1])
    place.fault("a", "hold")
    warehouse.create("a", "SELECT nope(id) AS id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        place.until((place.faults / "a.held").exists, "the wrong query to run")
        warehouse.create_or_replace("a", "SELECT id FROM raw", schedule=EVERY)
        place.fault("a", None)
        place.until(lambda: (1,) in place.rows("a") if place.fresh() else False, "the right one")
        assert status(place, "a") == "ACTIVE"
    assert warehouse.details() == {}
    place.check_contents()


def test_failures_of_a_person_count_for_nothing_but_a_wrong_query_is_an_error(
    serial: Place,
) -> None:
    warehouse = serial.warehouse
    warehouse.create("a", "SELECT id FROM raw", schedule="on demand")
    assert warehouse.refresh("a").ok
    faults = ("retryable", "retryable", "retryable", "retryable")

    def fail() -> None:
        for fault in faults:
            serial.fault("a", fault)
            assert not warehouse.refresh("a", force=True).ok
            assert status(serial, "a") == "ACTIVE"
        serial.fault("a", "permanent")
        assert not warehouse.refresh("a", force=True).ok
        serial.until(lambda: status(serial, "a") == "ERROR", "the error to be told")
        serial.until(lambda: "is wrong" in warehouse.why("a").text, "why to say so")

    fail()
    warehouse.resume("a")
    with warehouse.coordinator():
        serial.until(lambda: warehouse.health().state.value == "ok")
        fail()
    history = [record.outcome for record in warehouse.history("a")]
    assert history == [RefreshOutcome.FAILED] * 2 * (len(faults) + 1) + [RefreshOutcome.SUCCEEDED]


def test_a_person_who_refreshes_a_suspended_table_by_hand_brings_it_back(serial: Place) -> None:
    warehouse, other = serial.warehouse, serial.open()
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    try:
        with warehouse.coordinator():
            serial.until(serial.fresh)
            serial.fault("a", "retryable")
            serial.write("raw", [2])
            serial.until(lambda: status(serial, "a") == "SUSPENDED")
            serial.fault("a", None)
            assert other.refresh("a", here=True).ok
            serial.until(lambda: status(serial, "a") == "ACTIVE")
            serial.write("raw", [3])
            serial.until(serial.fresh)
    finally:
        other.close()
    serial.check_contents()


def test_what_was_refreshed_by_hand_once_and_stopped_since_stays_stopped_after_a_restart(
    serial: Place,
) -> None:
    warehouse = serial.warehouse
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    assert warehouse.refresh("a", here=True).ok
    serial.fault("a", "permanent")
    serial.write("raw", [2])
    with warehouse.coordinator():
        serial.until(lambda: status(serial, "a") == "ERROR")
    assert [row.status.value for row in warehouse.status()] == ["ERROR"], "also without one"
    with warehouse.coordinator():
        serial.until(lambda: warehouse.why("a").reason.value == "error", "the next life to look")
        warehouse.create("b", "SELECT id FROM raw", schedule=EVERY)
        serial.until(lambda: (2,) in serial.rows("b") if warehouse.history("b") else False)
        assert status(serial, "a") == "ERROR"
        assert "is wrong" in warehouse.details()["a"]


def test_a_person_who_refreshes_a_stopped_table_while_nobody_coordinates_brings_it_back(
    places: Callable[..., Place], kind: str
) -> None:
    serial = places(kind, parallel_refresh_mode="off")
    serial.write("raw", [1])
    warehouse = serial.warehouse
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    serial.fault("a", "permanent")
    with warehouse.coordinator():
        serial.until(lambda: status(serial, "a") == "ERROR")
    serial.fault("a", None)
    assert warehouse.refresh("a", here=True).ok
    with warehouse.coordinator():
        serial.until(lambda: status(serial, "a") == "ACTIVE")
