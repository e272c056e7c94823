from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.errors import InvalidSchedule
from penstock.tables.core.schedule import parse_cron

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000


def field(least, most):
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, most).map(lambda n: f"*/{n}")
    stepped = st.tuples(span, st.integers(1, most)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    item = st.one_of(number.map(str), span, stepped)
    return st.one_of(st.just("*"), step, st.lists(item, min_size=1, max_size=3).map(",".join))


def said(text: str, least: int, most: int) -> set[int]:
    """What a field says, written down the long way."""
    found = set()
    for item in text.split(","):
        body, _, step = item.partition("/")
        first, _, last = body.partition("-")
        low = least if body == "*" else int(first)
        high = most if body == "*" else int(last or first)
        found |= {value for value in range(low, high + 1) if (value - low) % int(step or 1) == 0}
    return found


def fires(expression: str, moment: datetime) -> bool:
    minute, hour, day, month, weekday = expression.split()
    in_month = moment.day in said(day, 1, 31)
    in_week = moment.isoweekday() % 7 in {value % 7 for value in said(weekday, 0, 6)}
    either = day[0] != "*" and weekday[0] != "*"
    return (
        moment.minute in said(minute, 0, 59)
        and moment.hour in said(hour, 0, 23)
        and moment.month in said(month, 1, 12)
        and (in_month or in_week if either else in_month and in_week)
    )


def naive_next_ms(expression: str, after_ms: int, days: int) -> int | None:
    """Look at every minute, one by one."""
    moment = datetime.fromtimestamp(after_ms // 60_000 * 60, UTC) + timedelta(minutes=1)
    end = moment + timedelta(days=days)
    while moment < end:
        if fires(expression, moment):
            return int(moment.timestamp()) * 1_000
        moment += timedelta(minutes=1)
    return None


def exists(days: set[int], months: set[int]) -> bool:
    longest = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
    return any(day <= longest[month] for day in days for month in months)


@settings(max_examples=80)
@given(
    field(0, 59), field(0, 23), field(1, 28), st.just("*"), field(0, 7),
    st.integers(START_MS, START_MS + 1_000 * DAY_MS),
)  # fmt: skip
def test_the_next_fire_is_the_one_found_minute_by_minute(
    minute, hour, day, month, weekday, after_ms
):
    expression = f"{minute} {hour} {day} {month} {weekday}"
    expected = naive_next_ms(expression, after_ms, days=2)
    found = parse_cron(expression).next_ms(after_ms)
    if expected is None:
        assert found > after_ms + 2 * DAY_MS
    else:
        assert found == expected


@settings(max_examples=150)
@given(field(0, 59), field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7),
       st.integers(0, 4_000_000_000_000))  # fmt: skip
def test_a_fire_is_after_the_moment_at_a_time_that_the_expression_names(
    second, minute, hour, day, month, weekday, after_ms
):
    expression = f"{second} {minute} {hour} {day} {month} {weekday}"
    try:
        cron = parse_cron(expression)
    except InvalidSchedule:
        assert weekday[0] == "*"
        assert not exists(said(day, 1, 31), said(month, 1, 12))
        return
    found = cron.next_ms(after_ms)
    moment = datetime.fromtimestamp(found / 1_000, UTC)
    assert found > after_ms
    assert moment.second in said(second, 0, 59)
    assert fires(f"{minute} {hour} {day} {month} {weekday}", moment)


@given(field(0, 59), field(0, 23), st.integers(START_MS, START_MS + 400 * DAY_MS))
def test_fires_follow_each_other_without_a_gap_in_between(minute, hour, after_ms):
    cron = parse_cron(f"{minute} {hour} * * *")
    first = cron.next_ms(after_ms)
    assert cron.next_ms(first - 1) == first
    assert cron.next_ms(first) > first
