"""The writer for asyncio: many sends become few requests, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from penstock.client.aio.runner import Runner
from penstock.client.batching import Batch, Batcher, BatchLimits, as_failure
from penstock.client.calls import write_body, write_encoded
from penstock.client.errors import ClientClosed, OutcomeUnknown
from penstock.client.records import Record, decode_record, encode_record
from penstock.protocol.answers import Written


class AsyncWriter:
    """Writes to one topic; each record lands once and in the order of `send`.

    A batch leaves when it is full or its first record has waited `linger_ms`. Memory is bounded:
    `send` waits for room. If a batch fails for good the writer ends: every later call raises its
    error, and `unacked` has what is not known to be written.
    """

    def __init__(
        self,
        runner: Runner,
        topic: str,
        *,
        limits: BatchLimits,
        linger_ms: float,
        fields: dict[str, Any],
        on_written: Callable[[Written], None] | None = None,
    ) -> None:
        self._runner = runner
        self._topic = topic
        self._linger_s = linger_ms / 1_000
        self._fields = fields
        self._on_written = on_written
        self._batcher = Batcher(limits, lambda: uuid4().hex)
        self._hurry = asyncio.Event()
        self._moved: asyncio.Future[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def sent(self) -> int:
        """Records taken in so far."""
        return self._batcher.sent

    @property
    def acked(self) -> int:
        """Records that the server acknowledged so far."""
        return self._batcher.acked

    def unacked(self) -> list[Record]:
        """The records that are not known to be written, in order, as `send` takes them.

        Their data is JSON text.
        """
        return [decode_record(each) for each in self._batcher.unacked()]

    async def send(self, record: object) -> None:
        """Take a record in; waits only if there is no room for it."""
        if self._closed:
            raise ClientClosed("expected an open writer, found it closed")
        encoded = encode_record(record)
        batcher = self._batcher
        while not batcher.has_room(len(encoded)) and batcher.failure is None:
            await self._move()
        was_due = batcher.due
        batcher.add(encoded)
        self._start()
        if batcher.due and not was_due:
            self._hurry.set()
            await asyncio.sleep(0)  # a loop of sends would never let the pump run

    async def flush(self) -> None:
        """Wait until everything sent so far is acknowledged, or raise why it is not."""
        batcher = self._batcher
        target = batcher.sent
        while batcher.acked < target:
            if batcher.failure is not None:
                raise batcher.failure
            self._start()
            if batcher.waiting:  # what is under way lingers no more
                self._hurry.set()
            await self._move()
        if batcher.failure is not None:
            raise batcher.failure

    async def aclose(self) -> None:
        """Flush, then take nothing more."""
        self._closed = True
        try:
            await self.flush()
        finally:
            if self._pump is not None:
                self._pump.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):
            await self.aclose()
        elif self._pump is not None:
            self._pump.cancel()

    def _start(self) -> None:
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run(), name=f"penstock writer {self._topic}")

    async def _run(self) -> None:
        """Write batches until nothing waits; then end, so that an idle writer costs nothing."""
        batcher = self._batcher
        try:
            while batcher.waiting:
                await self._linger()
                batch = batcher.take()
                if batch is None:
                    break
                written = await self._write(batch)
                batcher.done()
                self._wake()
                if self._on_written is not None:
                    self._on_written(written)
        except asyncio.CancelledError:
            if not batcher.idle:
                batcher.failed(OutcomeUnknown("expected the writer to go on, found it cancelled"))
            raise
        except Exception as error:
            batcher.failed(as_failure(error))
        finally:
            self._wake()

    async def _linger(self) -> None:
        """Wait for company, unless a batch is full or somebody is in a hurry."""
        if not (self._batcher.due or self._closed or self._linger_s <= 0):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger_s):
                    await self._hurry.wait()
        self._hurry.clear()  # not before the wait: a flush may be what started the pump

    async def _write(self, batch: Batch) -> Written:
        key = batch.idempotency_key
        records = b"[%b]" % b",".join(batch.records)
        body = write_body(records, idempotency_key=key, **self._fields)
        call = write_encoded(self._topic, body, idempotency_key=key, return_seqs=False)
        return await self._runner.run(call)

    async def _move(self) -> None:
        """Wait until a batch is through, or has failed."""
        if self._moved is None:
            self._moved = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._moved)

    def _wake(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)
        self._moved = None
