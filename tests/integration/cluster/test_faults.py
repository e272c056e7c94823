"""What a cluster answers where something is wrong: disks, clocks, directories, members."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster.processes import (
    Process,
    Processes,
    Reply,
    all_linked,
    cluster,
    command,
)
from tests.integration.cluster.test_cluster import wait_for_values
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make

FAULTY = str(Path(__file__).parents[1] / "server/faulty_disk.py")
SKEWED = str(Path(__file__).with_name("skewed_clock.py"))
HANDED_ON_S = 30.0
"""A transfer takes a tenth of a second; the deadline is that of a busy machine."""
SKEW_MS = 60_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with cluster(tmp_path_factory.mktemp("three"), "a", "b", "c", partitions=1) as made:
        yield made


def test_a_write_that_was_proposed_is_unknown_and_its_key_tells(three: Processes) -> None:
    found: list[Reply] = []

    def is_unknown() -> bool:
        found.append(write_without_followers(three, f"k{len(found)}"))
        return found[-1].status == 504  # 503 if the leader had just changed

    wait_until(is_unknown, lambda: f"a write of unknown outcome: {found}")
    key, error = f"k{len(found) - 1}", found[-1].body["error"]
    assert error["code"] == "outcome_unknown"
    assert error["detail"]["idempotency_key"] == key
    node = three["a"]
    write_on(node, "keyed", "more")
    again = [node.write("keyed", content, key=key) for content in ("other content", key)]
    assert [each.status for each in again] == [200, 200]
    assert len({each.body["first_seq"] for each in again}) == 1
    assert again[1].body["deduped"]
    seq = again[0].body["first_seq"]
    assert seq <= len(node.values("keyed"))


def write_without_followers(made: Processes, key: str) -> Reply:
    """A write to the leader while the others are frozen."""
    leader = made.leader_of(0)
    others = made.others(leader.name)
    for node in others:
        node.signal(signal.SIGSTOP)
    try:
        return leader.write("keyed", key, key=key, timeout_s=100)
    finally:
        for node in others:
            node.signal(signal.SIGCONT)


def test_a_second_change_of_members_is_refused_and_names_the_first(three: Processes) -> None:
    node = three["a"]
    three.wait_settled(node)
    peer = {"name": "late", "address": "127.0.0.1:9"}
    assert node.call("POST", "/v0/cluster/members", peer).status == 200
    second = {"name": "later", "address": "127.0.0.1:10"}
    reply = node.call("POST", "/v0/cluster/members", second)
    assert (reply.status, reply.body["error"]["code"]) == (409, "change_in_progress")
    assert "late is being added" in reply.body["error"]["message"]
    assert node.call("DELETE", "/v0/cluster/members/late?force=true").status == 200
    three.wait_settled(node)


def test_a_removal_that_leaves_no_majority_is_refused_and_says_what_is_lost(
    three: Processes,
) -> None:
    leader = three.leader_of(0)
    three.wait_settled(leader)
    away, other = three.others(leader.name)
    away.kill()
    wait_until(lambda: link(leader, away.name) != "up", "the link to be down")
    reply = leader.call("DELETE", f"/v0/cluster/members/{other.name}")
    away.start()
    assert (reply.status, reply.body["error"]["code"]) == (409, "no_majority_left")
    assert "lost" in reply.body["error"]["message"]
    assert "--force" in reply.body["error"]["message"]
    wait_until(lambda: link(leader, away.name) == "up", "the link to be up")


def test_a_browser_that_signed_in_at_one_node_may_change_what_another_one_leads(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1) as made:
        for node in made.nodes.values():
            node.environ = {"PENSTOCK_API_KEYS": "root,looker:read"}
            assert node.stop() == 0
            node.start()
        made_by = {name: sign_in_and_make_a_topic(node) for name, node in made.nodes.items()}
        assert any("x-penstock-leader" in reply.headers for reply in made_by.values())
        node = made["a"]
        looker = node.call("PUT", "/v0/topics/t", {}, headers=cookie_of(node, "looker"))
        assert (looker.status, looker.body["error"]["code"]) == (403, "forbidden")
        for cookie in ({}, {"cookie": "penstock=guess"}):
            assert node.call("PUT", "/v0/topics/t", {}, headers=cookie).status == 401


def sign_in_and_make_a_topic(node: Process) -> Reply:
    """Make a topic with a cookie of this node, whichever leads; 503 while the leader changes."""
    cookie, replies = cookie_of(node, "root"), list[Reply]()
    wait_until(  # the other nodes answer this one for the browser's sake
        lambda: not node.call("GET", "/v0/cluster/checks", headers=cookie).body["problems"],
        "all nodes to be in reach and to say how they are",
    )

    def is_made() -> bool:
        replies.append(node.call("PUT", f"/v0/topics/by-{node.name}", {}, headers=cookie))
        assert replies[-1].status in (200, 201, 503), replies
        return replies[-1].status != 503

    wait_until(is_made, "a topic")
    return replies[-1]


def cookie_of(node: Process, key: str) -> dict[str, str]:
    """What a browser sends after it has signed in at a node."""
    reply = node.call("POST", "/v0/session", headers={"authorization": f"Bearer {key}"})
    return {"cookie": str(reply.headers["set-cookie"]).partition(";")[0]}


def write_on(node: Process, topic: str, value: Any) -> None:
    """Write with a key until the write is answered."""
    wait_until(
        lambda: node.write(topic, value, key=str(value)[:40]).status in (200, 201),
        f"{value} to be written",
    )


def link(node: Process, name: str) -> str:
    return str(next(each["link"] for each in node.view()["members"] if each["name"] == name))


def test_a_directory_that_lost_its_log_serves_nothing_and_says_replace(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1) as made:
        leader = made.leader_of(0)
        assert leader.write("t", 1).status == 201
        lost = made.others(leader.name)[0]
        lost.kill()
        shutil.rmtree(lost.directory / "log")
        (lost.directory / "layout.json").unlink(missing_ok=True)
        lost.start(wait=False)
        wait_until(lambda: refusal(lost) == "member_lost", lambda: f"a refusal: {lost.said()}")
        message = lost.call("GET", "/v0/topics").body["error"]["message"]
        assert f"penstock cluster replace {lost.name}" in message
        assert lost.call("GET", "/v0/health").status == 200
        assert link(leader, lost.name) == "down"
        assert leader.write("t", 2).status == 200
        # As a `replace` that broke off after the removal leaves it.
        assert leader.call("DELETE", f"/v0/cluster/members/{lost.name}").status == 200
        heal(made, leader, lost, lost.peer)
        wait_for_values(lost, "t", [1, 2])


def refusal(node: Process) -> str:
    with suppress(OSError):
        return str(node.call("GET", "/v0/ready").body["error"]["code"])
    return ""


def heal(made: Processes, leader: Process, lost: Process, *address: str) -> None:
    """Replace a member by one with a new directory at the same address."""
    lost.kill()
    lost.directory = lost.directory.with_name(f"{lost.name}-new")
    command("cluster", "replace", lost.name, *address, "--data-dir", str(lost.directory),
            "--url", leader.url)  # fmt: skip
    lost.start()
    made.wait_settled(leader)


def test_a_flipped_bit_stops_one_partition_of_one_node_and_replace_heals_it(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=2) as made:
        partition = made.partition_of("t")
        other = next(name for name in ("u", "v", "w", "x") if made.partition_of(name) != partition)
        leader = made.leader_of(partition)
        for number in range(50):
            write_on(leader, "t", f"{number:3} {'x' * 500}")
        write_on(leader, other, 1)
        hurt = made.others(leader.name)[0]
        wait_until(lambda: len(hurt.values("t")) == 50, "all records on the node")
        wait_for_values(hurt, other, [1])
        hurt.kill()
        flip_a_bit(hurt.directory / "log")
        hurt.start()
        ready = hurt.call("GET", "/v0/ready").body
        assert ready["status"] == "degraded"
        (failed,) = ready["failed_partitions"]
        assert failed["partition"] == partition
        assert failed["file"]
        assert failed["offset"] is not None
        assert "checksum" in hurt.view()["partitions"][partition]["stopped"]
        assert hurt.call_text("/v0/metrics").count("topics_group_term{") == 2
        words = f"partition {partition} of {hurt.name} is damaged"
        wait_until(lambda: any(words in each for each in problems(leader)), words)
        write_on(leader, "t", "on")
        wait_for_values(hurt, other, [1])
        heal(made, leader, hurt)
        wait_until(lambda: len(hurt.values("t")) == 51, "all records on the new node")


def problems(node: Process) -> list[str]:
    found: list[str] = node.call("GET", "/v0/cluster/checks").body["problems"]
    return found


def flip_a_bit(log: Path) -> None:
    """In the middle of what was written."""
    for path in sorted(log.iterdir(), key=lambda path: path.stat().st_size):
        data = bytearray(path.read_bytes())
        at = data.find(b"x" * 400)
        if at >= 0:
            data[at + 100] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("no file of the log has the records")


def test_a_follower_with_a_full_disk_says_so_and_catches_up(tmp_path: Path) -> None:
    with faulty(tmp_path) as (made, faults):
        leader = made.leader_of(0)
        write_on(leader, "t", 0)
        full = made.others(leader.name)[0]
        wait_for_values(full, "t", [0])
        term = full.view()["partitions"][0]["term"]
        faults[full.name].write_text("full")
        values: list[Any] = [0]

        def is_said() -> bool:
            values.append(len(values))
            write_on(leader, "t", values[-1])
            group = made.leader_of(0).view()["partitions"][0]  # the leader may move
            waits = [each["waits"] for each in group["followers"] if each["name"] == full.name]
            # It may not answer in a term that it cannot sync: then it is not heard from.
            why = "full disk" if group["term"] == term else "it is not heard from"
            return any(why in each for each in waits)

        wait_until(
            is_said, lambda: f"the leader to know of the full disk: {made.leader_of(0).view()}"
        )
        assert full.values("t") != values
        faults[full.name].unlink()
        wait_for_values(full, "t", values)


def test_a_leader_with_a_full_disk_refuses_and_another_one_leads(tmp_path: Path) -> None:
    with faulty(tmp_path) as (made, faults):
        old = made.leader_of(0)
        write_on(old, "t", 0)
        faults[old.name].write_text("full")
        reply = old.write("t", "refused or unknown", key="refused or unknown")
        others = made.others(old.name)
        wait_until(
            lambda: all(each.leaders()[0] not in ("", old.name) for each in others),
            lambda: (
                f"a healthy follower to lead: {reply} {[each.view() for each in made.others()]}"
            ),
            patience_s=HANDED_ON_S,
        )
        new = made.leader_of(0, old.name)
        if reply.status == 429:
            assert reply.body["error"]["detail"]["limit"] == "disk"
        elif reply.status >= 400:
            assert reply.body["error"]["code"] in ("no_leader", "outcome_unknown"), reply
        write_on(new, "t", "on")
        write_on(new, "t", "refused or unknown")
        faults[old.name].unlink()
        wait_until(lambda: old.values("t") == new.values("t"), "the old leader to catch up")
        assert sorted(map(str, new.values("t"))) == ["0", "on", "refused or unknown"]


def test_after_a_failed_sync_a_node_leads_no_more_until_it_is_started_again(
    tmp_path: Path,
) -> None:
    with faulty(tmp_path) as (made, faults):
        old = made.leader_of(0)
        write_on(old, "t", 0)
        faults[old.name].write_text("fail")
        reply = old.write("t", "unknown", key="unknown")
        assert reply.status in (200, 503, 504), reply
        new = made.leader_of(0, old.name)
        faults[old.name].unlink()
        write_on(new, "t", "unknown")
        write_on(new, "t", "on")
        wait_until(lambda: old.values("t")[:1] == [0], "what it has to be read")
        assert old.view()["partitions"][0]["stopped"]
        third = made.others(old.name, new.name)[0]
        third.signal(signal.SIGSTOP)  # it may not vote: without the third one nobody leads
        wait_until(lambda: new.leaders() == [""], "the leader to step down")
        third.signal(signal.SIGCONT)
        made.leader_of(0, old.name)
        old.kill()
        old.start()
        wait_until(lambda: old.values("t") == [0, "unknown", "on"], "the node to catch up")


@contextmanager
def faulty(place: Path) -> Iterator[tuple[Processes, dict[str, Path]]]:
    """Three nodes whose disks do what a file of each says."""
    made, faults = Processes(place, partitions=1), {}
    try:
        made.grow("a", "b", "c")
        for name, node in made.nodes.items():
            faults[name] = place / f"{name}.fault"
            node.program = [FAULTY, str(faults[name])]
            node.kill()
            node.start()
        wait_until(lambda: all_linked(made), "all links to be up after the restarts")
        yield made, faults
    finally:
        made.close()


def test_a_clock_that_is_ahead_changes_nothing_and_time_never_jumps_back(tmp_path: Path) -> None:
    made = Processes(tmp_path, partitions=1)
    try:
        first = made.found("a")
        for name in "bc":
            made.add(name, first)
        fast = made.others(made.leader_of(0).name)[0]
        fast.kill()
        fast.program = [SKEWED, str(SKEW_MS)]
        fast.start()
        wait_until(lambda: link(first, fast.name) == "up", "the link to be up")
        (problem,) = first.call("GET", "/v0/cluster/checks").body["problems"]
        assert problem.startswith(f"the clock of {fast.name} is ")
        assert "ahead of" in problem
        command("doctor", "--url", first.url, fails=True)
        first.write("t", 1)
        wait_until(lambda: fast.values("t") == [1], "the record on the node with the fast clock")
        command("cluster", "transfer", fast.name, "--url", first.url)
        wait_until(lambda: first.leaders() == [fast.name], "the fast one to lead")
        write_on(fast, "t", 2)
        command("cluster", "transfer", "a" if fast.name != "a" else "b", "--url", first.url)
        wait_until(lambda: first.leaders() != [fast.name], "another one to lead")
        write_on(first, "t", 3)
        for node in made.others():
            wait_for_values(node, "t", [1, 2, 3])
            times = [record["$ts"] for record in node.read("t").body["records"]]
            assert times == sorted(times)
            assert times[1] - times[0] >= SKEW_MS / 2
    finally:
        made.close()
