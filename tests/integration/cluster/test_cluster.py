"""Three real processes: writes are replicated, and nothing acknowledged is lost with a leader."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster.processes import Process, Processes, cluster, command
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with cluster(tmp_path_factory.mktemp("three"), "a", "b", "c") as made:
        yield made


def test_a_write_to_any_node_is_on_all_of_them(three: Processes) -> None:
    for number, node in enumerate(three.others()):
        reply = node.write("t", f"from {node.name}")
        assert reply.status in (200, 201), reply
        assert reply.body["last_seq"] == number + 1
    expected = [f"from {name}" for name in "abc"]
    for node in three.others():
        wait_for_values(node, "t", expected)


def wait_for_values(node: Process, topic: str, expected: list[Any]) -> None:
    wait_until(lambda: node.values(topic) == expected, lambda: f"{topic} on {node.name}")


def test_a_batch_larger_than_a_letter_is_replicated_and_so_is_what_follows(
    three: Processes,
) -> None:
    assert three["a"].write("wide", 0).status == 201
    leader = three.leader_of(three.partition_of("wide"))
    large = [f"{number:02}" + "x" * 1_000_000 for number in range(20)]
    assert leader.write("wide", *large).status == 200
    assert leader.write("wide", "after").status == 200
    for node in three.others():
        wait_until(
            lambda node=node: node.call("GET", "/v0/topics/wide").body["head_seq"] == 22,  # type: ignore[misc]
            lambda node=node: f"the batch on {node.name}",  # type: ignore[misc]
        )
        found = node.values("wide")
        assert [found[0], *(each[:2] for each in found[1:-1]), found[-1]] == [
            0, *(each[:2] for each in large), "after",
        ]  # fmt: skip
    assert command("cluster", "verify", "--url", leader.url)


def test_a_log_with_an_entry_larger_than_a_letter_is_brought_to_a_new_node(tmp_path: Path) -> None:
    made = Processes(tmp_path)
    try:
        node = made.nodes["alone"] = Process(tmp_path, "alone")
        node.peer_listen = ""
        node.start()
        large = [f"{number:02}" + "x" * 1_000_000 for number in range(20)]
        assert node.write("wide", *large).status == 201
        node.kill()
        command("cluster", "init", node.name, node.peer, "--data-dir", str(node.directory))
        node.peer_listen = node.peer
        node.start()
        second = made.add("second", node)
        assert second.write("wide", "after").status == 200
        marks = [*(each[:2] for each in large), "af"]
        wait_until(lambda: [each[:2] for each in second.values("wide")] == marks, "the log")
    finally:
        made.close()


def test_many_large_writes_at_once_are_replicated(three: Processes) -> None:
    assert three["a"].write("crowd", 0).status == 201
    leader = three.leader_of(three.partition_of("crowd"))
    with ThreadPoolExecutor(40) as pool:
        replies = list(pool.map(lambda n: leader.write("crowd", "x" * 500_000 + str(n)), range(40)))
    assert {reply.status for reply in replies} == {200}
    assert leader.write("crowd", "after").status == 200
    command("cluster", "verify", "--url", leader.url)


def test_a_node_that_does_not_lead_says_who_answered(three: Processes) -> None:
    three["a"].write("t2", 1)
    leader = three.leader_of(three.partition_of("t2"))
    follower = three.others(leader.name)[0]
    assert follower.write("t2", 2).headers["x-penstock-leader"] == leader.url
    assert "x-penstock-leader" not in leader.write("t2", 3).headers


def test_metrics_and_the_page_tell_of_groups_and_followers(three: Processes) -> None:
    three["a"].write("counted", 1)
    partition = three.partition_of("counted")
    leader = three.leader_of(partition)
    follower = three.others(leader.name)[0]
    forwarded = metrics(follower)["calls_forwarded_total"]
    assert follower.write("counted", 2).status == 200
    told = metrics(follower)
    assert told["calls_forwarded_total"] > forwarded
    assert told[f"leads_{partition}"] == 0
    assert metrics(leader)[f"leads_{partition}"] == 1
    assert told["elections_total"] >= 3

    def has_all() -> bool:
        told = metrics(leader)
        return all(told[f"lag_{partition}_{each.name}"] == 0 for each in three.others(leader.name))

    wait_until(has_all, "the followers to have everything")
    text = leader.call_text("/v0/metrics")
    assert f'topics_group_lag_entries{{partition="{partition}",member="{follower.name}"}}' in text
    nodes = leader.call("GET", "/cluster?format=json").body["sections"]["nodes"]
    assert nodes["partitions"][partition]["leader"] == leader.name
    assert {each["waits"] for each in nodes["partitions"][partition]["followers"]} == {""}


def metrics(node: Process) -> dict[str, Any]:
    """What a node counts of its cluster."""
    reply = node.call("GET", "/v0/metrics", headers={"accept": "application/json"})
    found: dict[str, Any] = reply.body["cluster"]
    return found


def test_a_read_sees_what_was_answered_by_another_node(three: Processes) -> None:
    leader = three.leader_of(three.partition_of("fresh"))
    follower = three.others(leader.name)[0]
    for number in range(1, 51):
        assert leader.write("fresh", number).status in (200, 201)
        assert follower.call("GET", "/v0/topics/fresh").body["head_seq"] == number


def test_a_cursor_from_another_node_waits_and_is_told_no_loss(three: Processes) -> None:
    leader = three.leader_of(three.partition_of("moved"))
    follower = three.others(leader.name)[0]
    for number in range(1, 51):
        head_seq = leader.write("moved", number).body["head_seq"]
        page = follower.read("moved", head_seq).body
        assert page["records"] == []
        assert page.get("tombstone") is None, page
        assert not page.get("behind")


def test_a_killed_leader_is_replaced_and_everything_acknowledged_is_there(
    tmp_path: Path,
) -> None:
    kills, acknowledged = 5, []
    with cluster(tmp_path, "a", "b", "c", partitions=1) as made:
        for kill in range(kills):
            leader = made.leader_of(0)
            for number in range(20):
                value = f"{kill}-{number}"
                assert leader.write("kept", value, key=value).status in (200, 201)
                acknowledged.append(value)
            leader.kill()
            for number in range(20):
                value = f"{kill}-after-{number}"
                write_until_done(made, "kept", value)
                acknowledged.append(value)
            leader.start()
        for node in made.others():
            wait_for_values(node, "kept", acknowledged)
    print(f"{kills} leaders killed, {len(acknowledged)} acknowledged, 0 lost, 0 twice, in order")


def write_until_done(made: Processes, topic: str, value: str) -> None:
    """A client: any node, the same key until there is an answer."""

    def written() -> bool:
        for node in made.others():
            try:
                reply = node.write(topic, value, key=value, timeout_s=5.0)
            except OSError:
                continue
            if reply.status in (200, 201):
                return True
            assert reply.status in (421, 429, 503, 504), reply
        return False

    wait_until(written, f"{value} to be written")


def test_a_frozen_leader_is_replaced_and_commits_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1) as made:
        old = made.leader_of(0)
        assert old.write("t", "before").status == 201
        old.signal(signal.SIGSTOP)
        new = made.leader_of(0, old.name)
        write_until_done_on(new, "t", "meanwhile")
        old.signal(signal.SIGCONT)
        reply = old.write("t", "after", key="after")
        if reply.status >= 400:  # it found out that it does not lead by this very request
            assert reply.body["error"]["code"] in ("no_leader", "outcome_unknown"), reply
            write_until_done(made, "t", "after")
        for node in made.others():
            wait_for_values(node, "t", ["before", "meanwhile", "after"])


def write_until_done_on(node: Process, topic: str, value: str) -> None:
    wait_until(
        lambda: node.write(topic, value, key=value).status in (200, 201),
        f"{value} to be written",
    )


def test_without_a_majority_a_write_is_refused_and_local_reads_go_on(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1) as made:
        leader = made.leader_of(0)
        assert leader.write("t", "before").status == 201
        left, *gone = made.others(leader.name), leader
        last = left[0]
        wait_until(lambda: last.values("t") == ["before"], "the record on the node that stays")
        for node in (left[1], *gone):
            node.kill()

        def refused() -> bool:
            reply = last.write("t", "lost", timeout_s=60.0)
            assert reply.status in (503, 504), reply
            return reply.status == 503 and reply.body["error"]["code"] == "no_leader"

        wait_until(refused, "a definite refusal")
        assert "retry-after" in last.write("t", "lost").headers
        assert last.values("t") == ["before"]
        assert last.call("GET", "/v0/topics/t").status == 503
        assert last.call("GET", "/v0/topics/t?consistency=local").body["head_seq"] == 1
        page = last.read("t", 5).body
        assert page["behind"]
        assert page["records"] == []


def test_a_leader_that_cannot_write_its_file_still_changes_members(tmp_path: Path) -> None:
    made = Processes(tmp_path, partitions=1)
    try:
        first = made.found("a")
        file = first.directory / "cluster.json"
        content = file.read_bytes()
        file.unlink()
        file.mkdir()  # in the way of the new file
        made.add("b", first)
        assert sorted(first.view()["partitions"][0]["voters"]) == ["a", "b"]
        file.rmdir()
        wait_until(lambda: file.exists() and b'"b"' in file.read_bytes() != content, "the new file")
    finally:
        made.close()


def test_a_member_leaves_and_the_rest_goes_on_down_to_one(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=2) as made:
        made["b"].write("t", 1)
        leader = made.leader_of(0)
        for number, node in enumerate(made.others(leader.name)):
            command("cluster", "remove", node.name, "--url", leader.url)
            made.wait_settled(leader)
            node.kill()
            assert leader.write("t", number).status in (200, 201)
        view = leader.view()
        assert [each["name"] for each in view["members"]] == [leader.name]
        assert all(each["voters"] == [leader.name] for each in view["partitions"])
        assert leader.values("t") == [1, 0, 1]
