"""`penstock doctor`: one look at everything that can be wrong, and exit code 1 if anything is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from tests.unit.client.scripted import Answer, Seen, answered, failed, scripted

READY = answered(200, {"status": "ready", "wal_replay_complete": True, "topics": 1})
GOOD = answered(200, {"at": 1, "level": "ok", "sentence": "All is well.", "line": "", "facts": []})
BAD = answered(
    200,
    {"at": 1, "level": "refusing", "sentence": "Writes are refused.", "line": "The disk is full.",
     "facts": []},
)  # fmt: skip
FACTS = {
    "version": "1.0", "now_ms": 1, "disk_bytes": 1 << 40, "disk_free_bytes": 1 << 39, "log": "",
    "failed_partitions": [],
}  # fmt: skip
NODES = [
    {"name": "a", "facts": FACTS, "ahead_ms": 0, "round_trip_ms": 0.0, "problem": ""},
    {"name": "b", "facts": None, "ahead_ms": 0, "round_trip_ms": 0.0, "problem": "no link"},
]
GROUP = {"partition": 0, "role": "leader", "term": 1, "leader": "a", "stopped": None}


def member(name: str, link: str, problem: str | None = None) -> dict[str, Any]:
    return {"name": name, "id": "1", "address": f"{name}:1", "state": "voter", "link": link,
            "problem": problem}  # fmt: skip


def server(**changed: list[bytes]) -> Answer:
    """A healthy node alone, but for what is changed."""
    answers = {
        "/v0/ready": READY,
        "/v0/verdict": GOOD,
        "/v0/waiting": answered(200, {"at": 1, "total": 0, "waiting": []}),
        "/v0/parts": answered(200, {"at": 1, "parts": []}),
        "/v0/cluster/checks": failed(409, "not_clustered"),
        "/v0/cluster": failed(409, "not_clustered"),
        **{f"/v0/{name.replace('_', '/')}": answer for name, answer in changed.items()},
    }

    def answer(seen: Seen) -> Iterable[Any]:
        return answers[seen.path]

    return answer


def clustered(problems: list[str], members: list[dict[str, Any]], group: Any = GROUP) -> Answer:
    return server(
        cluster_checks=answered(200, {"nodes": NODES, "problems": problems}),
        cluster=answered(
            200, {"cluster": "c", "member": "a", "members": members, "partitions": [group]}
        ),
    )


def examined(answer: Answer, *words: str) -> tuple[int, str]:
    with scripted(answer) as made:
        place = ("--url", made.url, "--timeout-s", "20")
        done = CliRunner().invoke(main, ["doctor", *place, *words])
    return done.exit_code, done.output


def test_of_a_node_alone_readiness_and_the_verdict_are_checked() -> None:
    code, text = examined(server(), "--json")
    assert code == 0, text
    assert json.loads(text) == {"healthy": True, "nodes": [], "problems": []}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (server(ready=failed(503, "not_ready")), "not ready: it is not_ready"),
        (server(verdict=BAD), "Writes are refused. The disk is full."),
        (clustered(["the clock of b is 60.0 s ahead of this node's"], []), "the clock of b is"),
        (
            clustered([], [member("b", "down", "b has another secret")]),
            "the link to b is down: b has another secret",
        ),
        (clustered([], [], GROUP | {"leader": ""}), "partition 0 has no leader"),
        (clustered([], [], GROUP | {"stopped": "checksum"}), "partition 0 has stopped here"),
        (server(cluster_checks=failed(403, "forbidden")), "the cluster cannot be checked"),
    ],
    ids=["ready", "verdict", "clock", "link", "leader", "stopped", "key"],
)
def test_a_problem_is_said_and_ends_with_one(answer: Answer, problem: str) -> None:
    code, text = examined(answer)
    assert code == 1
    found = json.loads(text)
    assert not found["healthy"]
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith(problem)


def test_people_see_a_table_of_nodes_and_the_problems() -> None:
    members = [member("a", "self"), member("b", "up")]
    with scripted(clustered(["b is away: no link"], members)) as made:
        environ = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}
        done = CliRunner(env=environ).invoke(main, ["doctor", "--url", made.url])
    assert done.exit_code == 1
    assert "512 GiB" in done.output
    assert "takes writes" in done.output
    assert "b is away: no link" in done.output
    assert "1 problem" in done.output


def test_a_server_that_is_not_there_is_a_problem() -> None:
    with scripted(server()) as made:
        url = made.url
    done = CliRunner().invoke(main, ["doctor", "--url", url, "--timeout-s", "2"])
    assert done.exit_code == 1
    assert json.loads(done.output)["problems"]
