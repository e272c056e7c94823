"""Dead letters: what they say of their death, and how they become jobs again."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from penstock.topics.core.letters import (
    Death,
    dead_letter,
    death_of,
    lease_ended,
    reason_text,
    redriven,
)
from penstock.topics.core.record import RawRecord, Routed, hops_of, make_record


def meta_of(record: RawRecord) -> object:
    return None if record.meta is None else json.loads(bytes(record.meta))


def test_a_dead_letter_keeps_what_it_was() -> None:
    letter = dead_letter(make_record(b"1", b'{"a": 1}', "t", "n"), Death("q", 5, 3))
    assert (bytes(letter.data), letter.tag, letter.node) == (b"1", "t", "n")
    assert bytes(letter.meta or b"") == (
        b'{"a": 1,"$dead_letter_from":"q","$dead_letter_deliveries":"3","$dead_letter_src_seq":"5"}'
    )


def test_a_dead_letter_of_a_dead_letter_tells_of_the_last_queue_and_keeps_its_hops() -> None:
    first = dead_letter(Routed(Raw(b"1"), meta=Raw(b'{"a":1}'), hops=2), Death("q", 5, 3, "why"))
    second = dead_letter(first, Death("r", 6, 4))
    assert bytes(second.meta or b"") == (
        b'{"a":1,"$dead_letter_from":"r","$dead_letter_deliveries":"4","$dead_letter_src_seq":"6"}'
    )
    assert hops_of(second) == 2


@pytest.mark.parametrize("reason", [None, "no", 'a "quote"\n', "zu spät \x00 😀"])
def test_a_letter_tells_its_reason_as_it_was_given(reason: str | None) -> None:
    death = Death("q", 5, 3, reason)
    assert death_of(dead_letter(make_record(b"1"), death)) == death


def test_a_letter_that_becomes_a_job_again_is_marked_and_otherwise_as_it_was_written() -> None:
    job = make_record(b"1", b'{"a":1}', "t", "n")
    again = redriven(dead_letter(job, Death("q", 5, 3, "why")))
    assert (bytes(again.data), again.tag, again.node) == (b"1", "t", "n")
    assert meta_of(again) == {"a": 1, "$redrives": "1"}
    assert death_of(again) is None


def test_a_second_death_shows_how_often_a_job_was_redriven() -> None:
    job = make_record(b"1")
    for times in range(3):
        letter = dead_letter(job, Death("q", 5, 3, "why"))
        assert death_of(letter) == Death("q", 5, 3, "why", times)
        job = redriven(letter)
    assert meta_of(job) == {"$redrives": "3"}


@pytest.mark.parametrize(
    "meta",
    [
        None,
        b"{}",
        b'{"$dead_letter_reason":"x"}',
        b'{"$dead_letter_from":5}',
        b'{"$dead_letter_from":null}',
    ],
)
def test_what_does_not_say_from_where_it_came_is_not_a_letter(meta: bytes | None) -> None:
    assert death_of(make_record(b"1", meta)) is None


@pytest.mark.parametrize("number", ["-1", "x", "", "²", "9" * 21, 7, None])
def test_numbers_that_are_none_are_not_believed(number: object) -> None:
    meta = {"$dead_letter_from": "q", "$dead_letter_src_seq": number, "$redrives": number}
    letter = make_record(b"1", json.dumps(meta).encode())
    assert death_of(letter) == Death("q", None, None)
    assert meta_of(redriven(letter)) == {"$redrives": "1"}


def test_leases_that_ended_in_a_row_are_counted() -> None:
    assert (lease_ended(None), lease_ended("why"), lease_ended(1)) == (1, 1, 2)
    texts = [reason_text(failure) for failure in (None, "", "why", 1, 2)]
    assert texts == [None, None, "why", "the lease ended once", "the lease ended 2 times"]
