"""Sizes and spans as people write them."""

from __future__ import annotations

import pytest

from penstock.kernel.errors import Rejected
from penstock.kernel.units import GIB, MIB, format_bytes, format_ms, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("4096", 4096), ("64 KiB", 65536), ("512mib", 512 * MIB), (" 2 GiB ", 2 * GIB)],
)
def test_a_size_is_read_with_or_without_a_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.5 MiB", "3 MB", "lots"])
def test_anything_else_is_refused_with_what_was_expected_and_found(text: str) -> None:
    with pytest.raises(Rejected, match="is not a size") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


def test_sizes_and_spans_are_written_with_the_unit_people_would_choose() -> None:
    assert [format_bytes(n) for n in (0, 999, 1536, 512 * MIB, 3 * GIB)] == [
        "0 B", "999 B", "1.5 KiB", "512 MiB", "3 GiB",
    ]  # fmt: skip
    assert [format_ms(n) for n in (0.25, 12, 1_500, 90_000)] == [
        "250 µs",
        "12 ms",
        "1.5 s",
        "1.5 min",
    ]
