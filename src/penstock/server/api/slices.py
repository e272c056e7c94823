"""Long work on the loop in short slices, so that others have their turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, TypeVar

from penstock.kernel.clock import Clock

SLICE_NS: Final = 500_000
"""How long a slice may take, but for its last step."""
T = TypeVar("T")


async def in_slices(steps: Iterable[T], clock: Clock) -> list[T]:
    """What all steps give, some of them in each turn of the loop."""
    found: list[T] = []
    until_ns = clock.monotonic_ns() + SLICE_NS
    for step in steps:
        found.append(step)
        if clock.monotonic_ns() >= until_ns:
            await asyncio.sleep(0)
            until_ns = clock.monotonic_ns() + SLICE_NS
    return found
