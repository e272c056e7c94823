"""A runtime against a real server: every result of a commit, both faces, a network that fails."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest

from penstock.client import (
    AsyncClient,
    AsyncRuntime,
    BacklogFull,
    Client,
    ClientSettings,
    CommitBackpressure,
    CommitConvergenceError,
    HandlerFailed,
    Runtime,
    RuntimeLimits,
)
from penstock.client.errors import ClientClosed, TimedOut
from penstock.protocol.errors import InvalidRequest, PreconditionFailed, RefusedByRule, Unauthorized
from penstock.testing import ManualClock
from tests.conformance.servers import ServerProcess
from tests.integration.client.runtime_served import (
    DEADLINE_S,
    Proxy,
    ServedSpaces,
    append,
    conflict,
    conflicts,
    increment,
    served_spaces,
)

EXACT = CommitBackpressure(jitter=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSpaces]:
    with served_spaces(tmp_path_factory.mktemp("spaces")) as found:
        yield found


@pytest.fixture
def space(server: ServedSpaces) -> Iterator[str]:
    server.seen.clear()
    yield f"s{uuid4().hex}"
    server.refuse(None)


class Watched:
    """A runtime with a clock that jumps over every back-off, and all it has to say."""

    def __init__(self, url: ClientSettings | str, space: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.runtime = Runtime(url, space, **{"clock": self.clock, "policy": EXACT, **options})
        self.reports: list[Any] = []
        self.failures: list[Any] = []
        self.runtime.on_commit(self.report)
        self.runtime.on_error(self.failures.append)
        self.runtime.register("append", append)
        self.runtime.register("increment", increment)

    def report(self, report: Any) -> None:
        self.reports.append(report)
        self.clock.advance(report.backoff_ms or 0)

    def __enter__(self) -> Self:
        self.runtime.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close(drain=False)

    def ends(self, handle: Any) -> Exception:
        """The error that an event ended with; it must be on the error channel too."""
        with pytest.raises(Exception) as caught:
            handle.result(DEADLINE_S)
        assert [failure.error for failure in self.failures] == [caught.value]
        assert self.failures[0].event.id == handle.id
        return caught.value

    @property
    def delays(self) -> list[float]:
        return [each.backoff_ms for each in self.reports if each.backoff_ms is not None]


def stored(server: ServedSpaces, space: str) -> dict[str, Any]:
    """What another client finds."""
    with Runtime(server.settings, space) as other:
        return {name: other.get(name) for name in other.entities()}


# The result table


def test_an_accepted_commit_is_done_and_shows_to_others(server, space):
    with Watched(server.settings, space) as watched:
        committed = watched.runtime.send("increment").result(DEADLINE_S)
        assert (committed.seq, committed.attempts) == (1, 1)
        assert [(r.outcome, r.terminal, r.retry_attempt) for r in watched.reports] == [
            ("accepted", None, 0)
        ]
    assert stored(server, space) == {"count": 1}


def test_eight_conflicts_then_success_with_exact_delays(server, space, caplog):
    caplog.set_level(logging.DEBUG)
    server.refuse(conflicts(8))
    with Watched(server.settings, space) as watched:
        committed = watched.runtime.send("increment").result(DEADLINE_S)
        assert committed.attempts == 9
        assert watched.delays == [0.78125, 1.5625, 3.125, 6.25, 12.5, 25, 50, 100]
        assert [r.retry_attempt for r in watched.reports] == [1, 2, 3, 4, 5, 6, 7, 8, 8]
        assert len(server.seen) == 9
        assert len({commit.event_id for commit in server.seen}) == 1
        assert not watched.failures
    assert stored(server, space) == {"count": 1}
    ours = [record for record in caplog.records if record.name.startswith("penstock.client")]
    assert ours
    assert {record.levelno for record in ours} == {logging.DEBUG}


def test_a_conflict_that_never_ends_is_terminal_within_the_window(server, space):
    with Watched(server.settings, space) as watched:
        watched.runtime.send("increment").result(DEADLINE_S)
        server.refuse(conflict)
        handle = watched.runtime.send("increment")
        error = watched.ends(handle)
        assert isinstance(error, CommitConvergenceError)
        assert 10 < error.attempts < 50
        assert error.attempts == len(server.seen) - 1
        assert error.elapsed_ms == pytest.approx(30_000)
        assert error.cause.code == "conflict"
        assert max(watched.delays) == 1_000
        assert watched.reports[-1].terminal == "convergence"
        assert watched.runtime.get("count") == 1
    assert stored(server, space) == {"count": 1}


@pytest.mark.parametrize("how", ["zero window", "no retries"])
def test_the_first_conflict_is_the_end_without_a_window_or_retries(server, space, how):
    server.refuse(conflict)
    policy = CommitBackpressure(window_ms=0) if how == "zero window" else EXACT
    with Watched(server.settings, space, policy=policy) as watched:
        error = watched.ends(watched.runtime.send("increment", retries=how == "zero window"))
        assert isinstance(error, CommitConvergenceError)
        assert (error.attempts, len(server.seen)) == (1, 1)
        assert watched.reports[-1].terminal == "convergence"
        assert watched.runtime.get("count") is None


def test_an_event_with_a_receipt_is_permanent(server, space):
    with Watched(server.settings, space) as first:
        first.runtime.send("increment", id="pay-7").result(DEADLINE_S)
    with Watched(server.settings, space) as second:
        error = second.ends(second.runtime.send("increment", id="pay-7"))
        assert error.code == "precondition_failed"
        assert error.detail["reason"] == "receipt-exists"
        assert second.reports[-1].terminal == "permanent"
        assert second.runtime.get("count") == 1
    assert len(server.seen) == 1


def test_an_origin_that_did_not_commit_is_permanent(server, space):
    def rule(commit):
        raise PreconditionFailed("expected an origin, found none", "origin-committed")

    server.refuse(rule)
    with Watched(server.settings, space) as watched:
        error = watched.ends(watched.runtime.send("increment"))
        assert error.detail["reason"] == "origin-committed"
        assert [r.terminal for r in watched.reports] == ["permanent"]


def test_what_a_rule_refuses_is_terminal_at_the_first_try(server, space):
    def rule(commit):
        raise RefusedByRule("expected a tariff, found none")

    server.refuse(rule)
    with Watched(server.settings, space) as watched:
        error = watched.ends(watched.runtime.send("increment"))
        assert error.code == "refused"
        assert [r.terminal for r in watched.reports] == ["rule"]
        assert watched.runtime.get("count") is None
    assert len(server.seen) == 1


def test_a_handler_that_raises_is_terminal_and_nothing_is_sent(server, space):
    with Watched(server.settings, space) as watched:

        @watched.runtime.on("bad")
        def bad(tx, event):
            tx.set("half", 1)
            raise LookupError("no such meter")

        error = watched.ends(watched.runtime.send("bad"))
        assert isinstance(error, HandlerFailed)
        assert isinstance(error.__cause__, LookupError)
        assert "no such meter" in str(error)
        assert watched.runtime.get("half") is None
    assert server.seen == []


def test_a_connection_lost_after_the_server_committed_does_it_once(server, space):
    proxy = Proxy(server.url)
    try:
        with Runtime(proxy.url, space) as runtime:
            runtime.register("increment", increment)
            runtime.register("append", append)
            for _ in range(5):
                proxy.cuts = 1
                runtime.send("increment").result(DEADLINE_S)
            assert proxy.cut >= 3
            assert runtime.get("count") == 5
    finally:
        proxy.close()
    assert stored(server, space) == {"count": 5}
    assert len(server.seen) == 5


# Order, lanes, descendants


def test_three_whole_list_appends_in_a_storm_end_as_three_in_order(server, space):
    left = [30]

    def storm(commit):
        left[0] -= 1
        if left[0] > 0 and left[0] % 5:
            conflict(commit)

    server.refuse(storm)
    with Runtime(server.settings, space) as runtime:
        runtime.register("append", append)
        handles = [runtime.send("append", name) for name in ("ann", "bob", "cat")]
        for handle in handles:
            handle.result(DEADLINE_S)
        assert max(handle.committed.attempts for handle in handles) > 1
    assert stored(server, space) == {"list": ["ann", "bob", "cat"]}


def test_three_runtimes_that_append_at_once_lose_nothing(server, space):
    async def run() -> list[Any]:
        runtimes = [AsyncRuntime(server.settings, space) for _ in range(3)]
        for runtime in runtimes:
            runtime.register("append", append)
            await runtime.start()
        for number, runtime in enumerate(runtimes):
            for step in range(5):
                runtime.send("append", f"{number}.{step}")
        for runtime in runtimes:
            await runtime.aclose()
        return []

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    found = stored(server, space)["list"]
    assert len(found) == len(set(found)) == 15
    for number in "012":
        assert [each for each in found if each[0] == number] == [f"{number}.{n}" for n in range(5)]


def test_descendants_commit_with_the_attempt_that_did(server, space):
    server.refuse(conflicts(3))
    with Watched(server.settings, space) as watched:

        @watched.runtime.on("order")
        def order(tx, event):
            tx.set("order", event.attempt)
            tx.send("append", f"mail {event.attempt}", lane="mails")

        handle = watched.runtime.send("order")
        handle.result(DEADLINE_S)
        (child,) = handle.children
        assert child.result(DEADLINE_S).seq == handle.committed.seq + 1
        assert child.id == f"{handle.id}/1"
        assert not watched.failures
    assert stored(server, space) == {"order": 4, "list": ["mail 4"]}
    child = server.seen[-1]
    assert child.preconditions[1].origin_committed.local_seq == server.seen[-2].local_seq


def test_descendants_of_a_failed_origin_never_commit(server, space):
    server.refuse(conflict)
    with Watched(server.settings, space) as watched:

        @watched.runtime.on("order")
        def order(tx, event):
            tx.set("order", 1)
            tx.send("append", "mail", lane="mails")

        handle = watched.runtime.send("order", retries=False)
        watched.runtime.settled(DEADLINE_S)
        server.refuse(None)
        assert isinstance(handle.error, CommitConvergenceError)
        assert {type(f.error).__name__ for f in watched.failures} == {
            "OriginFailed", "CommitConvergenceError",
        }  # fmt: skip
    assert stored(server, space) == {}


def test_a_derivation_follows_writes_of_others(server, space):
    with Runtime(server.settings, space) as one, Runtime(server.settings, space) as other:
        other.register("append", append)

        @one.derive("total")
        def total(tx):
            tx.set("total", len(tx.get("list", default=[])))

        for name in "abc":
            other.send("append", name)
        other.until(lambda now: now.confirmed("total") == 3, DEADLINE_S)


# The backlog, waiting, looking


def test_a_full_lane_refuses_before_anything_ran(server, space):
    limits = RuntimeLimits(pending_max=2, coalesced_max=0)
    server.refuse(conflict)
    with Watched(server.settings, space, limits=limits, clock=None) as watched:
        for _ in range(2):
            watched.runtime.send("append", 1)
        error = watched.ends(watched.runtime.send("append", 2))
        assert isinstance(error, BacklogFull)
        server.refuse(None)
        watched.runtime.settled(DEADLINE_S)
    assert stored(server, space) == {"list": [1, 1]}


def test_status_says_what_backs_off_and_why(server, space):
    server.refuse(conflict)
    policy = CommitBackpressure(base_ms=1_000_000, cap_ms=1_000_000, window_ms=1e9)
    with Runtime(server.settings, space, policy=policy) as runtime:
        runtime.register("increment", increment)
        handle = runtime.send("increment", lane="meters")
        runtime.until(lambda now: "backing off" in str(now.status()), DEADLINE_S)
        status = runtime.status()
        assert (status.pending, status.live, status.lanes[0].lane) == (1, True, "meters")
        event = status.lanes[0].events[0]
        assert event.state == "backing off"
        assert event.wait_ms > 1_000
        assert "count" in event.reason
        with pytest.raises(TimedOut):
            runtime.idle(0.01)
        with pytest.raises(TimedOut):
            handle.result(0.01)
        runtime.close(drain=False)
        assert isinstance(handle.error, ClientClosed)


def test_mistakes_are_told_at_once(server, space):
    with Runtime(server.settings, space) as runtime:
        runtime.register("increment", increment)
        with pytest.raises(InvalidRequest, match="has a handler already"):
            runtime.register("increment", increment)
        with pytest.raises(InvalidRequest, match="a coroutine function"):

            @runtime.on("async")
            async def handler(tx, event):
                pass

        with pytest.raises(InvalidRequest, match="did you mean 'increment'"):
            runtime.send("increments")
        errors = []
        runtime.on_error(errors.append)

        @runtime.on("calls back")
        def calls_back(tx, event):
            runtime.send("increment")

        with pytest.raises(HandlerFailed, match=r"tx\.send|use the transaction"):
            runtime.send("calls back").result(DEADLINE_S)
        assert len(errors) == 1
    with pytest.raises(ClientClosed):
        runtime.send("increment")


def test_a_server_that_refuses_us_ends_the_start(tmp_path: Path):
    server = ServerProcess(tmp_path, API_KEYS="secret:rw:ours")
    try:
        server.start()
        url = server.address.url
        with pytest.raises(Unauthorized):
            Runtime(url, "ours.a").start()
        with Runtime(url, "ours.a", api_key="secret") as runtime:
            runtime.register("increment", increment)
            runtime.send("increment").result(DEADLINE_S)
    finally:
        server.close()


def test_a_space_that_is_deleted_and_made_again_is_followed(server, space):
    with Runtime(server.settings, space) as runtime, Client(server.settings) as client:
        runtime.register("increment", increment)
        for expected in (1, 2):
            runtime.send("increment").result(DEADLINE_S)
            assert runtime.get("count") == expected
        client.delete_topic(space)
        runtime.until(lambda now: now.get("count") is None, DEADLINE_S)
        runtime.send("increment").result(DEADLINE_S)
        runtime.until(lambda now: now.confirmed("count") == 1, DEADLINE_S)


def test_runtimes_of_one_client_share_a_feed_that_lives_as_long_as_one_of_them(server, space):
    async def run() -> None:
        async with AsyncClient(server.settings) as client:
            first = await AsyncRuntime(client, space).start()
            first.register("increment", increment)
            await first.send("increment")
            await first.until(lambda now: now.confirmed("count") == 1)
            second = await AsyncRuntime(client, space).start()
            second.register("increment", increment)
            assert second.confirmed("count") == 1
            await first.aclose()
            await second.send("increment")
            await second.until(lambda now: now.confirmed("count") == 2)
            await second.aclose()
            third = await AsyncRuntime(client, space).start()
            assert third.get("count") == 2
            await third.aclose()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_an_async_runtime_tells_what_became_of_an_event(server, space):
    server.refuse(conflict)

    async def run() -> None:
        failures: list[Any] = []
        policy = CommitBackpressure(window_ms=20)
        async with AsyncRuntime(server.settings, space, policy=policy) as runtime:
            runtime.on_error(failures.append)
            runtime.register("increment", increment)
            handle = runtime.send("increment")
            assert runtime.get("count") == 1
            with pytest.raises(CommitConvergenceError) as caught:
                await handle
            await runtime.settled()
            await runtime.idle()
            assert (handle.done, handle.error, handle.committed) == (True, caught.value, None)
            assert [failure.error for failure in failures] == [caught.value]
            assert runtime.get("count") is None

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_callback_that_raises_does_not_stop_a_runtime(server, space, caplog):
    with Runtime(server.settings, space) as runtime:
        runtime.register("increment", increment)
        runtime.on_commit(lambda report: 1 / 0)
        runtime.send("increment").result(DEADLINE_S)
        runtime.send("increment").result(DEADLINE_S)
        assert runtime.get("count") == 2
    assert "a callback of a runtime raised" in caplog.text


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of connections that nobody closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ends_under_a_runtime_does_not_hurt_the_next_one(server, space):
    async def run(client: AsyncClient, expected: int) -> None:
        runtime = await AsyncRuntime(client, space).start()
        runtime.register("increment", increment)
        await runtime.send("increment")
        assert runtime.get("count") == expected

    client = AsyncClient(server.settings)
    for expected in (1, 2, 3):
        asyncio.run(asyncio.wait_for(run(client, expected), DEADLINE_S))
    del client
    gc.collect()  # here, and not in a test that has nothing to do with it
