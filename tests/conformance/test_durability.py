"""2 Durability classes: what is there after kill -9, and what is never given out twice."""

from __future__ import annotations

import contextlib
import functools
import http.client
from typing import Any, NamedTuple

import pytest

from tests.conformance import expect
from tests.conformance.rows import row
from tests.conformance.wire import Api, Later, at, done, payloads, seqs, until

COUNT = 25


class Crash(NamedTuple):
    """A server that was killed and started again, and what was acknowledged before."""

    api: Api
    before: dict[str, Any]


@pytest.fixture(scope="module")
def crashed(launch) -> Crash:
    """Everything is prepared in one server, which is then killed with SIGKILL and started again."""
    process = launch()
    api = Api(process.address)
    before: dict[str, Any] = {}
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        api.make(durability, durability=durability, ttl_ms=3_600_000, priority=7)
        for number in range(COUNT):
            api.write(durability, number)
    _prepare_changes(api, before)
    _prepare_queues(api, before)
    _prepare_routers(api)
    before["last"] = api.write("fsync", "last")["last_seq"]
    process.kill()
    process.start()
    return Crash(Api(process.address), before)


def _prepare_changes(api: Api, before: dict[str, Any]) -> None:
    api.make("changed", durability="memory")
    api.make("changed", durability="fsync")
    api.write("changed", "a", "b")
    api.make("trimmed", durability="fsync", cap_records=3)
    api.write("trimmed", *range(10))
    api.make("thinned", durability="fsync")
    body = {"records": [{"data": n, "tag": f"t{n % 2}"} for n in range(6)]}
    done(api.post(at("thinned"), body))
    done(api.post(at("thinned", "delete"), {"match": "t0"}))
    done(api.post(at("thinned", "delete"), {"before_seq": 3}))
    api.write("dropped", 1, 2, 3, config={"durability": "fsync"})
    api.delete(at("dropped"))
    api.make("keyed", durability="fsync")
    before["keyed"] = api.write("keyed", "once", idempotency_key="k")
    api.make("raw", durability="fsync")
    done(api.post(at("raw"), b'{"records":[{"data":{"z" : 1.50},"meta":{"m":1e2},"tag":"t"}]}'))


def _prepare_queues(api: Api, before: dict[str, Any]) -> None:
    api.make("jobs", type="queue", durability="fsync", lease_ms=86_400_000)
    api.write("jobs", "a", "b", "c")
    api.claim("jobs", max=2)
    done(api.post(at("jobs", "ack"), {"node": "n1", "seqs": [1]}))
    api.make("held", type="queue", durability="fsync", lease_ms=86_400_000, leases_durable=True)
    api.write("held", "a", "b")
    before["held"] = api.claim("held")


def _prepare_routers(api: Api) -> None:
    for guarantee in ("at_least_once", "exactly_once"):
        source, dest = f"{guarantee}-in", f"{guarantee}-out"
        api.make(source, durability="fsync")
        api.write(source, "before the router")
        api.route(guarantee, source, dest, guarantee=guarantee, filter=["tag", "Glob", "t*"])
        api.write(source, 1, 2, 3, tag="t1")
        assert len(api.diff(dest)["records"]) == 3


@row("2 fsync")
def test_an_acknowledged_fsync_write_is_there_after_kill_9(crashed):
    found = crashed.api.diff("fsync", limit=1000)
    assert payloads(found) == [*range(COUNT), "last"]
    assert seqs(found) == list(range(1, COUNT + 2))
    assert found["tombstone"] is None
    assert crashed.api.write("fsync", "next")["first_seq"] == crashed.before["last"] + 1


@row("2 disk")
def test_what_a_disk_topic_acknowledged_survives_the_end_of_the_process(crashed):
    found = crashed.api.diff("disk", limit=1000)
    assert payloads(found) == list(range(COUNT)), "the survivors are a prefix, here all of them"
    assert crashed.api.write("disk", "next")["first_seq"] == COUNT + 1


@row("2 memory")
def test_a_memory_topic_gives_no_seq_twice(crashed):
    found = crashed.api.diff("memory", limit=1000)
    assert payloads(found) == [seq - 1 for seq in seqs(found)], "what is there is what was written"
    assert crashed.api.write("memory", "next")["first_seq"] > COUNT
    assert crashed.api.state("memory")["config"]["durability"] == "memory"


@row("2 ephemeral")
def test_an_ephemeral_topic_keeps_its_config_and_gives_no_seq_twice(crashed):
    state = crashed.api.state("ephemeral")
    assert state["config"]["durability"] == "ephemeral"
    assert state["config"]["ttl_ms"] == 3_600_000
    assert state["count"] == 0
    assert crashed.api.write("ephemeral", "next")["first_seq"] > COUNT
    assert payloads(crashed.api.diff("ephemeral", COUNT)) == ["next"]


@row("2 fsync", "1.1 values")
@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_the_config_survives(crashed, durability):
    wanted = {"ttl_ms": 3_600_000, "priority": 7, "durability": durability}
    wanted["durable"] = durability == "fsync"
    assert crashed.api.state(durability)["config"] == {**expect.CONFIG_DEFAULTS, **wanted}


@row("2 class change")
def test_a_class_that_was_raised_holds_for_the_writes_after(crashed):
    assert payloads(crashed.api.diff("changed")) == ["a", "b"]
    assert crashed.api.state("changed")["config"]["durability"] == "fsync"


@row("2 floors", "2 fsync")
def test_the_floor_of_a_cap_survives(crashed):
    page = crashed.api.diff("trimmed")
    assert payloads(page) == [7, 8, 9]
    assert (page["tombstone"]["gap_to"], page["tombstone"]["reason"]) == (7, "cap")


@row("2 delete", "2 fsync")
def test_deletions_survive(crashed):
    page = crashed.api.diff("thinned")
    assert (payloads(page), page["tombstone"]) == ([3, 5], None)
    expect.refusal(crashed.api.get(at("dropped")), 404, "topic_not_found")


@row("2 idempotency restart")
def test_a_retry_after_a_restart_still_dedupes(crashed):
    again = crashed.api.write("keyed", "twice", idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, crashed.before["keyed"]["seqs"])
    assert payloads(crashed.api.diff("keyed")) == ["once"]


@row("1.0 fidelity", "2 fsync")
def test_payloads_are_the_same_bytes_after_a_restart(crashed):
    body = crashed.api.post(at("raw", "diff"), {"include_tags": True}).body
    assert b'"data":{"z" : 1.50},"meta":{"m":1e2}' in body
    assert b'"$tag":"t"' in body


@row("2 leases restart")
def test_acknowledged_jobs_stay_done_and_leases_in_ram_are_gone(crashed):
    state = crashed.api.state("jobs")
    assert state["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0}
    assert [job["$seq"] for job in crashed.api.claim("jobs", max=10)] == [2, 3]


@row("2 leases restart")
def test_a_durable_lease_is_still_held(crashed):
    [held] = crashed.before["held"]
    assert [job["$seq"] for job in crashed.api.claim("held", node="n2", max=10)] == [2]
    body = {"node": "n1", "seqs": [held["$seq"]], "lease_ids": [held["lease_id"]]}
    answer = done(crashed.api.post(at("held", "ack"), body))
    assert (answer["acked"], answer["skipped"]) == (1, [])


@row("2 router restart")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_router_survives_with_its_config(crashed, guarantee):
    found = done(crashed.api.get(f"/v0/routers/{guarantee}"))
    assert (found["source"], found["dest"]) == (f"{guarantee}-in", f"{guarantee}-out")
    assert (found["guarantee"], found["filter"]) == (guarantee, ["tag", "Glob", "t*"])


@row("2 router restart")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_router_loses_nothing_by_a_restart(crashed, guarantee):
    crashed.api.write(f"{guarantee}-in", 4, tag="t1")
    page = until(
        lambda: (found := crashed.api.diff(f"{guarantee}-out")) and 4 in payloads(found) and found,
        "forwarding after the restart",
    )
    found = payloads(page)
    assert set(found) == {1, 2, 3, 4}
    if guarantee == "exactly_once":
        assert found == [1, 2, 3, 4]
    assert seqs(page) == sorted(set(seqs(page)))


@row("2 fsync", "2 disk", "2 idempotency restart", "2 seq")
def test_a_server_killed_under_load_keeps_what_it_acknowledged(launch):
    process = launch()
    api = Api(process.address)
    topics = {"a": "fsync", "b": "disk", "c": "fsync", "d": "disk"}
    for name, durability in topics.items():
        api.make(name, durability=durability)
    writers = {name: Later(functools.partial(_write_until_cut, api, name)) for name in topics}
    until(lambda: all(api.state(name)["head_seq"] > 30 for name in topics), "some writes")
    process.kill()
    acknowledged = {name: writer.result() for name, writer in writers.items()}
    process.start()
    api = Api(process.address)
    for name, count in acknowledged.items():
        retried = api.write(name, count, idempotency_key=f"k{count}")
        assert retried["first_seq"] > count, "no seq is given out twice"
        found, cursor = [], 0
        while cursor < api.state(name)["head_seq"]:
            page = api.diff(name, cursor, limit=1000)
            found += payloads(page)
            cursor = page["next_from_seq"]
        assert found == list(range(count + 1)), "each once, the one without an answer too"


def _write_until_cut(api: Api, topic: str) -> int:
    """Write numbers one by one until the server is gone; how many it acknowledged."""
    count = 0
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        while True:
            api.write(topic, count, idempotency_key=f"k{count}")
            count += 1
    return count
