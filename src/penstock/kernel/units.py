"""Human-readable sizes and durations.

>>> format_bytes(512 * MIB)
'512 MiB'
>>> parse_bytes("64 KiB")
65536
>>> format_ms(1_500)
'1.5 s'
"""

from __future__ import annotations

import re
from typing import Final

from penstock.kernel.errors import Rejected

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

_BYTE_UNITS: Final = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB}
_SIZE: Final = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Parse a whole number with an optional unit: `4096`, `64 KiB`, `512MiB`, `2 GiB`."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise Rejected(f"{text!r} is not a size: write '64 KiB' or '512 MiB'", found=text)
    return int(match[1]) * _BYTE_UNITS[match[2].lower()]


def format_bytes(count: float) -> str:
    """Format a size with the largest unit that keeps it at or above one."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{_short(count / size)} {unit}"
    return f"{_short(count)} B"


def format_ms(span_ms: float) -> str:
    """Format a duration with a readable unit."""
    if span_ms >= 60_000:
        return f"{_short(span_ms / 60_000)} min"
    if span_ms >= 1_000:
        return f"{_short(span_ms / 1_000)} s"
    if span_ms >= 1:
        return f"{_short(span_ms)} ms"
    return f"{_short(span_ms * 1_000)} µs"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
