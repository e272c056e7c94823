"""Commands that span topics: making and dropping, writes that create, quotas, dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.errors import (
    BatchTooLarge,
    InvalidRequest,
    NotAQueue,
    RecordTooLarge,
    RouterCycle,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
)
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch, WriteRequest, parse_write
from penstock.topics.core.entries import Appended, Began, Created, Dropped, JobsClaimed
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.partition import RESERVE_SEQS, DecidedChange, Partition
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.record import make_record
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import RouterConfig, RouterRemoved
from penstock.topics.core.topic import AppendResult

ONE = Batch.of([make_record(b"1")])


def run(partition: Partition, change: DecidedChange | AppendResult) -> list[Any]:
    assert isinstance(change, DecidedChange)
    partition.stage(change)
    return partition.apply_all(change.entries)


def write(partition: Partition, topic: str, count: int = 1, **options: Any) -> list[Any]:
    batch = Batch.of([make_record(b"1")] * count)
    return run(partition, partition.decide_write(topic, WriteRequest(batch, **options), 0))


def limited(**limits: int) -> Partition:
    return Partition(Registry(TopicLimits(**limits)))


def put_router(partition: Partition, name: str, source: str, dest: str) -> list[Any]:
    if source not in partition.topics:
        run(partition, partition.decide_config(source, {}, 0))
    return run(partition, partition.decide_router(RouterConfig(name, source, dest), 0))


def data(partition: Partition, topic: str) -> list[bytes]:
    return [bytes(slot.record.data) for slot in partition.read(topic, ReadRequest(), 0).records]


def test_putting_a_topic_makes_it_once_and_then_changes_what_is_named() -> None:
    partition = Partition()
    run(partition, partition.decide_config("t", {"ttl_ms": 5, "cap_records": 9}, 0))
    assert partition.decide_config("t", {}, 0).entries == ()
    assert partition.decide_config("t", {"ttl_ms": 5}, 0).entries == ()
    run(partition, partition.decide_config("t", {"ttl_ms": 6}, 0))
    config = partition.topic("t").config
    assert (config.ttl_ms, config.cap_records) == (6, 9)
    with pytest.raises(TopicExistsIncompatible):
        partition.decide_config("t", {"type": "queue"}, 0)


def test_a_name_is_checked_only_where_something_would_be_created() -> None:
    partition = Partition()
    with pytest.raises(InvalidRequest):
        partition.decide_config("no spaces", {}, 0)
    with pytest.raises(InvalidRequest):
        partition.decide_write("no spaces", WriteRequest(ONE), 0)
    with pytest.raises(TopicNotFound) as refused:
        partition.read("no spaces", ReadRequest(), 0)
    assert refused.value.detail == {"topic": "no spaces"}


def test_a_write_creates_its_topic_with_its_config_unless_told_not_to() -> None:
    partition = Partition()
    change = partition.decide_write("t", WriteRequest(ONE, config={"ttl_ms": 7}), 0)
    assert isinstance(change, DecidedChange)
    assert [type(entry) for entry in change.entries] == [Created, Appended]
    run(partition, change)
    assert partition.topic("t").config.ttl_ms == 7
    write(partition, "t", config={"ttl_ms": 8})
    assert partition.topic("t").config.ttl_ms == 7
    for options in ({"create": False}, {"config": {"auto_create": False}}):
        with pytest.raises(TopicNotFound):
            partition.decide_write("other", WriteRequest(ONE, **options), 0)


def test_a_bad_batch_is_refused_before_anything_is_looked_up() -> None:
    with pytest.raises(BatchTooLarge):
        parse_write(b'{"records":[{"data":1},{"data":2}]}', TopicLimits(batch_records_max=1))
    body = '{"records":[{"data":1}],"idempotency_key":"%s"}'
    assert parse_write((body % ("ä" * 128)).encode()).key == "ä" * 128
    with pytest.raises(InvalidRequest):
        parse_write((body % ("ä" * 129)).encode())


def test_writes_behind_a_creation_on_its_way_go_to_the_same_topic() -> None:
    partition = Partition()
    first, second = (partition_write(partition, "t", key) for key in "ab")
    assert [type(entry) for entry in second.entries] == [Appended]
    with pytest.raises(TopicNotFound):
        partition.topic("t")
    again = partition.decide_write("t", WriteRequest(ONE, key="a"), 0)
    assert again == AppendResult(1, 1, 1, 1, deduped=True)
    partition.apply_all(first.entries)
    assert partition.topic("t").head_seq == 1
    partition.apply_all(second.entries)
    assert partition.topic("t").head_seq == 2


def partition_write(partition: Partition, topic: str, key: str) -> DecidedChange:
    change = partition.decide_write(topic, WriteRequest(ONE, key=key), 0)
    assert isinstance(change, DecidedChange)
    partition.stage(change)
    return change


def test_an_abandoned_creation_never_was() -> None:
    partition = Partition()
    partition_write(partition, "t", "a")
    partition.abandon()
    assert write(partition, "t", key="a")[1] == AppendResult(1, 1, 1, 1)


def test_the_limit_on_topics_is_for_new_ones_only() -> None:
    partition = limited(topics_max=1)
    write(partition, "t")
    write(partition, "t")
    for refused_call in (
        lambda: partition.decide_config("u", {}, 0),
        lambda: partition.decide_write("u", WriteRequest(ONE), 0),
        lambda: partition.decide_router(RouterConfig("r", "t", "u"), 0),
    ):
        with pytest.raises(Throttled) as refused:
            refused_call()
        assert refused.value.detail == {"limit": "max_topics", "max": 1}
    assert len(partition.routers) == 0


def test_the_limit_on_bytes_counts_every_topic_and_what_left_them() -> None:
    partition = limited(total_bytes_max=3)
    write(partition, "a", 2)
    write(partition, "b")
    with pytest.raises(Throttled) as refused:
        partition.decide_write("c", WriteRequest(ONE), 0)
    assert refused.value.detail == {"limit": "max_total_bytes", "max": 3}
    run(partition, partition.decide_delete("a", 0, before_seq=2))
    write(partition, "b")
    run(partition, partition.decide_drop("b", 0))
    write(partition, "c", 2)


def test_dropping_a_topic_takes_the_routers_into_it_along() -> None:
    partition = Partition()
    for name, source, dest in (("x", "a", "b"), ("v", "a", "b"), ("w", "b", "c"), ("y", "c", "d")):
        put_router(partition, name, source, dest)
    routers = (*partition.routers.fed_by("b"), *partition.routers.feeders_of("b"))
    assert sorted(router.config.name for router in routers) == ["v", "w", "x"]
    run(partition, partition.decide_router_removal("w"))
    change = partition.decide_drop("b", 0)
    run(partition, change)
    assert change.to_log == change.entries
    assert change.entries == (RouterRemoved("x", "b"), RouterRemoved("v", "b"), Dropped("b"))
    assert [router.config.name for router in partition.routers] == ["y"]
    assert partition.decide_drop("b", 0).entries == ()


def test_a_topic_that_must_be_empty_is_not_dropped_with_records() -> None:
    partition = Partition()
    write(partition, "t", 2)
    with pytest.raises(TopicNotEmpty) as refused:
        partition.decide_drop("t", 0, if_empty=True)
    assert refused.value.detail == {"topic": "t", "count": 2}
    run(partition, partition.decide_delete("t", 0, before_seq=9))
    run(partition, partition.decide_drop("t", 0, if_empty=True))


def test_a_topic_made_again_starts_over_in_another_epoch() -> None:
    partition = Partition()
    write(partition, "t", 3, key="k")
    first = partition.topic("t").epoch
    run(partition, partition.decide_drop("t", 0))
    assert write(partition, "t", 1, key="k")[1] == AppendResult(1, 1, 1, 1)
    assert partition.topic("t").epoch > first
    page = partition.read("t", ReadRequest(from_seq=1, epoch=first), 0)
    assert page.tombstone is not None
    assert page.tombstone.reason == "recreated"


def test_a_delete_says_what_is_wrong_with_it_before_it_looks_for_the_topic() -> None:
    with pytest.raises(InvalidRequest):
        Partition().decide_delete("absent", 0)
    with pytest.raises(TopicNotFound):
        Partition().decide_delete("absent", 0, before_seq=1)


def test_a_router_begins_at_the_head_of_its_source_and_makes_a_missing_destination() -> None:
    partition = Partition()
    write(partition, "a", 3)
    put_router(partition, "r", "a", "b")
    put_router(partition, "s", "x", "y")
    assert partition.routers.get("r").source_seq == 3
    assert partition.routers.get("s").source_epoch == partition.topic("x").epoch
    assert len({topic.epoch for topic in partition.topics.values()}) == 4
    with pytest.raises(RouterCycle):
        partition.decide_router(RouterConfig("t", "b", "a"), 0)
    with pytest.raises(TopicNotFound) as refused:
        partition.decide_router(RouterConfig("t", "a", "q"), 0, create_dest=False)
    assert refused.value.detail == {"topic": "q"}
    with pytest.raises(TopicNotFound) as refused:
        partition.decide_router(RouterConfig("t", "p", "q"), 0)
    assert refused.value.detail == {"topic": "p"}
    assert "q" not in partition.topics


def test_forwarding_moves_the_router_with_the_copies() -> None:
    partition = Partition()
    put_router(partition, "r", "a", "b")
    write(partition, "a", 2)
    entry = partition.decide_step("r", 0).entry
    assert entry is not None
    run(partition, partition.change_of(entry))
    router = partition.routers.get("r")
    assert (router.source_seq, router.forwarded_total) == (2, 2)
    assert data(partition, "b") == [b"1", b"1"]
    assert partition.decide_step("r", 0) == (None, False, False)
    assert run(partition, partition.decide_router_removal("r")) == [1]
    assert partition.decide_router_removal("r").entries == ()
    assert partition.topic("b").fed == {}


def test_a_queue_is_asked_for_only_where_there_is_one() -> None:
    partition = Partition()
    write(partition, "log")
    with pytest.raises(NotAQueue):
        partition.decide_claim("log", [ClaimRequest("n")], 0, 0)
    with pytest.raises(TopicNotFound):
        partition.decide_claim("absent", [ClaimRequest("n")], 0, 0)


def queue_with_a_worn_job(**dead: Any) -> Partition:
    partition = Partition()
    if dead:
        run(partition, partition.decide_config("dead", dead, 0))
        write(partition, "dead")
    body = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
    run(partition, partition.decide_config("q", body, 0))
    write(partition, "q")
    run(partition, partition.decide_claim("q", [ClaimRequest("n")], 0, 0))
    nacked, _ = partition.queue("q").decide_nack(Settle("n", (1,)), 0, 0)
    run(partition, partition.change_of(nacked))
    return partition


def claim_with_dead_letters(partition: Partition, name: str) -> DecidedChange:
    """A claim with the burials it asks for, if their topic takes them."""
    queue = partition.queue(name)
    claimed = queue.decide_claim([ClaimRequest("n")], 0, 0)
    letters, dest = queue.letters(claimed), queue.topic.config.dead_letter or ""
    try:
        buried = partition.decide_dead_letters(dest, letters, 0)
    except (TopicFull, RecordTooLarge):
        return partition.change_of(claimed.without_dead_letters())
    settled = partition.change_of(claimed)
    return DecidedChange((*settled.entries, *buried.entries), (*settled.to_log, *buried.to_log))


def test_a_worn_job_is_buried_in_a_topic_made_for_it_all_in_one_change() -> None:
    partition = queue_with_a_worn_job()
    change = claim_with_dead_letters(partition, "q")
    kinds = [type(entry) for entry in change.to_log]
    assert kinds == [JobsClaimed, Created, Appended]
    run(partition, change)
    assert data(partition, "dead") == [b"1"]
    assert partition.queue("q").counts(0) == (0, 0, 1)


@pytest.mark.parametrize("cap", [{"cap_records": 1}, {"cap_bytes": 9}])
def test_a_worn_job_waits_while_the_dead_letters_have_no_room(cap: dict[str, int]) -> None:
    partition = queue_with_a_worn_job(discard="reject", **cap)
    change = claim_with_dead_letters(partition, "q")
    run(partition, change)
    assert (change.to_log, data(partition, "dead")) == ((), [b"1"])
    assert partition.queue("q").counts(0) == (1, 0, 0)


def test_a_restored_partition_is_the_one_the_snapshot_was_taken_of() -> None:
    partition = queue_with_a_worn_job(cap_records=5)
    run(partition, partition.decide_router(RouterConfig("r", "dead", "copy"), 0))
    again = Partition.restored(partition.state())
    assert again.state() == partition.state()
    assert write(again, "new")[1] == write(partition, "new")[1]
    assert again.state() == partition.state()


def test_a_topic_at_the_limit_can_still_be_put_again() -> None:
    partition = limited(topics_max=1)
    run(partition, partition.decide_config("t", {}, 0))
    run(partition, partition.decide_config("t", {"ttl_ms": 5}, 0))
    assert partition.topic("t").config.ttl_ms == 5


def test_a_router_at_the_limit_can_still_be_put_again() -> None:
    partition = limited(routers_max=1)
    put_router(partition, "r", "a", "b")
    assert put_router(partition, "r", "a", "b") == [0]


def test_the_same_key_in_two_topics_is_two_writes() -> None:
    partition = Partition()
    for topic in ("t", "u"):
        assert not write(partition, topic, key="k")[-1].deduped


def test_a_write_on_its_way_is_not_there_for_readers() -> None:
    partition = Partition()
    write(partition, "t")
    change = partition.decide_write("t", WriteRequest(ONE), 0)
    assert isinstance(change, DecidedChange)
    partition.stage(change)
    assert data(partition, "t") == [b"1"]
    partition.apply_all(change.entries)
    assert data(partition, "t") == [b"1", b"1"]


def test_a_configuration_that_is_nonsense_is_refused_however_deep_it_is() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        Partition().decide_config("t", {"ttl_ms": deep}, 0)
    while deep:  # taken apart by hand: to forget it in one go is just as deep
        deep = deep.pop()


def test_a_start_ends_what_was_only_in_memory() -> None:
    partition = Partition()
    for name, config in (
        ("kept", {"type": "queue", "leases_durable": True}),
        ("loose", {"type": "queue"}),
        ("synced", {"durability": "fsync"}),
        ("disk", {}),
        ("eph", {"durability": "ephemeral"}),
    ):
        partition.apply_all(partition.decide_config(name, config, 0).entries)
        change = partition.decide_write(name, WriteRequest(Batch.of([make_record(b"1")])), 0)
        assert isinstance(change, DecidedChange)
        partition.apply_all(change.to_log)
    for name in ("kept", "loose"):
        partition.apply(partition.queue(name).decide_claim([ClaimRequest("n")], 0, 7))
    partition.apply(Began(3, 0, 50))
    assert (partition.term, partition.now_ms) == (3, 50)
    counts = [partition.queue(name).counts(0).in_flight for name in ("kept", "loose")]
    assert counts == [1, 0]
    heads = {name: topic.head_seq for name, topic in partition.topics.items()}
    set_aside = 1 + RESERVE_SEQS
    assert heads == {"kept": 1, "loose": 1, "synced": 1, "disk": 1, "eph": set_aside}
    again = Partition.restored(partition.state())
    for each in (partition, again):
        each.apply(Began(4, 0, 60, skipped_seqs=100))
        heads = {name: topic.head_seq for name, topic in each.topics.items()}
        skipped = {"kept": 101, "loose": 101, "synced": 1, "disk": 101, "eph": set_aside}
        assert heads == skipped, "what waits for syncs, and what is never logged, has lost nothing"
    assert again.state() == partition.state()
