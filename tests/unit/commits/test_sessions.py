"""What sessions were told, and what is known of it when most is forgotten."""

from __future__ import annotations

import pytest

from penstock.commits.sessions import CommitAnswer, SessionAnswers
from penstock.protocol.errors import CommitProtocol


def filled(session: str, numbers: range, sessions: SessionAnswers) -> None:
    for number in numbers:
        sessions.keep(session, number, CommitAnswer(number, 0, number))


def test_the_last_answers_of_a_session_are_kept_and_older_numbers_refused() -> None:
    sessions = SessionAnswers(each_max=3)
    filled("s", range(1, 6), sessions)
    assert [sessions.find("s", number) is not None for number in range(1, 7)] == [
        False, False, True, True, True, False,
    ]  # fmt: skip
    for number in (1, 2):
        with pytest.raises(CommitProtocol, match="after local_seq 2"):
            sessions.check_age("s", number)
    sessions.check_age("s", 6)
    sessions.check_age("t", 1)


def test_numbers_that_come_out_of_order_are_never_taken_for_new_once_one_is_forgotten() -> None:
    sessions = SessionAnswers(each_max=2)
    for number in (9, 3, 7):
        sessions.keep("s", number, CommitAnswer(number, 0, number))
    assert sessions.find("s", 9) is None
    assert sessions.find("s", 3) is not None
    with pytest.raises(CommitProtocol):
        sessions.check_age("s", 5)  # it may have been before 9; nobody knows
    sessions.check_age("s", 10)


def test_a_limit_of_all_answers_forgets_the_oldest_of_any_session() -> None:
    sessions = SessionAnswers(answers_max=4)
    filled("s", range(1, 4), sessions)
    filled("t", range(1, 4), sessions)
    assert sessions.count == 4
    assert list(sessions.floors()) == [("s", 2)]
    assert [(kept.session, kept.local_seq) for kept in sessions.kept()] == [
        ("s", 3), ("t", 1), ("t", 2), ("t", 3),
    ]  # fmt: skip


def test_what_a_snapshot_has_of_sessions_makes_them_again() -> None:
    sessions = SessionAnswers(each_max=5, answers_max=8)
    for number in range(1, 40):
        filled(f"s{number % 4}", range(number, number + 1), sessions)
    again = SessionAnswers(each_max=5, answers_max=8)
    again.restore(sessions.floors(), sessions.kept())
    assert list(again.kept()) == list(sessions.kept())
    assert sorted(again.floors()) == sorted(sessions.floors())
    filled("s1", range(90, 99), sessions)
    filled("s1", range(90, 99), again)
    assert list(again.kept()) == list(sessions.kept())


def test_one_busy_session_does_not_make_the_order_grow() -> None:
    sessions = SessionAnswers(each_max=4)
    filled("s", range(1, 10_000), sessions)
    assert sessions.count == 4
    assert len(sessions._order) < 2_000
