"""Keyed writes: a retry gets the first answer while its window lasts."""

from __future__ import annotations

from penstock.protocol.config import TopicConfig
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended
from penstock.topics.core.record import make_record
from penstock.topics.core.topic import AppendResult, Topic
from penstock.topics.core.topic_state import KeyedAnswer, KeyedAnswers

ONE = Batch.of([make_record(b"1")])


def make_topic(window_ms: int = 100, **config: object) -> Topic:
    config["idempotency_window_ms"] = window_ms
    return Topic("t", TopicConfig().merged(config), epoch=1, now_ms=0)


def write(topic: Topic, key: str, now_ms: int) -> AppendResult:
    entry = topic.decide_append(ONE, now_ms, key=key)
    written = topic.apply(entry) if isinstance(entry, Appended) else entry
    assert isinstance(written, AppendResult)
    return written


def test_a_retry_gets_the_seqs_and_the_head_of_the_first_try() -> None:
    topic = make_topic()
    write(topic, "a", 0)
    write(topic, "b", 0)
    assert write(topic, "a", 50) == AppendResult(1, 1, 1, 1, deduped=True)
    assert topic.head_seq == 2


def test_the_last_millisecond_of_the_window_counts_and_the_next_does_not() -> None:
    topic = make_topic()
    write(topic, "a", 0)
    assert write(topic, "a", 100).deduped
    assert write(topic, "a", 101) == AppendResult(2, 2, 1, 2)
    assert write(topic, "a", 201) == AppendResult(2, 2, 1, 2, deduped=True)


def test_a_retry_is_answered_even_when_the_topic_is_full_by_now() -> None:
    topic = make_topic(cap_records=1, discard="reject")
    write(topic, "a", 0)
    assert write(topic, "a", 0).deduped


def test_a_retry_meanwhile_gets_the_seqs_of_the_write_on_its_way() -> None:
    topic = make_topic()
    entry = topic.decide_append(ONE, 0, key="a")
    assert isinstance(entry, Appended)
    topic.stage(entry)
    assert topic.decide_append(ONE, 0, key="a") == AppendResult(1, 1, 1, 1, deduped=True)
    topic.apply(entry)
    assert write(topic, "a", 0).deduped


def test_answers_whose_window_is_over_are_forgotten_with_the_next_keyed_write() -> None:
    answers = KeyedAnswers()
    for number in range(10):
        answers.apply(f"k{number}", KeyedAnswer(number, number, number * 10), window_ms=25)
    assert list(answers.kept()) == ["k7", "k8", "k9"]


def test_a_key_used_again_after_its_window_does_not_keep_older_answers_alive() -> None:
    answers = KeyedAnswers()
    for key, at_ms in (("a", 0), ("b", 1), ("a", 40), ("c", 50)):
        answers.apply(key, KeyedAnswer(1, 1, at_ms), window_ms=20)
    assert list(answers.kept()) == ["a", "c"]
    answers.apply("a", KeyedAnswer(2, 2, 61), window_ms=20)
    assert list(answers.kept()) == ["c", "a"]


def test_answers_survive_replay() -> None:
    topic, again = make_topic(), make_topic()
    for key in ("a", "b"):
        entry = topic.decide_append(ONE, 5, key=key)
        assert isinstance(entry, Appended)
        topic.apply(entry)
        again.apply(entry)
    assert write(again, "a", 60) == write(topic, "a", 60) == AppendResult(1, 1, 1, 1, deduped=True)


def test_a_retry_is_answered_without_a_look_at_what_it_brings() -> None:
    topic = make_topic(cap_bytes=9, discard="reject")
    write(topic, "a", 0)
    other = Batch.of([make_record(b"1" * 100), make_record(b"2")])
    assert topic.decide_append(other, 0, key="a") == AppendResult(1, 1, 1, 1, deduped=True)


def test_a_retry_of_a_batch_gets_all_its_seqs() -> None:
    topic = make_topic()
    entry = topic.decide_append(Batch.of([make_record(b"1")] * 3), 0, key="a")
    assert isinstance(entry, Appended)
    topic.apply(entry)
    assert write(topic, "a", 0) == AppendResult(1, 3, 3, 3, deduped=True)


def test_a_retry_does_not_make_the_window_longer() -> None:
    topic = make_topic()
    write(topic, "a", 0)
    assert write(topic, "a", 100).deduped
    assert not write(topic, "a", 101).deduped


def test_a_key_belongs_to_one_topic() -> None:
    first, second = make_topic(), make_topic()
    write(first, "a", 0)
    assert not write(second, "a", 0).deduped


def test_a_key_is_compared_byte_by_byte() -> None:
    topic = make_topic()
    for key in ("a", "A", "a ", "", "\u00e9", "e\u0301"):
        assert not write(topic, key, 0).deduped
        assert write(topic, key, 0).deduped


def test_records_that_left_are_still_answered_for() -> None:
    topic = make_topic(cap_records=1)
    write(topic, "a", 0)
    write(topic, "b", 0)
    topic.apply(topic.decide_delete(0, before_seq=9))
    assert write(topic, "a", 0) == AppendResult(1, 1, 1, 1, deduped=True)


def test_a_window_of_nothing_lasts_for_one_millisecond() -> None:
    topic = make_topic(window_ms=0)
    write(topic, "a", 5)
    assert write(topic, "a", 5).deduped
    assert not write(topic, "a", 6).deduped


def test_another_window_counts_for_keys_that_are_known() -> None:
    topic = make_topic(window_ms=100)
    write(topic, "a", 0)
    topic.apply(topic.decide_configure({"idempotency_window_ms": 10}, 50))
    assert not write(topic, "a", 50).deduped


def test_only_the_keys_of_one_window_are_kept_however_many_come() -> None:
    topic = make_topic(window_ms=100)
    for number in range(5_000):
        write(topic, f"k{number}", number * 10)
        write(topic, f"k{number}", number * 10)
        assert len(topic.answers.kept()) <= 11
    assert topic.answers._staged == {}


def test_a_key_on_its_way_is_forgotten_once_it_is_kept() -> None:
    topic = make_topic()
    entries = []
    for key in "abc":
        entry = topic.decide_append(ONE, 0, key=key)
        assert isinstance(entry, Appended)
        topic.stage(entry)
        entries.append(entry)
    for entry in entries:
        topic.apply(entry)
    assert topic.answers._staged == {}
    assert list(topic.answers.kept()) == ["a", "b", "c"]
