"""A partition from a snapshot and the rest of its log is the one from its whole log.

Histories are made by commands against a live partition. Snapshots are taken of replayed ones, at
any point, one after another, with records moved to segments on the way; what memory does not hold
is loaded when it is asked for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protocol.commits import Commit, CommitWrite
from penstock.protocol.errors import RecordTooLarge, TopicFull
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.cold_row import ColdBlock, NotLoaded
from penstock.topics.core.entries import Skipped
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import ReadRequest, read
from penstock.topics.core.record import make_record
from penstock.topics.core.router import RouterConfig
from penstock.topics.core.topic import AppendResult
from penstock.topics.persist.segments import (
    SealOptions,
    SegmentHead,
    SegmentWriter,
    read_block,
    segments_to_seal,
)
from penstock.topics.persist.snapshot import (
    Restoring,
    SnapshotHeader,
    SnapshotReader,
    decode_kept,
    encode_snapshot,
    read_summary,
)

TOPICS = st.sampled_from(["a", "a", "b", "q", "e"])
TAGS = st.sampled_from([None, "x", "y:1", "y:2"])
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.sampled_from([0, 0, 60]),
        "cap_records": st.sampled_from([0, 0, 12]),
        "cap_bytes": st.sampled_from([0, 0, 60]),
        "idempotency_window_ms": st.sampled_from([10, 100]),
    },
)
CHANGES = st.sampled_from(
    [{"set": 1}, {"set": [2]}, {"patch": {"a": {"b": 1}}}, {"patch": {"a": None}}, {"delete": True}]
)
RECORDS = st.lists(st.tuples(TAGS, st.integers(0, 10**6)), min_size=1, max_size=6)
COMMANDS = st.one_of(
    st.tuples(st.just("write"), TOPICS, RECORDS, st.sampled_from([None, None, "k", "l"])),
    st.tuples(st.just("write"), TOPICS, RECORDS, st.none()),
    st.tuples(st.just("write"), st.just("a"), RECORDS, st.none()),
    st.tuples(st.just("delete"), st.just("a"), st.sampled_from(["x", "y:"]), st.just(100)),
    st.tuples(st.just("delete"), TOPICS, st.sampled_from([None, "x", "y:"]), st.integers(0, 20)),
    st.tuples(st.just("put"), TOPICS, CONFIGS),
    st.tuples(st.just("class"), TOPICS, st.sampled_from(["ephemeral", "disk"])),
    st.tuples(st.just("drop"), st.sampled_from(["b", "e"])),
    st.tuples(st.just("skip"), TOPICS, st.integers(1, 4)),
    st.tuples(st.just("claim"), st.integers(1, 4)),
    st.tuples(st.just("ack"), st.lists(st.integers(1, 20), max_size=5)),
    st.tuples(st.just("nack"), st.lists(st.integers(1, 20), max_size=5), st.sampled_from([0, 20])),
    st.tuples(st.just("forward")),
    st.tuples(st.just("commit"), st.sampled_from("xyz"), st.sampled_from("efg"), CHANGES),
    st.tuples(st.just("commit"), st.sampled_from("xyz"), st.sampled_from("efg"), CHANGES),
    st.tuples(st.just("delete"), st.just("s"), st.none(), st.integers(0, 20)),
    st.tuples(st.just("put"), st.just("s"), CONFIGS),
    st.tuples(st.just("wait"), st.integers(1, 25)),
)
HISTORIES = st.lists(COMMANDS, min_size=15, max_size=60)
SEALS = st.builds(
    SealOptions,
    segment_records_max=st.integers(1, 4),
    segment_bytes_max=st.just(1 << 20),
    segment_age_ms_max=st.sampled_from([5, 1_000]),
    hot_segments=st.integers(0, 2),
    hot_bytes_max=st.sampled_from([0, 10]),
)


class History:
    """Commands against a live partition, and the log they leave."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.partition = Partition()
        self.log: list[bytes] = []
        self.commits = 0
        queue = {"type": "queue", "leases_durable": True, "max_deliveries": 2, "dead_letter": "b"}
        space = {"type": "space"}
        for name, body in (
            ("a", {}), ("q", queue), ("e", {"durability": "ephemeral"}), ("s", space),
        ):  # fmt: skip
            self.commit(self.partition.decide_config(name, body, self.now_ms))
        self.commit(self.partition.decide_router(RouterConfig("ar", "a", "r"), self.now_ms))

    def commit(self, change: DecidedChange) -> None:
        if change.entries:
            self.partition.stage(change)
            if change.to_log:
                self.log.append(encode_entries(change.to_log))
            self.partition.apply_all(change.entries)

    def run(self, command: tuple[Any, ...]) -> None:
        verb, *rest = command
        getattr(self, f"do_{verb}")(*rest)

    def do_write(self, topic: str, records: list[tuple[str | None, int]], key: str | None) -> None:
        batch = Batch.of([make_record(b"%d" % number, tag=tag) for tag, number in records])
        try:
            decided = self.partition.decide_write(topic, WriteRequest(batch, key), self.now_ms)
        except (TopicFull, RecordTooLarge):
            return
        if not isinstance(decided, AppendResult):
            self.commit(decided)

    def do_delete(self, topic: str, tag: str | None, before_seq: int) -> None:
        if topic in self.partition.topics:
            match = Predicate(tag, prefix=tag.endswith(":")) if tag else None
            change = self.partition.decide_delete(
                topic, self.now_ms, before_seq=before_seq, match=match
            )
            self.commit(change)

    def do_put(self, topic: str, body: dict[str, Any]) -> None:
        self.commit(self.partition.decide_config(topic, body, self.now_ms))

    def do_class(self, topic: str, durability: str) -> None:
        self.do_put(topic, {"durability": durability})

    def do_drop(self, topic: str) -> None:
        self.commit(self.partition.decide_drop(topic, self.now_ms))

    def do_skip(self, name: str, seqs: int) -> None:
        topic = self.partition.topics.get(name)
        if topic is not None and topic.config.durability != "ephemeral":
            skipped = Skipped(name, topic.head_seq + seqs)
            self.commit(DecidedChange((skipped,), (skipped,)))

    def do_claim(self, jobs_max: int) -> None:
        queue = self.partition.queue("q")
        claimed = queue.decide_claim([ClaimRequest("n", jobs_max, 30)], self.now_ms, len(self.log))
        buried = DecidedChange((), ())
        if claimed.dead:
            try:
                buried = self.partition.decide_dead_letters(
                    "b", queue.letters(claimed), self.now_ms
                )
            except (TopicFull, RecordTooLarge):
                claimed = claimed.without_dead_letters()
        settled = self.partition.change_of(claimed)
        self.commit(
            DecidedChange((*buried.entries, *settled.entries), (*buried.to_log, *settled.to_log))
        )

    def do_ack(self, seqs: list[int]) -> None:
        entry, _ = self.partition.queue("q").decide_ack(Settle("n", tuple(seqs)), self.now_ms)
        self.commit(self.partition.change_of(entry))

    def do_nack(self, seqs: list[int], delay_ms: int) -> None:
        entry, _ = self.partition.queue("q").decide_nack(
            Settle("n", tuple(seqs)), self.now_ms, delay_ms
        )
        self.commit(self.partition.change_of(entry))

    def do_forward(self) -> None:
        entry = self.partition.decide_step("ar", self.now_ms).entry
        if entry is not None:
            self.commit(self.partition.change_of(entry))

    def do_commit(self, session: str, entity: str, change: dict[str, Any]) -> None:
        self.commits += 1
        commit = Commit(
            session=session,
            local_seq=self.commits,
            writes=(CommitWrite(entity, **change), CommitWrite("every", patch={entity: 1})),
            event_id=f"event-{self.commits}" if self.commits % 3 else None,
        )
        try:
            decided = self.partition.decide_commit("s", commit, self.now_ms)
        except (TopicFull, RecordTooLarge):
            return
        assert isinstance(decided, DecidedChange)
        self.commit(decided)

    def do_wait(self, ms: int) -> None:
        self.now_ms += ms


class Files:
    """Segments and snapshots that never reach a disk."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read(self, name: str) -> Any:
        return lambda count, offset: self.files[name][offset : offset + count]

    def seal(self, partition: Partition, options: SealOptions, index: int, now_ms: int) -> None:
        for topic in partition.topics.values():
            for runs in list(segments_to_seal(topic, options, now_ms)):
                name = f"{index}-{len(self.files)}"
                head = SegmentHead(0, topic.name, topic.epoch)
                writer = SegmentWriter(name, head)
                data = [writer.start(), *(writer.block(run) for run in runs), writer.end()]
                self.files[name] = b"".join(data)
                assert topic.row.seal(writer.blocks) == sum(len(run.sizes) for run in runs)

    def snapshot(self, partition: Partition, index: int) -> Partition:
        """Take a snapshot and restore it."""
        data = b"".join(encode_snapshot(partition, SnapshotHeader(3, index)))
        self.files["snapshot"] = data
        reader = SnapshotReader("snapshot", self.read("snapshot"))
        again = Partition()
        restoring = Restoring(again)
        for payload in reader.payloads():
            restoring.take(decode_kept("snapshot", payload))
        assert reader.header == (3, index)
        assert reader.summary == read_summary("snapshot", self.read("snapshot"), len(data))
        assert reader.summary is not None
        assert set(reader.summary.files) <= self.files.keys()
        return again

    def load_all(self, partition: Partition) -> None:
        for topic in partition.topics.values():
            for block in topic.row.cold.blocks:
                if block.file:
                    run = read_block(block.file, self.read(block.file), block.offset)
                    assert run.first_seq == block.first_seq
                    block.records = run.records


def replay(partition: Partition, log: list[bytes]) -> Partition:
    for payload in log:
        partition.apply_all(decode_entries(payload))
    return partition


def assert_same(one: Partition, other: Partition) -> None:
    assert one.state() == other.state()
    assert one.registry.size_bytes == other.registry.size_bytes
    for name, topic in one.topics.items():
        twin = other.topics[name]
        assert (topic.count, topic.size_bytes) == (twin.count, twin.size_bytes)
        assert (topic.row.base_seq, topic.earliest_seq) == (
            twin.row.base_seq,
            twin.earliest_seq,
        )
        for ts_ms in range(990, 1_300, 9):
            assert topic.seq_before(ts_ms) == twin.seq_before(ts_ms)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES, st.data())
def test_a_snapshot_at_any_point_and_the_rest_of_the_log_make_the_whole(
    commands: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    history = History()
    for command in commands:
        history.run(command)
    cut = data.draw(st.integers(0, len(history.log)))
    before = replay(Partition(), history.log[:cut])
    again = Files().snapshot(before, cut)
    assert_same(again, before)
    assert_same(replay(again, history.log[cut:]), replay(Partition(), history.log))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES, SEALS, st.data())
def test_sealed_records_are_read_deleted_and_lost_like_any_other(
    commands: list[tuple[Any, ...]], options: SealOptions, data: st.DataObject
) -> None:
    history = History()
    for command in commands:
        history.run(command)
    whole = replay(Partition(), history.log)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(history.log)), min_size=1, max_size=4)))
    files = Files()
    cold = Partition()
    for start, stop in zip([0, *cuts], [*cuts, len(history.log)], strict=True):
        replay(cold, history.log[start:stop])
        files.seal(cold, options, stop, history.now_ms)
        cold = files.snapshot(cold, stop)
    for name, topic in whole.topics.items():
        for from_seq in range(topic.head_seq + 2):
            request = ReadRequest(from_seq, limit=3, batch_bytes_max=12)
            for wanted in (request, request._replace(tag=Predicate("y:", prefix=True))):
                expected = read(topic, wanted, history.now_ms, TopicLimits())
                assert read_cold(files, cold, name, wanted, history.now_ms) == expected
    files.load_all(cold)
    assert_same(cold, whole)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES, SEALS, st.data())
def test_a_node_that_went_on_lets_go_of_what_was_sealed_behind_it(
    commands: list[tuple[Any, ...]], options: SealOptions, data: st.DataObject
) -> None:
    history = History()
    for command in commands:
        history.run(command)
    whole = replay(Partition(), history.log)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(history.log)), min_size=2, max_size=4)))
    files, live, behind = Files(), Partition(), Partition()
    sealed_upto = live_upto = 0
    for sealed_at, now_at in pairwise(cuts):
        replay(behind, history.log[sealed_upto:sealed_at])
        replay(live, history.log[live_upto:now_at])
        sealed_upto, live_upto = sealed_at, now_at
        before = {name: len(topic.row.cold.blocks) for name, topic in behind.topics.items()}
        files.seal(behind, options, sealed_at, history.now_ms)
        for name, topic in behind.topics.items():
            twin = live.topics.get(name)
            if twin is not None and twin.epoch == topic.epoch:
                twin.row.seal([again(b) for b in topic.row.cold.blocks[before[name] :]])
    replay(live, history.log[live_upto:])
    for name, topic in whole.topics.items():
        for from_seq in range(topic.head_seq + 2):
            request = ReadRequest(from_seq, limit=3, batch_bytes_max=12)
            expected = read(topic, request, history.now_ms, TopicLimits())
            assert read_cold(files, live, name, request, history.now_ms) == expected
    files.load_all(live)
    assert_same(live, whole)


def again(block: ColdBlock) -> ColdBlock:
    """A block as a node that went on knows it."""
    return ColdBlock(
        block.file,
        block.offset,
        block.length,
        first_seq=block.first_seq,
        last_seq=block.last_seq,
        tags=block.tags,
    )


def read_cold(files: Files, partition: Partition, name: str, request: Any, now_ms: int) -> Any:
    """Read as the shell does: load what is missing, ask again."""
    while True:
        try:
            return read(partition.topics[name], request, now_ms, TopicLimits())
        except NotLoaded as missing:
            block = missing.block
            assert block.file, "a block without a file has no live record"
            run = read_block(block.file, files.read(block.file), block.offset)
            block.records = run.records
