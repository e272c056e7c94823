"""Compressed answers: whom they may be sent to, and how they are made.

>>> accepts_gzip("br, gzip;q=0.5"), accepts_gzip("gzip;q=0"), accepts_gzip("*"), accepts_gzip("")
(True, False, True, False)
"""

from __future__ import annotations

import zlib
from typing import Final

from penstock.kernel.units import KIB

GZIP_ABOVE_BYTES: Final = 1 * KIB
"""Answers up to this size are sent as they are."""
COMPRESS_IN_THREAD_ABOVE_BYTES: Final = 128 * KIB

GZIP_WINDOW: Final = 31  # a gzip header and trailer, largest window
_FAST: Final = 1


def compress(body: bytes) -> bytes:
    """A body as gzip, fast rather than small."""
    return zlib.compress(body, _FAST, GZIP_WINDOW)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip; `q=0` forbids it."""
    if not accept_encoding:
        return False
    qualities = dict(_quality(item) for item in accept_encoding.lower().split(","))
    return qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0))) > 0.0


def _quality(item: str) -> tuple[str, float]:
    coding, _, parameter = item.partition(";")
    name, _, value = parameter.partition("=")
    if name.strip() != "q":
        return coding.strip(), 1.0
    try:
        return coding.strip(), float(value)
    except ValueError:
        return coding.strip(), 0.0
