"""What runs of kills have found, each as a story of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api, at, at_once, done


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    try:
        yield process.start()
    finally:
        process.discard()


def restarted(server: ServerProcess) -> Api:
    server.kill()
    return Api(server.start().address)


@pytest.mark.parametrize("lifts_cap", [False, True])
def test_what_records_in_memory_had_pushed_out_stays_out(server, lifts_cap):
    api = Api(server.address)
    api.make("t", cap_records=5, durability="disk")
    api.write("t", *range(5))
    api.make("t", durability="ephemeral")
    api.write("t", *range(3))
    if lifts_cap:
        api.make("t", cap_records=0)
    assert api.state("t")["earliest_seq"] == 4
    state = restarted(server).state("t")
    assert state["earliest_seq"] >= 4
    assert state["head_seq"] >= 8


def test_dead_letters_are_brought_once_whoever_else_is_dead_meanwhile(server):
    api = Api(server.address)
    # With two partitions the letters live on the other one.
    api.make("queue-d0", type="queue", max_deliveries=1, dead_letter="dead-d1", leases_durable=True)
    api.write("queue-d0", *range(4))
    first = api.claim("queue-d0", max=3)
    seqs = [job["$seq"] for job in first]
    done(api.post(at("queue-d0", "nack"), {"node": "n1", "seqs": [seqs[0], seqs[2]]}))
    assert [job["$seq"] for job in api.claim("queue-d0", "n2")] == [4]
    api = restarted(server)
    done(api.post(at("queue-d0", "nack"), {"node": "n1", "seqs": [seqs[1]]}))
    assert api.claim("queue-d0", "n3") == []
    letters = [int(r["meta"]["$dead_letter_src_seq"]) for r in api.diff("dead-d1")["records"]]
    assert sorted(letters) == seqs


def test_a_delete_while_letters_are_on_their_way_fails_no_claim(server):
    api = Api(server.address)
    api.make("queue-d0", type="queue", max_deliveries=1, dead_letter="dead-d1")
    for _ in range(20):
        api.write("queue-d0", *range(6))
        jobs = api.claim("queue-d0", max=3)
        seqs = [job["$seq"] for job in jobs]
        done(api.post(at("queue-d0", "nack"), {"node": "n1", "seqs": seqs}))
        at_once_claim_and_delete(api, seqs[-1] + 3)


def at_once_claim_and_delete(api: Api, before_seq: int) -> None:
    """A claim that buries, and a delete of what it would hand out."""
    found = at_once(
        [
            lambda: api.post(at("queue-d0", "claim"), {"node": "n2", "max": 3}),
            lambda: api.post(at("queue-d0", "delete"), {"before_seq": before_seq}),
        ]
    )
    assert [answer.status for answer in found] == [200, 200], [str(answer) for answer in found]
    done(api.post(at("queue-d0", "delete"), {"before_seq": 1 << 40}))
