"""The core of a runtime: every result of a commit, lanes, layers, descendants, derivations."""

from __future__ import annotations

import pytest

from penstock.client.errors import (
    BacklogFull,
    CommitConvergenceError,
    Disconnected,
    HandlerFailed,
    OriginFailed,
    Superseded,
)
from penstock.client.settings import CommitBackpressure, RuntimeLimits
from penstock.flow.backoff import Backoff
from penstock.protocol.errors import (
    InvalidRequest,
    OutcomeUnknown,
    PreconditionFailed,
    RefusedByRule,
    Throttled,
)
from tests.unit.client.runtime.world import SimClient, World, append, conflict, increment

EXACT = CommitBackpressure(jitter=0)


def started(world: World, name: str = "a", **options) -> SimClient:
    client = world.client(name, **{"policy": EXACT, **options})
    client.on("append", append).on("increment", increment)
    return client.start()


def conflicts(times: int):
    """A rule under which so many commits conflict, then no more."""
    left = [times]

    def rule(commit):
        if left[0]:
            left[0] -= 1
            conflict(commit)

    return rule


def delays(client: SimClient) -> list[float]:
    return [report.backoff_ms for report in client.reports if report.backoff_ms is not None]


# The result table


def test_a_commit_that_is_accepted_is_done_once():
    world = World()
    client = started(world)
    told = []
    ticket = client.send("increment")
    ticket.when_done(lambda: told.append(1))
    world.settle()
    assert world.server.docs() == {"count": 1}
    assert (ticket.committed.seq, ticket.committed.attempts, told) == (1, 1, [1])
    assert [(r.outcome, r.retry_attempt, r.terminal) for r in client.reports] == [
        ("accepted", 0, None)
    ]


def test_eight_conflicts_then_success_with_the_delays_of_the_policy():
    world = World()
    client = started(world)
    world.server.rule = conflicts(8)
    ticket = client.send("increment")
    world.settle()
    assert ticket.committed.attempts == 9
    assert delays(client) == [25 / 32 * 2**n for n in range(8)]
    assert world.server.docs() == {"count": 1}
    assert not client.failures


def test_a_conflict_that_never_ends_is_terminal_within_the_window_after_bounded_attempts():
    world = World()
    client = started(world)
    world.server.rule = conflict
    ticket = client.send("increment")
    world.settle()
    assert isinstance(ticket.error, CommitConvergenceError)
    assert ticket.error.attempts == len(client.transmitted) < 50
    assert 30_000 <= ticket.error.elapsed_ms <= 30_010
    assert ticket.error.cause.code == "conflict"
    assert client.reports[-1].terminal == "convergence"
    assert max(delays(client)) == 1_000
    assert world.server.docs() == {}
    assert client.core.view.names() == set()
    assert [failure.error for failure in client.failures] == [ticket.error]


@pytest.mark.parametrize(
    ("policy", "retries"), [(CommitBackpressure(window_ms=0), True), (EXACT, False)]
)
def test_without_a_window_or_without_retries_the_first_conflict_is_the_end(policy, retries):
    world = World()
    client = started(world, policy=policy)
    world.server.rule = conflict
    ticket = client.send("increment", retries=retries)
    world.settle()
    assert isinstance(ticket.error, CommitConvergenceError)
    assert (ticket.error.attempts, len(client.transmitted)) == (1, 1)
    assert client.reports[-1].terminal == "convergence"
    assert [failure.error for failure in client.failures] == [ticket.error]


def test_an_event_that_left_a_receipt_is_never_applied_again():
    world = World()
    first, second = started(world), started(world, "b")
    first.send("increment", id="pay-7")
    world.settle()
    ticket = second.send("increment", id="pay-7")
    world.settle()
    assert ticket.error.code == "precondition_failed"
    assert ticket.error.detail["reason"] == "receipt-exists"
    assert second.reports[-1].terminal == "permanent"
    assert (world.server.docs(), len(second.transmitted)) == ({"count": 1}, 1)
    assert second.core.view.doc("count") == 1
    assert [failure.error for failure in second.failures] == [ticket.error]


def test_an_origin_that_the_server_does_not_know_is_permanent():
    world = World()
    client = started(world)

    def rule(commit):
        raise PreconditionFailed("no such origin", "origin-committed")

    world.server.rule = rule
    ticket = client.send("increment")
    world.settle()
    assert client.reports[-1].terminal == "permanent"
    assert len(client.transmitted) == len(client.failures) == 1
    assert ticket.error is client.failures[0].error


def test_what_a_rule_refuses_is_terminal_at_the_first_try():
    world = World()
    client = started(world)

    def rule(commit):
        raise RefusedByRule("no such tariff")

    world.server.rule = rule
    ticket = client.send("increment")
    world.settle()
    assert client.reports[-1].terminal == "rule"
    assert (len(client.transmitted), client.core.view.names()) == (1, set())
    assert [failure.error for failure in client.failures] == [ticket.error]


def test_a_handler_that_raises_is_terminal_and_nothing_of_it_shows():
    world = World()
    client = started(world)

    def handler(tx, event):
        tx.set("half", 1)
        tx.send("increment")
        raise LookupError("no such meter")

    client.on("bad", handler)
    ticket = client.send("bad")
    world.settle()
    assert isinstance(ticket.error, HandlerFailed)
    assert isinstance(ticket.error.__cause__, LookupError)
    assert client.transmitted == []
    assert client.core.view.names() == set()
    assert [failure.error for failure in client.failures] == [ticket.error]


@pytest.mark.parametrize("lost", ["lose_request", "lose_answer"])
def test_a_lost_connection_sends_the_same_commit_again_and_it_lands_once(lost):
    world = World()
    client = started(world, follows=False)
    setattr(world, lost, 1.0)
    ticket = client.send("increment")
    world.run(lambda: len(client.transmitted) == 3)
    setattr(world, lost, 0.0)
    world.settle()
    assert len(set(client.transmitted)) == 1
    assert world.server.docs() == {"count": 1}
    assert ticket.committed.attempts == 1
    assert not client.failures


def test_a_commit_that_is_seen_in_the_space_needs_no_answer():
    world = World()
    client = started(world)
    world.lose_answer = 1.0
    ticket = client.send("increment")
    world.settle()
    assert ticket.committed.seq == 1
    assert len(client.transmitted) == 1


def test_a_server_that_never_comes_back_ends_with_an_outcome_that_is_not_known():
    world = World()
    limits = RuntimeLimits(away=Backoff(10, 100, 0, window_ms=1_000))
    client = started(world, limits=limits, follows=False)
    world.lose_answer = 1.0
    ticket = client.send("increment")
    world.settle()
    assert isinstance(ticket.error, OutcomeUnknown)
    assert isinstance(ticket.error.__cause__, Disconnected)
    assert client.reports[-1].terminal == "unknown"
    assert [failure.error for failure in client.failures] == [ticket.error]


def test_a_server_that_is_busy_gets_the_same_commit_when_it_wants_to():
    world = World()
    client = started(world)
    ticket = client.send("increment")
    local_seq = client.transmitted[0].local_seq
    busy = Throttled("later", retry_after_ms=700)
    client.perform(client.core.refused(local_seq, busy, world.now_ms))
    assert client.core.next_due_ms == 700
    world.settle()
    assert ticket.committed is not None
    assert world.server.docs() == {"count": 1}


# Layers and lanes


def test_writes_show_at_once_and_are_taken_back_when_they_are_refused():
    world = World()
    client = started(world)
    seen = [client.core.view.doc("count")]
    world.server.rule = conflicts(1)
    client.send("increment", 5)
    seen.append(client.core.view.doc("count"))
    world.run(lambda: bool(client.reports))
    seen.append(client.core.view.names())
    world.settle()
    assert seen[1:] == [5, set()]
    assert client.core.view.doc("count") == 5


def test_three_whole_list_appends_in_a_storm_end_as_three_in_the_order_they_were_sent():
    world = World()
    client = started(world)
    left = [20]

    def storm(commit):
        left[0] -= 1
        if left[0] > 0 and world.random.random() < 0.8:
            conflict(commit)

    world.server.rule = storm
    for name in "abc":
        client.send("append", name)
    assert client.core.view.doc("list") == ["a", "b", "c"]
    world.settle()
    assert world.server.docs() == {"list": ["a", "b", "c"]}
    assert not client.failures


def test_an_event_that_backs_off_holds_its_lane_and_no_other():
    world = World()
    client = started(world)
    client.on("log", lambda tx, event: tx.set(f"log-{event.data}", True))

    def rule(commit):
        if commit.writes[0].entity == "count":
            conflict(commit)

    world.server.rule = rule
    stuck = client.send("increment", lane="one")
    behind = client.send("log", "behind", lane="one")
    beside = client.send("log", "beside", lane="two")
    world.run(lambda: len(client.reports) > 8)
    assert beside.done
    assert not behind.done
    assert client.core.view.doc("log-behind") is not True
    world.server.rule = None
    world.settle()
    assert stuck.committed.seq < behind.committed.seq


def test_one_that_runs_while_the_one_before_it_backs_off_runs_again_after_it():
    world = World()
    client = started(world)
    world.server.rule = conflicts(1)
    client.send("append", "a")
    world.step()  # the server has refused it, and we will hear of that
    client.is_slow = True
    client.send("append", "b")  # the shell has others to run first
    world.settle()
    assert world.server.docs() == {"list": ["a", "b"]}


def test_what_was_read_through_another_lane_waits_for_that_one_and_runs_again_if_it_fails():
    world = World()
    client = started(world)

    def copy(tx, event):
        tx.set("copy", tx.get("count"))

    client.on("copy", copy)

    def rule(commit):
        if commit.writes[0].entity == "count":
            raise RefusedByRule("no")

    world.server.rule = rule
    client.send("increment", lane="one")
    ticket = client.send("copy", lane="two")
    assert client.core.view.doc("copy") == 1
    world.settle()
    assert world.server.docs() == {"copy": None}
    assert ticket.committed.attempts == 2
    assert "changed_locally" in [report.outcome for report in client.reports]


@pytest.mark.parametrize("follows", [True, False])
def test_what_was_read_through_writes_that_land_in_another_order_runs_again(follows):
    world = World()
    client = started(world, follows=follows)
    client.on("set", lambda tx, event: tx.set(event.data[0], event.data[1]))
    client.on("note", lambda tx, event: tx.set("note", tx.get("x")))
    client.send("set", ("other", 1), lane="a")
    client.send("set", ("x", "older"), lane="a")  # shows, and leaves after the one before it
    client.send("set", ("x", "newer"), lane="b")  # shows on top, and leaves at once
    client.send("note", lane="c")
    if not follows:
        world.run(lambda: client.core.committing == 0 and world.server.head == 3)
        client.follows = True
        client.look_later()
    world.settle()
    assert world.server.docs() == {"other": 1, "x": "older", "note": "older"}


def test_a_commit_may_stand_on_one_of_ours_that_the_replica_has_not_seen():
    world = World()
    client = started(world, follows=False)
    client.send("increment")
    client.send("increment")
    world.settle()
    assert world.server.docs() == {"count": 2}
    assert client.transmitted[0].pending_reads == ()
    assert [each.local_seq for each in client.transmitted[1].pending_reads] == [1]


def test_a_foreign_write_between_is_a_conflict_and_both_have_their_effect():
    world = World()
    client, other = started(world, follows=False), started(world, "b")
    client.send("increment")
    world.settle()
    other.send("increment", 10)
    world.settle()
    client.follows = True
    ticket = client.send("increment", 100)
    world.settle()
    assert world.server.docs() == {"count": 111}
    assert ticket.committed.attempts > 1


def test_a_value_that_changes_before_the_commit_leaves_is_a_conflict_that_was_not_sent():
    world = World()
    client, other = started(world), started(world, "b")

    def parent(tx, event):
        tx.set("parent", 1)
        tx.send("increment", lane="child")

    client.on("parent", parent)
    world.latency_ms = (50.0, 50.0)
    client.send("parent")
    other.perform(other.core.tick(world.now_ms))
    world.server.commit(b'{"session":"x","local_seq":1,"writes":[{"entity":"count","set":7}]}')
    client.look()
    world.settle()
    assert world.server.docs() == {"parent": 1, "count": 8}
    assert [report.outcome for report in client.reports].count("changed_locally") == 1


def test_reads_by_path_do_not_meet_writes_elsewhere():
    world = World()
    client, other = started(world), started(world, "b")
    for each in (client, other):
        each.on(
            "raise",
            lambda tx, event: tx.patch(
                "limits", {event.data: tx.get("limits", f"/{event.data}", 0) + 1}
            ),
        )
    client.send("raise", "day")
    world.settle()
    for _ in range(5):
        client.send("raise", "day")
        other.send("raise", "night")
        world.settle()
    assert world.server.docs() == {"limits": {"day": 6, "night": 5}}
    assert {report.outcome for report in client.reports} == {"accepted"}


def test_a_handler_that_only_fails_on_what_is_taken_back_has_not_failed():
    world = World()
    client = started(world)

    def claim(tx, event):
        if tx.exists("seat"):
            raise ValueError("taken")
        tx.set("seat", event.data)

    client.on("claim", claim)

    def rule(commit):
        if commit.writes[0].set == "first":
            raise RefusedByRule("not you")

    world.server.rule = rule
    first, second = client.send("claim", "first"), client.send("claim", "second")
    third = client.send("claim", "third")
    world.settle()
    assert first.error is not None
    assert second.committed is not None
    assert isinstance(third.error, HandlerFailed)
    assert world.server.docs() == {"seat": "second"}


def test_an_event_that_writes_nothing_needs_no_commit():
    world = World()
    client = started(world)
    client.on("look", lambda tx, event: tx.get("count"))
    ticket = client.send("look")
    world.settle()
    assert (ticket.committed.seq, client.transmitted) == (None, [])


def test_a_new_listing_runs_again_what_has_not_left():
    world = World()
    client = started(world)
    world.server.is_up = False
    tickets = [client.send("append", name) for name in "ab"]
    world.run(lambda: len(client.transmitted) > 1)
    world.server.is_up = True
    client.list()
    world.settle()
    assert all(ticket.committed for ticket in tickets)
    assert world.server.docs() == {"list": ["a", "b"]}


def test_numbers_do_not_get_so_old_that_the_server_forgets_them():
    world = World()
    client = started(world, follows=False)
    client.on("own", lambda tx, event: tx.set(f"own-{event.data}", 1))
    stalled = []

    def stall_ms(body):
        if b"own-stuck" in body and not stalled:
            stalled.append(body)
            return 60_000.0
        return 0.0

    world.stall_ms = stall_ms
    tickets = [client.send("own", "stuck", lane="stuck")]
    tickets += [client.send("own", number, lane=f"lane-{number % 10}") for number in range(600)]
    world.run(lambda: world.now_ms > 50_000)
    assert not tickets[0].done
    assert 100 < len(world.server.log) < 256
    world.settle()
    assert all(ticket.committed for ticket in tickets)
    assert len(world.server.docs()) == 601


# The backlog


def test_a_full_lane_takes_events_in_joins_known_ids_and_refuses_the_rest():
    world = World()
    client = started(world, limits=RuntimeLimits(pending_max=3, coalesced_max=2, ahead_max=1))
    tickets = [client.send("append", n, lane="x") for n in range(3)]
    taken = [client.send("append", n, lane="x") for n in (3, 4)]
    assert taken == [tickets[2]] * 2
    refused = client.send("append", 5, lane="x")
    assert isinstance(refused.error, BacklogFull)
    assert [failure.error for failure in client.failures] == [refused.error]
    elsewhere = client.send("append", 6, lane="y", id="six")
    assert client.send("append", 6, lane="y", id="six") is elsewhere
    mine = client.send("append", 7, lane="x", id="seven")
    assert isinstance(mine.error, BacklogFull)
    world.settle()
    found = world.server.docs()["list"]
    assert sorted(found) == [0, 1, 2, 3, 4, 6]
    assert [n for n in found if n != 6] == [0, 1, 2, 3, 4]


def test_a_type_without_a_handler_is_refused_with_the_nearest_one():
    world = World()
    client = started(world)
    with pytest.raises(InvalidRequest, match="did you mean 'increment'"):
        client.send("incremint")


# Descendants


def with_children(world: World) -> SimClient:
    client = started(world)

    def parent(tx, event):
        tx.set("parent", event.attempt)
        tx.send("append", f"{event.data}-{event.attempt}", lane="children")

    client.on("parent", parent)
    return client


def test_only_the_descendants_of_the_attempt_that_committed_do():
    world = World()
    client = with_children(world)
    world.server.rule = conflicts(3)
    ticket = client.send("parent", "p")
    first_child = ticket.children[0]
    world.settle()
    assert world.server.docs() == {"parent": 4, "list": ["p-4"]}
    assert isinstance(first_child.error, Superseded)
    assert [child.committed is not None for child in ticket.children] == [True]
    child = world.server.commits[-1]
    origin = child.preconditions[1].origin_committed
    assert origin.local_seq == world.server.commits[0].local_seq
    assert not client.failures


def test_descendants_of_a_failed_origin_never_commit_and_say_so():
    world = World()
    client = with_children(world)
    world.server.rule = conflict
    ticket = client.send("parent", "p", retries=False)
    child = ticket.children[0]
    world.settle()
    assert world.server.docs() == {}
    assert isinstance(child.error, OriginFailed)
    assert {id(failure.error) for failure in client.failures} == {
        id(child.error),
        id(ticket.error),
    }


def test_descendants_have_ids_that_do_not_depend_on_the_attempt():
    world = World()
    client = with_children(world)
    world.server.rule = conflicts(2)
    ticket = client.send("parent", "p", id="mine")
    world.settle()
    assert [child.event_id for child in ticket.children] == ["mine/1"]


# Idle and settled


def test_idle_does_not_wait_for_answers_and_settled_does():
    world = World()
    client = started(world)
    assert client.core.is_idle
    assert client.core.is_settled
    client.send("increment")
    assert client.core.is_idle
    assert not client.core.is_settled
    world.server.rule = conflicts(1)
    world.run(lambda: bool(client.reports))
    assert not client.core.is_idle
    world.settle()
    assert client.core.is_idle


def test_what_is_left_when_the_runtime_ends_fails_and_says_so():
    world = World()
    client = started(world)
    tickets = [client.send("increment") for _ in range(20)]
    client.perform(client.core.close(world.now_ms))
    assert isinstance(tickets[0].error, OutcomeUnknown)
    assert {ticket.error.code for ticket in tickets[1:]} == {"client_closed"}
    assert {id(failure.error) for failure in client.failures} == {
        id(ticket.error) for ticket in tickets
    }
    assert client.core.is_settled


# Derivations


def total(tx) -> None:
    items = tx.get("list", default=[])
    tx.set("total", len(items))


def test_a_derivation_follows_what_it_has_read():
    world = World()
    client = started(world)
    client.derive("total", total)
    world.settle()
    for name in "abc":
        client.send("append", name)
        world.settle()
    world.run()
    assert world.server.docs() == {"list": ["a", "b", "c"], "total": 3}


def test_a_derivation_that_conflicts_catches_up_for_as_long_as_it_takes():
    world = World()
    client = started(world, policy=CommitBackpressure(window_ms=0))
    client.send("append", "a")
    world.settle()
    world.server.rule = conflicts(40)
    client.derive("total", total)
    world.settle()
    assert world.server.docs()["total"] == 1
    assert not client.failures


def test_derivations_of_two_clients_agree_in_the_end():
    world = World(latency_ms=(1.0, 9.0))
    clients = [started(world, name) for name in "ab"]
    for client in clients:
        client.derive("total", total)
    for number in range(20):
        clients[number % 2].send("append", number)
    world.run()
    assert world.server.docs()["total"] == len(world.server.docs()["list"]) == 20


def test_a_derivation_that_raises_is_reported_and_runs_again_when_its_inputs_change():
    world = World()
    client = started(world)

    def picky(tx):
        if len(tx.get("list", default=[])) < 2:
            raise ValueError("too few")
        tx.set("total", "enough")

    client.derive("picky", picky)
    assert [failure.source for failure in client.failures] == ["derive picky"]
    for name in "ab":
        client.send("append", name)
    world.run()
    assert world.server.docs()["total"] == "enough"
