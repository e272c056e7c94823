"""Bytes that no meter would send, read as readings."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from penstock.metering.errors import BadPayload
from penstock.metering.readings import decode


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda tail: b"\x9d\x01" + tail))
def test_any_bytes_are_readings_or_a_bad_payload(payload):
    with suppress(BadPayload):  # and nothing else
        assert isinstance(decode(payload), list)
