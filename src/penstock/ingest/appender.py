"""Whole messages into the durable topic, each exactly once, whatever dies meanwhile.

One write is in flight at a time. Its idempotency key names the seq that it follows, so of two
writes after the same seq only one succeeds: a late write of a killed edge, or this one. The second
writer learns of it, reads the records of the first, and skips messages that are already there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

from penstock.flow.backoff import Backoff
from penstock.ingest.accept import EdgeCore
from penstock.ingest.backlog import Downstream
from penstock.ingest.frames import ErrorCode, FrameError
from penstock.ingest.raw_topic import (
    KEY_WINDOW_MS,
    Landed,
    RawTopic,
    TooLarge,
    decode_checkpoint,
    encode_batch,
    encode_checkpoint,
)
from penstock.ingest.reassemble import EdgeDevice, Message
from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError

T = TypeVar("T")

CHECKPOINT_MESSAGES: Final = 20_000
CHECKPOINT_MS: Final = 60_000
RECOVERED_MAX: Final = 1_000
"""A start that had to read more records than these saves what it learned before anything else."""
ROOM_LOOK_S: Final = 0.02
"""How often the stages behind the topic are asked for room while they have none."""
LOG_EVERY_MS: Final = 10_000

_LOGGER: Final = logging.getLogger("penstock.ingest")


class Appender:
    """The one writer of an edge's raw topic."""

    def __init__(
        self,
        core: EdgeCore,
        topic: RawTopic,
        *,
        clock: Clock,
        random: Random,
        downstream: Downstream | None = None,
    ) -> None:
        self.head_seq = 0
        self.retries = 0
        self.is_failing = False
        """Whether the last try of a call failed: the topic is away or refuses."""
        self._core = core
        self._topic = topic
        self._clock = clock
        self._random = random
        self._downstream = downstream
        self._backoff = Backoff(base_ms=20, cap_ms=1_000, jitter=0.5, window_ms=float("inf"))
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._synced_ms = 0
        self._checkpoint_ms = 0
        self._unsaved = 0
        self._lives = 0  # how often the topic was recreated: it has other keys each time
        self._logged_ms = -LOG_EVERY_MS
        core.on_message = self._wake.set

    async def recover(self) -> None:
        """Learn which messages are durable: from the last checkpoint, and the records after it."""
        await self._until_done(self._topic.open)
        checkpoint = decode_checkpoint(await self._until_done(self._topic.load))
        for name, seen in checkpoint.seen.items():
            self._core.devices[name] = EdgeDevice(name, seen)
        self.head_seq = checkpoint.seq
        await self._catch_up()
        self._checkpoint_ms = self._clock.monotonic_ms()
        if self._unsaved > RECOVERED_MAX:  # an edge that dies again and again reads no more for it
            await self.checkpoint()

    async def run(self) -> None:
        """Append messages as they arrive, until cancelled."""
        while True:
            messages = self._core.take_batch(self._room())
            if messages:
                self._idle.clear()
                await self._land(messages)
                if self._is_checkpoint_due():
                    await self.checkpoint()
            else:
                await self._wait()

    async def drained(self) -> None:
        """Return once no message waits for the topic."""
        while self._core.reassemble.occupied:
            self._idle.clear()
            await self._idle.wait()

    async def checkpoint(self) -> None:
        """Save what is known of devices, so that a start need not read the whole topic."""
        self._checkpoint_ms = self._clock.monotonic_ms()
        if not self._unsaved:
            return
        with suppress(PenstockError):  # then the next start reads more; there will be another
            await self._topic.save(encode_checkpoint(self.head_seq, self._core.devices))
            self._unsaved = 0

    def _room(self) -> int | None:
        return None if self._downstream is None else max(0, self._downstream.room)

    async def _wait(self) -> None:
        if not self._core.reassemble.occupied:
            self._idle.set()
        if self._core.reassemble.items:
            if self._downstream is not None:
                self._downstream.refused()
            await asyncio.sleep(ROOM_LOOK_S)  # there is no room behind the topic
        else:
            self._wake.clear()
            await self._wake.wait()

    def _is_checkpoint_due(self) -> bool:
        waited_ms = self._clock.monotonic_ms() - self._checkpoint_ms
        return self._unsaved >= CHECKPOINT_MESSAGES or waited_ms >= CHECKPOINT_MS

    # One batch

    async def _land(self, messages: list[Message]) -> None:
        began_ns = self._clock.monotonic_ns()
        left = messages
        while left:
            try:
                landed = await self._append(left)
            except TooLarge as error:
                await self._split(left, error)
                return
            if landed is not None and landed.first_seq <= self.head_seq:
                self._lives += 1
            if landed is not None and not landed.deduped:
                self.head_seq = landed.last_seq
                self._finish(left, began_ns)
                return
            # The write after this seq is an earlier try of ours, or that of another edge.
            await self._catch_up()
            left = self._without_durable(left, began_ns)

    async def _append(self, messages: list[Message]) -> Landed | None:
        """One write, tried until its outcome is known.

        None if that takes so long that the topic may soon have forgotten the key of a try which
        landed: then only a look at the topic can tell.
        """
        key = f"after-{self.head_seq}" + (f"-{self._lives}" if self._lives else "")
        body = encode_batch(messages, key=key)

        async def once() -> Landed | None:
            if self._clock.monotonic_ms() - self._synced_ms > KEY_WINDOW_MS // 2:
                return None
            return await self._topic.append(body, key)

        landed = await self._until_done(once)
        if landed is not None:
            self._synced_ms = self._clock.monotonic_ms()
        return landed

    async def _split(self, messages: list[Message], error: TooLarge) -> None:
        """Half of it may do; a single message that will not is refused to its device."""
        if len(messages) > 1:
            await self._land(messages[: len(messages) // 2])
            await self._land(messages[len(messages) // 2 :])
            return
        message = messages[0]
        text = f"the topic refuses the message: {error.message}"
        self._core.refused(
            message, FrameError(ErrorCode.MESSAGE_REFUSED, text, message_id=message.message_id)
        )

    async def _catch_up(self) -> None:
        """Take note of every message after the last seq that is known."""
        caught_up = False
        while not caught_up:
            page = await self._until_done(lambda: self._topic.identities(self.head_seq))
            for identity in page.identities:
                if identity is not None:
                    self._core.found(*identity)
                    self._unsaved += 1
            self.head_seq = page.next_from_seq
            caught_up = page.caught_up
        self._synced_ms = self._clock.monotonic_ms()

    def _without_durable(self, messages: list[Message], began_ns: int) -> list[Message]:
        durable = [message for message in messages if self._core.is_durable(message)]
        self._finish(durable, began_ns)
        return [message for message in messages if not self._core.is_durable(message)]

    def _finish(self, messages: list[Message], began_ns: int) -> None:
        if messages:
            self._unsaved += len(messages)
            self._core.landed(messages, self._clock.monotonic_ns() - began_ns)

    async def _until_done(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry until the call succeeds; meanwhile messages are held and not acknowledged."""
        failures = 0
        while True:
            try:
                done = await call()
            except TooLarge:
                raise
            except PenstockError as error:
                failures += 1
                self.retries += 1
                self.is_failing = True
                self._log(error)
                if error.code == "topic_not_found":
                    with suppress(PenstockError):
                        await self._topic.open()
                delay_ms = self._backoff.next_ms(failures, elapsed_ms=0, random=self._random)
                wished_ms = getattr(error, "retry_after_ms", None) or 0
                await asyncio.sleep(max(delay_ms or 0, wished_ms) / 1_000)
            else:
                self.is_failing = False
                return done

    def _log(self, error: PenstockError) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = now_ms
            _LOGGER.warning("the raw topic takes nothing now, messages wait: %s", error)
