"""The client's cores against simple models: frames, watches and batches, however they are cut."""

from __future__ import annotations

import json
from collections import deque
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.batching import Batcher, BatchLimits
from penstock.client.errors import Disconnected, Unreachable, Untrusted
from penstock.client.event_stream import Frame, FrameParser
from penstock.client.records import Record, encode_record, encode_records
from penstock.client.retry import RetryPolicy, Tries
from penstock.client.watching import Create, Open, Pause, Position, WatchCore, WatchOptions
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Unknown
from penstock.protocol.errors import (
    Internal,
    NotFound,
    Outcome,
    OutcomeUnknown,
    ServerUnavailable,
    ShuttingDown,
    Throttled,
    TopicFull,
    TopicNotFound,
)
from penstock.protocol.events import Records

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20)
FRAMES = st.lists(
    st.tuples(st.sampled_from(["record", "caught-up", "x"]), WORDS, WORDS), max_size=6
)


def cut(data, points):
    """The data in pieces that end at these points."""
    edges = [0, *sorted({point % (len(data) + 1) for point in points}), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=20), st.sampled_from(["\n", "\r\n"]))
def test_frames_are_the_same_however_the_bytes_are_cut(frames, points, newline):
    text = ": hb\n\nretry: 2000\n\n"
    for event, data, frame_id in frames:
        text += f"id: {frame_id}\nevent: {event}\ndata: {data}\n\n: hb\n\n"
    parser = FrameParser()
    found = [
        frame
        for piece in cut(text.replace("\n", newline).encode(), points)
        for frame in parser.feed(piece)
    ]
    assert found == [Frame(event, data.encode(), frame_id) for event, data, frame_id in frames]


@given(FRAMES, st.integers(0, 10_000))
def test_a_frame_that_is_cut_off_is_never_handed_out(frames, point):
    data = b"".join(f"event: {e}\ndata: {d}\n\n".encode() for e, d, _ in frames)
    whole = FrameParser().feed(data)
    part = FrameParser().feed(data[: point % (len(data) + 1)])
    assert part == whole[: len(part)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.none() | WORDS, st.none() | st.dictionaries(WORDS, JSON, max_size=3))
def test_a_record_says_the_same_as_object_and_as_text(data, tag, meta):
    wanted = {"data": data} | {k: v for k, v in (("tag", tag), ("meta", meta)) if v is not None}
    assert json.loads(encode_record(Record(data, tag=tag, meta=meta))) == wanted
    raw = json.dumps(data, indent=1).encode()
    assert json.loads(encode_record(Record(raw, tag=tag, meta=meta))) == wanted
    assert json.loads(encode_records([data, raw])) == [{"data": data}] * 2
    assert json.loads(encode_records([data, data])) == [{"data": data}] * 2


ENDS = st.sampled_from(
    [None, Disconnected("x"), NotFound("x"), ShuttingDown("x"), Throttled("x", retry_after_ms=3)]
)
LIVES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), ENDS), max_size=8)


def record_frame(low, high, head):
    records = [{"$seq": n, "$ts": 0, "data": n} for n in range(low + 1, high + 1)]
    data = {"topic": "a", "from_seq": low, "to_seq": high, "head_seq": head, "records": records}
    return Frame("record", json.dumps(data).encode(), "")


@given(LIVES, st.integers(0, 20), st.integers(1, 4))
def test_a_watch_hands_every_record_out_once_whatever_ends_its_streams(lives, head, batch):
    """Each life of the stream tells some batches, maybe again, and ends somehow."""
    core = WatchCore({"a": Position()}, WatchOptions(), Backoff(1, 9, 0.5, 1e9), Random(1))
    found, now_ms = [], 0.0
    for batches, overlap, end in [*lives, (1_000, 2, None)]:
        while isinstance(step := core.next_step(), Pause):
            now_ms += step.delay_ms
        assert isinstance(step, Create)
        place = step.body.topics["a"]
        assert place.from_seq == len(found)
        assert core.created({"wid": "w", "topics": {"a": {"from_seq": 0, "epoch": 3}}}) == []
        assert core.next_step() == Open("w")
        low = max(0, place.from_seq - overlap)
        for _ in range(batches):
            if low >= head:
                break
            high = min(head, low + batch)
            event = core.frame(record_frame(low, high, head))
            if isinstance(event, Records):
                found += [record.data for record in event.records]
            low = high
        core.ended(now_ms, end)
    assert found == list(range(1, head + 1))
    assert core.positions["a"] == Position(head, 3)


SENDS = st.lists(st.integers(1, 60) | st.sampled_from(["take", "done"]), max_size=80)


@given(SENDS, st.integers(1, 5), st.integers(1, 150))
def test_batches_are_in_order_within_their_limits_and_one_at_a_time(steps, records_max, bytes_max):
    keys = iter(range(1_000))
    batcher = Batcher(BatchLimits(records_max, bytes_max, 10_000), lambda: str(next(keys)))
    waiting, under_way, landed, sent = deque(), None, [], []
    for number, step in enumerate(steps):
        if step == "take":
            batch = batcher.take()
            assert (batch is None) == (under_way is not None or not waiting)
            if batch is not None:
                assert len(batch.records) <= records_max
                assert batch.size_bytes <= bytes_max or len(batch.records) == 1
                assert batch.records == [waiting.popleft() for _ in batch.records]
                under_way = batch
        elif step == "done":
            if under_way is not None:
                landed += under_way.records
                assert batcher.done() == len(under_way.records)
                under_way = None
        else:
            record = b"%04d" % number + b"x" * step
            batcher.add(record)
            waiting.append(record)
            sent.append(record)
        assert batcher.acked == len(landed)
        assert landed + batcher.unacked() == sent
        assert batcher.size_bytes == sum(map(len, batcher.unacked()))
        assert batcher.idle == (len(landed) == len(sent))


FAILURES = st.lists(
    st.sampled_from(
        [
            Unreachable("x"),
            Disconnected("x"),
            Internal("x"),
            Throttled("x"),
            ServerUnavailable("x"),
            OutcomeUnknown("x"),
            TopicFull("x"),
            TopicNotFound("x"),
            Untrusted("x"),
        ]
    ),
    min_size=1,
    max_size=8,
)
AGAIN = (Throttled, ServerUnavailable, OutcomeUnknown)


@given(FAILURES, st.booleans(), st.booleans(), st.integers(1, 8))
def test_a_call_is_repeated_only_where_that_is_safe_and_never_called_failed_when_it_may_be_done(
    failures, repeatable, keyed, tries_max
):
    tries = Tries(
        RetryPolicy(tries_max=tries_max),
        repeatable=repeatable or keyed,
        window_ms=60_000,
        idempotency_key="k" if keyed else None,
    )
    is_open = False
    for count, error in enumerate(failures, start=1):
        again = tries.failed(error, elapsed_ms=0, random=Random(1)) is not None
        is_lost = error.outcome is Outcome.UNKNOWN
        is_open = is_open or is_lost
        worth = isinstance(error, AGAIN) and (repeatable or keyed or not is_lost)
        assert again == (count < tries_max and worth)
        # With a key, `TopicFull` is said of a write that the server has not taken before.
        told = keyed and isinstance(error, TopicFull)
        assert isinstance(tries.verdict(), Unknown) == (is_open and not told)
        if not again:
            break


@given(FAILURES)
def test_a_read_ends_with_what_was_wrong(failures):
    tries = Tries(RetryPolicy(), repeatable=True, window_ms=60_000, changes=False)
    for error in failures:
        tries.failed(error, elapsed_ms=0, random=Random(1))
        assert tries.verdict() is error
