from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.protocol.errors import InvalidSchedule
from penstock.tables.core.schedule import AtTimes, Every, parse_cron, parse_schedule


@pytest.mark.parametrize(
    ("text", "interval_ms"),
    [("10s", 10_000), ("1h30m", 5_400_000), ("250ms", 250), ("1d", 86_400_000),
     ("2w", 1_209_600_000), ("1m", 60_000), ("1m1ms", 60_001), (" 5S ", 5_000)],
)  # fmt: skip
def test_a_duration_is_whole_numbers_with_units(text, interval_ms):
    assert parse_schedule(text) == Every(interval_ms)


@pytest.mark.parametrize("text", ["10s", "1h30m", "250ms", "1d2h3m4s5ms", "1w"])
def test_a_duration_is_written_as_it_is_read(text):
    assert parse_schedule(text).text == text


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "1.5s", "30m1h", "10 s", "0s", "367d", "x"])
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(InvalidSchedule, match=r"expected a duration|an interval|a cron expression"):
        parse_schedule(text)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("expression", "after", "fires"),
    [
        ("* * * * *", "2026-03-01T10:00:00", "2026-03-01T10:01:00"),
        ("*/15 * * * *", "2026-03-01T10:59:59", "2026-03-01T11:00:00"),
        ("0 6 * * mon-fri", "2026-03-06T06:00:00", "2026-03-09T06:00:00"),
        ("0 0 1 jan *", "2026-03-01T00:00:00", "2027-01-01T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        ("0 0 13 * fri", "2026-03-01T00:00:00", "2026-03-06T00:00:00"),
        ("0 0 * * 7", "2026-03-01T00:00:00", "2026-03-08T00:00:00"),
        ("0 0 * * 5-7", "2026-03-02T00:00:00", "2026-03-06T00:00:00"),
        ("30 0 0 * * *", "2026-03-01T00:00:29", "2026-03-01T00:00:30"),
        ("*/20 59 23 31 12 *", "2026-01-01T00:00:00", "2026-12-31T23:59:00"),
        ("@hourly", "2026-03-01T10:00:00", "2026-03-01T11:00:00"),
        ("@yearly", "2026-03-01T10:00:00", "2027-01-01T00:00:00"),
        ("10/20 * * * *", "2026-03-01T10:31:00", "2026-03-01T10:50:00"),
    ],
)
def test_cron_fires_when_it_says(expression, after, fires):
    assert parse_cron(expression).next_ms(at(after)) == at(fires)


def test_cron_fires_strictly_after_a_moment_within_the_same_second():
    cron = parse_cron("* * * * * *")
    assert cron.next_ms(999) == 1_000
    assert cron.next_ms(1_000) == 2_000


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        ("* * * *", "5 or 6 fields, not 4"),
        ("60 * * * *", "minute from 0 to 59"),
        ("* 24 * * *", "hour from 0 to 23"),
        ("* * 0 * *", "day of the month"),
        ("* * * 13 *", "month from 1 to 12"),
        ("* * * * 8", "day of the week"),
        ("5-1 * * * *", "found '5-1'"),
        ("*/0 * * * *", r"found '\*/0'"),
        ("a * * * *", "found 'a'"),
        ("1,,2 * * * *", "found ''"),
        ("0 0 30 2 *", "never fires"),
        ("@sometimes", "@hourly"),
    ],
)
def test_a_wrong_cron_expression_says_what_was_expected(expression, match):
    with pytest.raises(InvalidSchedule, match=match):
        parse_schedule(expression)


def test_cron_is_written_with_its_fields():
    assert parse_schedule("@daily") == AtTimes(parse_cron("0 0 * * *"))
    assert parse_schedule(" 0  6 * *  MON ").text == "0 6 * * mon"
