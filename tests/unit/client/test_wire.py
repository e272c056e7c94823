"""Answers out of bytes: large ones are received where they stay, and the next one follows."""

from __future__ import annotations

import gzip

import pytest

from penstock.client.errors import NotPenstock
from penstock.client.wire import AnswerReader

LARGE = bytes(range(256)) * 4_096
SMALL = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"


def answer(body: bytes, *lines: bytes) -> bytes:
    head = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *lines, b"\r\n"]
    return b"\r\n".join(head) + body


def fill(reader: AnswerReader, data: bytes, step: int = 100_000) -> None:
    """Receive as a socket does: some bytes at a time, as many as there is room for."""
    while data and not reader.complete:
        room = reader.room()
        assert room is not None
        taken = data[: min(step, len(room))]
        room[: len(taken)] = taken
        reader.filled(len(taken))
        data = data[len(taken) :]
    assert not data


def test_a_large_body_is_received_in_its_place_and_the_next_answer_is_read_as_ever():
    reader = AnswerReader(answer_bytes_max=1 << 30)
    data = answer(LARGE)
    reader.feed(data[:50_000])
    fill(reader, data[50_000:])
    assert reader.take().body == LARGE
    assert not reader.started
    reader.feed(SMALL)
    assert reader.complete
    assert reader.take().status == 404


def test_a_small_body_or_one_of_unknown_length_has_no_room_of_its_own():
    reader = AnswerReader(answer_bytes_max=1 << 30)
    assert reader.room() is None
    reader.feed(SMALL[:-1])
    assert reader.room() is None
    reader.feed(SMALL[-1:])
    assert reader.take().body == b"{}"
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert reader.room() is None


def test_a_compressed_body_that_was_received_in_its_place_is_inflated():
    packed = gzip.compress(LARGE * 8, 0)
    reader = AnswerReader(answer_bytes_max=1 << 30)
    data = answer(packed, b"Content-Encoding: gzip")
    reader.feed(data[:100])
    fill(reader, data[100:])
    assert reader.take().body == LARGE * 8


def test_a_body_that_says_it_is_over_the_limit_is_refused_before_it_comes():
    reader = AnswerReader(answer_bytes_max=1_000)
    reader.feed(answer(LARGE)[:100])
    with pytest.raises(NotPenstock, match="more than answer_bytes_max"):
        reader.room()


def test_a_connection_that_ends_in_the_middle_leaves_the_answer_incomplete():
    reader = AnswerReader(answer_bytes_max=1 << 30)
    reader.feed(answer(LARGE)[:100])
    room = reader.room()
    assert room is not None
    room[:10] = LARGE[:10]
    reader.filled(10)
    reader.end()
    assert not reader.complete


def test_what_comes_behind_an_answer_in_one_read_is_no_part_of_it():
    reader = AnswerReader(answer_bytes_max=1 << 20)
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    reader.feed(good + b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nbad")
    assert reader.complete
    assert not reader.keep_alive, "whoever says more than was asked is not asked again"
    answer = reader.take()
    assert (answer.status, bytes(answer.body)) == (200, b"{}")


def test_an_answer_in_chunks_is_not_complete_when_it_is_cut_however_that_is_spelt():
    reader = AnswerReader(answer_bytes_max=1 << 20)
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n")
    reader.end()
    assert not reader.complete
