"""State is a function of committed entries: replicas are equal, however they are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.topics.core.partition import Partition
from penstock.topics.core.queue import Queue
from penstock.topics.core.topic import Topic
from penstock.topics.core.versions import NEWEST, OLDEST_WRITTEN
from tests.property.topics.core.replicas import History


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_replicas_are_equal_after_every_entry_whatever_is_read_on_each(first: int) -> None:
    compared = looked_through = redriven = 0
    for seed in range(first, first + 20):
        history = History(seed)
        try:
            history.run()
        except Exception as error:
            raise AssertionError(f"History({seed}).run()") from error
        compared += history.compared
        looked_through += history.looked_through
        redriven += history.redriven
    assert compared > 20 * 10, "too little was committed to tell anything"
    assert looked_through > 10, "time was to have passed that no entry told of"
    assert redriven > 0, "no job died and was made a job again"


def test_replicas_are_equal_whichever_version_entries_are_written_in() -> None:
    """One that was restored in between was told everything by entries of both versions, too."""
    written: Counter[int] = Counter()
    refused = 0
    for seed in range(40):
        history = History(seed, OLDEST_WRITTEN)
        try:
            history.run()
        except Exception as error:
            raise AssertionError(f"History({seed}, {OLDEST_WRITTEN}).run()") from error
        written += history.written
        refused += history.refused
    assert min(written[version] for version in range(OLDEST_WRITTEN, NEWEST + 1)) > 100
    assert refused > 0, "no command needed the newer version"


def test_a_reason_that_is_not_in_the_entries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the reason of a nack kept by the leader alone, its replicas would differ."""
    apply = Queue._nack

    def forgetful(self: Queue, entry: Any) -> None:
        apply(self, entry if self._entries else replace(entry, reason=""))

    monkeypatch.setattr(Queue, "_nack", forgetful)
    with pytest.raises(AssertionError):
        run_many(60)


def run_many(histories: int) -> None:
    for seed in range(histories):
        History(seed).run()


def _passing_first(verb: Callable[..., Any]) -> Callable[..., Any]:
    """What a topic or queue did before: time passes when it is looked at."""

    def pass_and_look(self: Any, *args: Any) -> Any:
        self.pass_time(args[-2] if verb.__name__ == "decide_claim" else args[0])
        return verb(self, *args)

    return pass_and_look


@pytest.mark.parametrize(
    ("kind", "verb"), [(Topic, "at"), (Queue, "counts"), (Queue, "decide_claim")]
)
def test_looking_that_lets_time_pass_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: type, verb: str
) -> None:
    monkeypatch.setattr(kind, verb, _passing_first(getattr(kind, verb)))
    with pytest.raises(AssertionError):
        run_many(20)


@pytest.mark.parametrize(
    ("verb", "broken"),
    [("_is_due", lambda *_: True), ("_note_due", lambda *_: None)],
    ids=["a date that is too early shows", "a date is forgotten"],
)
def test_dates_that_change_the_state_are_found(
    monkeypatch: pytest.MonkeyPatch, verb: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Partition, verb, broken)
    with pytest.raises(AssertionError):
        run_many(60)
