"""Cached looks: many callers cost one, and a failed look is not kept."""

from __future__ import annotations

import asyncio

import pytest

from penstock.server.overview.cached import FRESH_MS, FRESH_MS_MAX, Cached
from penstock.testing.clock import ManualClock


class Look:
    def __init__(self, clock: ManualClock, took_ms: int = 0) -> None:
        self.clock, self.took_ms = clock, took_ms
        self.count = 0
        self.fails = False

    async def __call__(self) -> int:
        self.count += 1
        await asyncio.sleep(0)
        self.clock.advance(self.took_ms)
        if self.fails:
            raise ValueError("away")
        return self.count


def test_simultaneous_callers_share_one_look() -> None:
    async def run() -> None:
        clock = ManualClock()
        look = Look(clock)
        cached = Cached(look, clock)
        assert await asyncio.gather(*(cached.get() for _ in range(10))) == [1] * 10
        clock.advance(FRESH_MS - 1)
        assert await cached.get() == 1
        clock.advance(1)
        assert await cached.get() == 2

    asyncio.run(run())


def test_a_look_that_takes_long_is_repeated_seldom() -> None:
    async def run() -> None:
        clock = ManualClock()
        cached = Cached(Look(clock, took_ms=100), clock, share=20)
        assert await cached.get() == 1
        clock.advance(1_999)
        assert await cached.get() == 1
        clock.advance(1)
        assert await cached.get() == 2
        slow = Cached(Look(clock, took_ms=60_000), clock, share=20)
        await slow.get()
        clock.advance(FRESH_MS_MAX)
        assert await slow.get() == 2

    asyncio.run(run())


def test_a_failed_look_and_one_that_was_forgotten_are_made_again() -> None:
    async def run() -> None:
        clock = ManualClock()
        look = Look(clock)
        cached = Cached(look, clock)
        look.fails = True
        with pytest.raises(ValueError, match="away"):
            await cached.get()
        look.fails = False
        assert await cached.get() == 2
        cached.forget()
        assert await cached.get() == 3

    asyncio.run(run())


def test_a_caller_that_leaves_does_not_end_the_look_of_others() -> None:
    async def run() -> None:
        clock = ManualClock()
        cached = Cached(Look(clock), clock)
        first, second = asyncio.ensure_future(cached.get()), asyncio.ensure_future(cached.get())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 1

    asyncio.run(run())
