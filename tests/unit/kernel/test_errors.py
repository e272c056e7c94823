"""Errors are grouped by what the caller does next."""

from __future__ import annotations

from traceback import walk_tb

from penstock.kernel import errors


def test_every_kind_of_error_has_its_own_code_and_carries_its_facts() -> None:
    kinds = errors.PenstockError.__subclasses__()
    first_family = [kind for kind in kinds if kind.__module__ == errors.__name__]
    assert len({kind.code for kind in first_family}) == len(first_family) == 7
    error = errors.Gone("expected 5, found 3", expected=5)
    assert (str(error), error.detail) == ("expected 5, found 3", {"expected": 5})


def test_busy_can_say_when_to_come_back() -> None:
    assert errors.Busy("full", retry_after_ms=250, depth=9).retry_after_ms == 250
    assert errors.Busy("full").retry_after_ms is None


def test_an_error_that_is_raised_anew_keeps_nothing_of_the_times_before() -> None:
    kept = errors.Unavailable("another node leads")

    def raised(error: errors.PenstockError) -> int:
        try:
            raise error
        except errors.PenstockError as found:
            return len(list(walk_tb(found.__traceback__)))

    assert [raised(kept) for _ in range(3)] == [1, 2, 3]
    assert [raised(errors.without_traceback(kept)) for _ in range(3)] == [1, 1, 1]
