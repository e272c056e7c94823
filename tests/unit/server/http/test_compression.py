from __future__ import annotations

import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.errors import InvalidRequest, PayloadTooLarge
from penstock.server.http.compression import (
    MEMBERS_MAX,
    STEP_BYTES,
    Inflation,
    accepts_gzip,
    compress,
)


def inflate(body: bytes, limit: int = 64 * 1024 * 1024) -> bytes:
    inflation = Inflation(body, limit)
    content = None
    while content is None:
        before = inflation.size
        content = inflation.step()
        assert inflation.size - before <= STEP_BYTES
    return content


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(1, 5_000))
def test_what_was_compressed_in_any_number_of_members_comes_back(parts, times):
    members = [part * times for part in parts]
    assert inflate(b"".join(gzip.compress(each) for each in members)) == b"".join(members)


@pytest.mark.parametrize("size", [0, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES])
@pytest.mark.parametrize("make", [bytes, os.urandom])
def test_sizes_around_a_step_come_back(size, make):
    content = make(size)
    assert inflate(gzip.compress(content, 1)) == content


def test_a_bomb_stops_at_the_limit_however_well_it_is_packed():
    inflation = Inflation(gzip.compress(bytes(20 * STEP_BYTES)), 2 * STEP_BYTES)
    while inflation.size < 2 * STEP_BYTES:
        inflation.step()
    with pytest.raises(PayloadTooLarge):
        inflation.step()
    assert inflation.size <= 2 * STEP_BYTES


def test_a_body_of_exactly_the_limit_is_taken():
    assert len(inflate(gzip.compress(bytes(1_000)), 1_000)) == 1_000
    with pytest.raises(PayloadTooLarge):
        inflate(gzip.compress(bytes(1_001)), 1_000)


def test_a_row_of_empty_members_comes_to_an_end():
    with pytest.raises(InvalidRequest, match="members"):
        inflate(gzip.compress(b"") * (MEMBERS_MAX + 1))


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_cut_body_is_refused(content, data):
    whole = gzip.compress(content)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(InvalidRequest):
        inflate(whole[:cut])


def test_compressed_answers_are_gzip():
    assert gzip.decompress(compress(b"hello")) == b"hello"


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*;q=0", False),
        ("*", True),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("gzip;q=nonsense", False),
    ],
)
def test_gzip_is_sent_to_those_who_accept_it(header, accepted):
    assert accepts_gzip(header) is accepted
