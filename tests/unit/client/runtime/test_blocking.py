"""The runtime for threads: nobody waits for ever for one that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.client.blocking.runtime import Runtime
from penstock.client.errors import ClientClosed
from tests.unit.client.scripted import DEADLINE_S

NOBODY = "http://127.0.0.1:9"


def in_threads(count: int, work: Callable[[], None]) -> tuple[list[threading.Thread], list[str]]:
    """Threads that do something until it raises, and what it did."""
    raised: list[str] = []

    def run() -> None:
        try:
            while True:
                work()
        except Exception as error:
            raised.append(type(error).__name__)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, raised


def test_calls_that_race_with_the_end_of_a_runtime_all_end():
    for _ in range(20):
        runtime = Runtime(NOBODY)
        called = threading.Event()

        def call(runtime: Runtime = runtime, called: threading.Event = called) -> None:
            runtime.get("a")
            called.set()

        threads, raised = in_threads(4, call)
        assert called.wait(DEADLINE_S)
        runtime.close()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert raised == ["ClientClosed"] * 4


def test_whoever_waits_for_something_is_told_that_the_runtime_has_ended():
    runtime = Runtime(NOBODY)
    asked = threading.Event()

    def never(_: object) -> bool:
        asked.set()
        return False

    threads, raised = in_threads(1, lambda: runtime.until(never))
    assert asked.wait(DEADLINE_S)
    runtime.close()
    threads[0].join(DEADLINE_S)
    assert raised == ["ClientClosed"]


def test_a_call_that_has_not_begun_when_the_runtime_ends_is_told_so():
    runtime = Runtime(NOBODY)
    held, go = threading.Event(), threading.Event()

    def hold(_: object) -> bool:
        held.set()
        return go.wait(DEADLINE_S)

    first, _ = in_threads(1, lambda: runtime.until(hold))  # the runtime's thread is busy
    assert held.wait(DEADLINE_S)
    closing = threading.Thread(target=runtime.close, daemon=True)
    closing.start()
    threads, raised = in_threads(2, lambda: runtime.get("a"))
    go.set()
    for thread in [closing, *first, *threads]:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert raised == ["ClientClosed"] * 2


def test_a_runtime_may_be_closed_by_many_and_more_than_once():
    runtime = Runtime(NOBODY)
    errors: list[Exception] = []

    def close() -> None:
        try:
            runtime.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=close, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    runtime.close()
    assert errors == []
    with pytest.raises(ClientClosed):
        runtime.get("a")
