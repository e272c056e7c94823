"""Queues: claims, leases, giving back, dead letters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import NotAQueue
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, JobsAcked, JobsClaimed, TopicEntry
from penstock.topics.core.leases import ClaimRequest, JobLease, Settle
from penstock.topics.core.queue import (
    CLAIMED_BYTES_MAX,
    DEAD_LETTER_BYTES_MAX,
    DEAD_LETTERS_MAX,
    PASSED_MAX,
    Queue,
)
from penstock.topics.core.record import make_record
from penstock.topics.core.topic import Topic


def make_queue(count: int = 0, **config: Any) -> Queue:
    topic = Topic("q", TopicConfig(type="queue", **config), epoch=1, now_ms=0)
    queue = Queue(topic)
    write(queue, count)
    return queue


def write(queue: Queue, count: int, now_ms: int = 0) -> None:
    entry = queue.topic.decide_append(Batch.of([make_record(b"1")] * count), now_ms)
    assert isinstance(entry, Appended)
    change(queue, entry)


def change(queue: Queue, entry: TopicEntry) -> None:
    """Apply an entry of a queue's topic, as its partition does."""
    queue.topic.apply(entry)
    queue.forget_gone()


def write_large(queue: Queue, size_bytes: int, count: int) -> None:
    record = make_record(b"1" * size_bytes)
    for _ in range(count):
        entry = queue.topic.decide_append(Batch.of([record]), 0)
        assert isinstance(entry, Appended)
        queue.topic.apply(entry)


def claim(queue: Queue, now_ms: int, *, jobs_max: int = 1, node: str = "n") -> JobsClaimed:
    claimed = queue.decide_claim(
        [ClaimRequest(node, jobs_max, 1_000)], now_ms, token=now_ms * 1_000
    )
    queue.apply(claimed)
    return claimed


def seqs(claimed: JobsClaimed) -> list[int]:
    return [lease.seq for lease in claimed.leases]


def ack(
    queue: Queue, now_ms: int, *held: int, node: str = "n"
) -> tuple[tuple[int, ...], list[int]]:
    entry, skipped = queue.decide_ack(Settle(node, held), now_ms)
    queue.apply(entry)
    return entry.seqs, skipped


def nack(queue: Queue, now_ms: int, *held: int, delay_ms: int = 0) -> None:
    entry, _ = queue.decide_nack(Settle("n", held), now_ms, delay_ms)
    queue.apply(entry)


def test_a_log_has_no_leases() -> None:
    with pytest.raises(NotAQueue) as refused:
        Queue(Topic("t", TopicConfig(), epoch=1, now_ms=0))
    assert (refused.value.status, refused.value.detail) == (409, {"topic": "t"})


def test_jobs_are_handed_out_in_order_once_each() -> None:
    queue = make_queue(3)
    assert seqs(claim(queue, 0, jobs_max=2)) == [1, 2]
    assert seqs(claim(queue, 0, jobs_max=2)) == [3]
    assert seqs(claim(queue, 0)) == []
    assert queue.counts(0) == (0, 3, 0)


def test_a_claim_without_a_lease_time_gets_that_of_the_topic() -> None:
    queue = make_queue(1, lease_ms=700)
    claimed = queue.decide_claim([ClaimRequest("n")], 5, token=1)
    assert claimed.leases[0].deadline_ms == 705


def test_a_finished_job_is_deleted_and_the_rest_is_skipped() -> None:
    queue = make_queue(3)
    claim(queue, 0, jobs_max=2)
    assert ack(queue, 1, 1, 1, 3, 99) == ((1,), [1, 3, 99])
    assert ack(queue, 1, 1) == ((), [1])
    assert queue.topic.count == 2
    assert queue.counts(1) == (1, 1, 0)


def test_only_the_node_that_holds_a_job_may_settle_it() -> None:
    queue = make_queue(1)
    claim(queue, 0)
    assert ack(queue, 0, 1, node="other") == ((), [1])
    assert ack(queue, 0, 1) == ((1,), [])


def test_a_lease_is_over_when_the_time_is_past_its_deadline() -> None:
    queue = make_queue(2)
    claim(queue, 0)
    assert queue.counts(1_000) == (1, 1, 0)
    assert queue.counts(1_001) == (2, 0, 0)
    assert ack(queue, 1_001, 1) == ((), [1])
    again = claim(queue, 1_001)
    assert (seqs(again), again.leases[0].deliveries) == ([1], 2)


def test_a_stale_token_is_skipped_and_no_token_is_no_check() -> None:
    queue = make_queue(2)
    first = claim(queue, 0).leases[0]
    second = claim(queue, 2_000).leases[0]
    assert (first.seq, second.seq) == (1, 1)
    assert first.fence != second.fence
    entry, skipped = queue.decide_ack(Settle("n", (1,), (first.fence,)), 2_000)
    assert (entry.seqs, skipped) == ((), [1])
    entry, _ = queue.decide_ack(Settle("n", (1,), (second.fence,)), 2_000)
    assert entry.seqs == (1,)
    entry, _ = queue.decide_ack(Settle("n", (1,), (None,)), 2_000)
    assert entry.seqs == (1,)


def test_jobs_that_came_back_go_first_lowest_first() -> None:
    queue = make_queue(4)
    claim(queue, 0, jobs_max=3)
    nack(queue, 0, 3, 1)
    assert seqs(claim(queue, 0, jobs_max=3)) == [1, 3, 4]


def test_a_job_given_back_with_a_delay_is_away_until_then() -> None:
    queue = make_queue(1)
    claim(queue, 0)
    nack(queue, 10, 1, delay_ms=50)
    assert queue.counts(59) == (0, 0, 0)
    assert seqs(claim(queue, 59)) == []
    assert queue.next_due_ms() == 60
    assert queue.counts(60) == (1, 0, 0)
    assert seqs(claim(queue, 60)) == [1]


def test_extending_sets_the_end_from_now() -> None:
    queue = make_queue(1)
    claim(queue, 0)
    entry, skipped = queue.decide_extend(Settle("n", (1, 2)), 500, lease_ms=100)
    queue.apply(entry)
    assert (entry.seqs, entry.deadline_ms, skipped) == ((1,), 600, [2])
    assert queue.counts(600).in_flight == 1
    assert queue.counts(601).in_flight == 0


def test_extending_for_ever_keeps_the_books_small() -> None:
    queue = make_queue(1)
    claim(queue, 0)
    for now_ms in range(500):
        queue.apply(queue.decide_extend(Settle("n", (1,)), now_ms, lease_ms=86_400_000)[0])
    assert len(queue._deadlines) < 100
    assert queue.counts(500).in_flight == 1


def test_claimers_served_together_get_jobs_in_turns_with_the_first_ones_lease() -> None:
    queue = make_queue(5)
    requests = [ClaimRequest("a", 4, 200), ClaimRequest("b", 1, 900), ClaimRequest("c", 2, 900)]
    claimed = queue.decide_claim(requests, 0, token=2**64 - 2)
    assert [(lease.seq, lease.node, lease.request) for lease in claimed.leases] == [
        (1, "a", 0),
        (2, "b", 1),
        (3, "c", 2),
        (4, "a", 0),
        (5, "c", 2),
    ]
    assert {lease.deadline_ms for lease in claimed.leases} == {200}
    assert len({lease.fence for lease in claimed.leases}) == 5


def test_a_job_delivered_too_often_goes_to_the_dead_letters() -> None:
    queue = make_queue(2, max_deliveries=2, dead_letter="dead")
    for _ in range(2):
        claim(queue, 0)
        nack(queue, 0, 1)
    claimed = queue.decide_claim([ClaimRequest("n", 1, 1_000)], 0, token=0)
    letters = queue.letters(claimed)
    queue.apply(claimed)
    assert (claimed.dead, seqs(claimed), len(letters)) == ((1,), [2], 1)
    assert bytes(letters.records[0].data) == b"1"
    assert json.loads(bytes(letters.records[0].meta or b"")) == {
        "$dead_letter_from": "q",
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }
    assert queue.counts(0) == (0, 1, 1)
    assert queue.topic.get(1) is None


def test_one_claim_buries_no_more_bytes_than_one_entry_of_the_log_should_have() -> None:
    queue = make_queue(max_deliveries=1, dead_letter="dead")
    large = make_record(b'"%b"' % (b"x" * (DEAD_LETTER_BYTES_MAX // 2)))
    entry = queue.topic.decide_append(Batch.of([large] * 4), 0)
    assert isinstance(entry, Appended)
    queue.topic.apply(entry)
    for _ in range(4):
        claim(queue, 0)
    nack(queue, 0, 1, 2, 3, 4)
    write(queue, 1)
    claimed = claim(queue, 0)
    assert (claimed.dead, seqs(claimed)) == ((1, 2), [5])
    assert claim(queue, 0).dead == (3, 4)


def test_one_claim_hands_out_so_many_bytes_and_leaves_the_rest_to_the_next() -> None:
    queue = make_queue()
    write_large(queue, CLAIMED_BYTES_MAX // 4, 9)
    assert seqs(claim(queue, 0, jobs_max=9)) == [1, 2, 3, 4]
    assert seqs(claim(queue, 0, jobs_max=9)) == [5, 6, 7, 8]
    assert seqs(claim(queue, 0, jobs_max=9)) == [9]


def test_a_claimer_gets_one_job_however_large() -> None:
    queue = make_queue()
    write_large(queue, CLAIMED_BYTES_MAX + 1, 4)
    assert seqs(claim(queue, 0, jobs_max=2)) == [1]
    requests = [ClaimRequest(node, 2) for node in "ab"]
    claimed = queue.decide_claim(requests, 0, token=1)
    assert [(lease.seq, lease.node) for lease in claimed.leases] == [(2, "a"), (3, "b")]


def test_a_job_that_reached_nobody_was_not_delivered() -> None:
    queue = make_queue(1, max_deliveries=2, dead_letter="dead")
    claim(queue, 0)
    nack(queue, 0, 1)
    for _ in range(3):
        assert claim(queue, 0).leases[0].deliveries == 2
        entry, skipped = queue.decide_nack(Settle("n", (1,)), 0, 0, unseen=True)
        queue.apply(entry)
        assert not skipped
    assert claim(queue, 0).leases[0].deliveries == 2


def test_an_unseen_job_is_as_before_if_its_return_does_not_reach_the_log() -> None:
    queue = make_queue(1)
    claim(queue, 0)
    before = queue.state()
    queue.stage(queue.decide_nack(Settle("n", (1,)), 0, 0, unseen=True)[0])
    (lease,) = queue.decide_claim([ClaimRequest("n")], 0, token=7).leases
    assert lease.deliveries == 1, "the next claim counts on it"
    assert queue.state() == before, "nothing has happened yet"
    queue.abandon()
    assert queue.decide_claim([ClaimRequest("n")], 0, token=7).leases == ()


def test_without_a_place_for_dead_letters_a_job_is_delivered_on() -> None:
    queue = make_queue(1, max_deliveries=1)
    for deliveries in (1, 2, 3):
        assert claim(queue, 0).leases[0].deliveries == deliveries
        nack(queue, 0, 1)


def test_jobs_whose_dead_letters_were_refused_wait_on() -> None:
    queue = make_queue(1, max_deliveries=1, dead_letter="dead")
    claim(queue, 0)
    nack(queue, 0, 1)
    claimed = queue.decide_claim([ClaimRequest("n")], 0, token=0)
    queue.apply(claimed.without_dead_letters())
    assert queue.counts(0) == (1, 0, 0)
    assert queue.decide_claim([ClaimRequest("n")], 0, token=0).dead == (1,)


def test_a_job_that_left_by_a_cap_takes_its_lease_along() -> None:
    queue = make_queue(2, cap_records=2)
    claim(queue, 0, jobs_max=2)
    write(queue, 1)
    assert queue.counts(0) == (1, 1, 0)
    assert ack(queue, 0, 1, 2) == ((2,), [1])


def test_only_what_must_survive_is_logged() -> None:
    queue = make_queue(1)
    claimed = queue.decide_claim([ClaimRequest("n")], 0, token=0)
    assert queue.to_log(claimed) is None
    buried = replace(claimed, dead=(1,))
    assert queue.to_log(buried) == replace(buried, leases=())
    assert queue.to_log(queue.decide_nack(Settle("n", (1,)), 0, 0)[0]) is None
    assert queue.to_log(JobsAcked("q", 0, (1,))) == JobsAcked("q", 0, (1,))
    queue.topic.apply(queue.topic.decide_configure({"leases_durable": True}, 0))
    assert queue.to_log(claimed) == claimed
    assert queue.to_log(replace(claimed, leases=())) is None
    assert queue.to_log(JobsAcked("q", 0, ())) is None


def test_claims_that_were_not_logged_leave_their_jobs_claimable_behind_logged_ones() -> None:
    live, again = make_queue(5), make_queue(5)
    claim(live, 0, jobs_max=3)
    again.apply(claim(live, 0))
    assert seqs(claim(again, 0, jobs_max=9)) == [1, 2, 3, 5]


def test_a_restored_queue_is_the_one_the_snapshot_was_taken_of() -> None:
    queue = make_queue(5)
    claim(queue, 0, jobs_max=4)
    nack(queue, 0, 1)
    nack(queue, 0, 2, delay_ms=50)
    again = Queue.restored(Topic.restored(queue.topic.state()), queue.state())
    assert again.state() == queue.state()
    assert again.counts(50) == queue.counts(50) == (3, 2, 0)
    assert again.counts(1_001) == queue.counts(1_001) == (5, 0, 0)


def test_a_job_that_is_too_old_is_not_handed_out() -> None:
    queue = make_queue(1, ttl_ms=10)
    write(queue, 1, now_ms=5)
    assert seqs(claim(queue, 11, jobs_max=9)) == [2]
    assert queue.counts(11) == (0, 1, 0)
    assert queue.counts(16) == (0, 0, 0)


def test_a_job_that_leaves_while_its_claim_is_on_its_way_stays_away_when_that_fails() -> None:
    queue = make_queue(3)
    claim(queue, 0)
    acked, _ = queue.decide_ack(Settle("n", (1,)), 0)
    queue.stage(acked)
    queue.stage(queue.decide_claim([ClaimRequest("n")], 0, token=7))
    change(queue, queue.topic.decide_delete(0, before_seq=3))
    assert queue.counts(0) == (1, 0, 0)
    queue.abandon()
    assert queue.counts(0) == (1, 0, 0)
    assert (queue.lease_of(1), queue.lease_of(2)) == (None, None)
    assert seqs(claim(queue, 0, jobs_max=9)) == [3]


def test_a_finished_job_is_there_until_the_log_has_it_and_nobody_gets_it_meanwhile() -> None:
    queue = make_queue(1)
    claim(queue, 0)
    acked, _ = queue.decide_ack(Settle("n", (1,)), 0)
    queue.stage(acked)
    assert queue.topic.count == 1
    assert queue.counts(0) == (0, 1, 0)
    assert seqs(queue.decide_claim([ClaimRequest("n")], 5_000, token=0)) == []
    assert queue.decide_ack(Settle("n", (1,)), 0)[1] == [1]
    queue.apply(acked)
    assert queue.topic.count == 0


def test_an_ack_that_did_not_reach_the_log_gives_the_lease_back_as_it_was() -> None:
    queue = make_queue(1)
    lease = claim(queue, 0).leases[0]
    queue.stage(queue.decide_ack(Settle("n", (1,)), 0)[0])
    queue.abandon()
    assert queue.lease_of(1) == lease
    assert queue.counts(1_000) == (0, 1, 0)
    assert queue.counts(1_001) == (1, 0, 0)


def test_very_many_leases_that_end_together_come_back_in_order() -> None:
    queue = make_queue(300)
    claim(queue, 0, jobs_max=200)
    nack(queue, 0, *range(1, 41), delay_ms=2_000)
    claim(queue, 5, jobs_max=50)
    assert queue.counts(1_000) == (50, 210, 0)
    assert queue.counts(1_001) == (210, 50, 0)
    assert queue.counts(2_000) == (300, 0, 0)
    assert seqs(claim(queue, 2_000, jobs_max=300)) == list(range(1, 301))


@pytest.mark.parametrize("before_seq", [3, 120])
def test_jobs_that_leave_at_the_front_are_forgotten_wherever_they_were(before_seq: int) -> None:
    queue = make_queue(150)
    claim(queue, 0, jobs_max=100)
    nack(queue, 0, *range(1, 100, 3))
    nack(queue, 0, *range(2, 100, 3), delay_ms=500)
    change(queue, queue.topic.decide_delete(0, before_seq=before_seq))
    again = Queue.restored(Topic.restored(queue.topic.state()), queue.state())  # looks at each
    assert queue.counts(0) == again.counts(0)
    assert queue.state() == again.state()
    assert min(seqs(claim(queue, 600, jobs_max=300))) >= before_seq


def test_a_claim_does_not_look_at_every_job_that_is_to_be_buried() -> None:
    count = DEAD_LETTERS_MAX + PASSED_MAX + 10
    queue = make_queue(count, dead_letter="d", max_deliveries=1)
    claim(queue, 0, jobs_max=count)
    write(queue, 1, now_ms=2_000)
    first = claim(queue, 2_000)
    assert (seqs(first), len(first.dead)) == ([], DEAD_LETTERS_MAX), "it gave up too soon"
    assert seqs(claim(queue, 2_000)) == [count + 1], "which the next one finds"


def test_jobs_behind_very_many_that_nobody_takes_as_dead_letters_are_handed_out() -> None:
    count = 2 * (DEAD_LETTERS_MAX + PASSED_MAX)
    queue = make_queue(count, dead_letter="d", max_deliveries=1)
    claim(queue, 0, jobs_max=count)
    write(queue, 1, now_ms=2_000)
    found: list[int] = []
    for _ in range(3):  # the topic of dead letters is full
        claimed = queue.decide_claim(
            [ClaimRequest("n", 1, 1_000)], 2_000, token=7
        ).without_dead_letters()
        queue.apply(claimed)
        found += seqs(claimed)
    assert found == [count + 1]


def test_leases_and_delays_can_be_over_all_at_once() -> None:
    queue = make_queue(5)
    claim(queue, 0, jobs_max=4)
    nack(queue, 0, 2, delay_ms=50)
    queue.forget_leases()
    assert queue.counts(0) == (5, 0, 0)
    assert [(lease.seq, lease.deliveries) for lease in claim(queue, 0, jobs_max=9).leases] == [
        (1, 2), (2, 2), (3, 2), (4, 2), (5, 1),
    ]  # fmt: skip
    assert queue.counts(60) == (0, 5, 0), "what was due once is not any more"


def reason_of_death(queue: Queue, now_ms: int) -> str | None:
    """Claim a job that was delivered too often; why it died, according to its letter."""
    claimed = queue.decide_claim([ClaimRequest("n", 1, 1_000)], now_ms, token=9)
    (letter,) = queue.letters(claimed).records
    return json.loads(bytes(letter.meta or b"")).get("$dead_letter_reason")


def mortal(count: int = 1, max_deliveries: int = 2) -> Queue:
    return make_queue(count, dead_letter="dead", max_deliveries=max_deliveries, leases_durable=True)


def fail(queue: Queue, now_ms: int, reason: str = "", **more: Any) -> None:
    entry, _ = queue.decide_nack(Settle("n", (1,)), now_ms, 0, reason=reason, **more)
    queue.apply(entry)


def test_a_dead_letter_has_the_reason_of_the_last_delivery() -> None:
    queue = mortal()
    for reason in ("the first", "the last"):
        claim(queue, 0)
        fail(queue, 0, reason)
    assert reason_of_death(queue, 0) == "the last"


def test_a_job_that_was_returned_without_a_reason_dies_without_one() -> None:
    queue = mortal()
    for reason in ("the first", ""):
        claim(queue, 0)
        fail(queue, 0, reason)
    assert reason_of_death(queue, 0) is None


@pytest.mark.parametrize("applied", [True, False], ids=["time has passed", "nothing was written"])
def test_leases_that_end_are_a_reason_too(applied: bool) -> None:
    queue = mortal()
    claim(queue, 0)
    claim(queue, 2_000)
    if applied:
        queue.pass_time(4_000)
    assert reason_of_death(queue, 4_000) == "the lease ended 2 times"


def test_a_lease_that_ends_after_a_reason_is_the_last_one() -> None:
    queue = mortal()
    claim(queue, 0)
    fail(queue, 0, "why")
    claim(queue, 0)
    assert reason_of_death(queue, 4_000) == "the lease ended once"


def test_a_delivery_that_was_not_seen_does_not_change_the_reason() -> None:
    queue = mortal(max_deliveries=1)
    claim(queue, 0)
    fail(queue, 0, "why")
    assert [*queue.state().failures] == [(1, "why")]
    claimed = JobsClaimed("q", 0, (JobLease(1, "n", 5, 1_000, 2),))
    queue.apply(claimed)
    fail(queue, 0, unseen=True)
    assert [*queue.state().failures] == [(1, "why")]


def test_a_staged_nack_is_the_reason_of_a_death_decided_on_it() -> None:
    queue = mortal(max_deliveries=1)
    claim(queue, 0)
    queue.stage(queue.decide_nack(Settle("n", (1,)), 0, 0, reason="why")[0])
    assert reason_of_death(queue, 0) == "why"
    queue.abandon()
    assert reason_of_death(queue, 4_000) == "the lease ended once"


def test_reasons_are_forgotten_with_their_jobs_and_survive_a_snapshot() -> None:
    queue = mortal(4, max_deliveries=9)
    claim(queue, 0, jobs_max=4)
    entry, _ = queue.decide_nack(Settle("n", (1, 2, 3)), 0, 0, reason="why")
    queue.apply(entry)
    queue.pass_time(4_000)
    assert queue.state().failures == ((1, "why"), (2, "why"), (3, "why"), (4, 1))
    again = Queue.restored(queue.topic, queue.state())
    assert again.state() == queue.state()
    claim(queue, 4_000)
    ack(queue, 4_000, 1)
    change(queue, queue.topic.decide_remove((2,), 4_000))
    change(queue, queue.topic.decide_delete(4_000, before_seq=4))
    assert queue.state().failures == ((4, 1),)
