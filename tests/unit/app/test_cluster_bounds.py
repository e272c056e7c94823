"""What a node of a cluster takes must fit through its links."""

from __future__ import annotations

import pytest

from penstock.app.cluster import BODY_BYTES_MAX, check_body_bytes
from penstock.config import Settings
from penstock.kernel.errors import Rejected


def test_the_default_and_the_largest_body_are_taken_and_a_byte_more_is_refused() -> None:
    check_body_bytes(Settings().max_body_bytes)
    check_body_bytes(BODY_BYTES_MAX)
    with pytest.raises(Rejected, match=f"at most {BODY_BYTES_MAX}"):
        check_body_bytes(BODY_BYTES_MAX + 1)
