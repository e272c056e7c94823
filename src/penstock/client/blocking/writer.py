"""The writer for threads: many sends become few requests, in order."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from penstock.client.aio.runner import Runner
from penstock.client.batching import Batch, Batcher, BatchLimits, as_failure
from penstock.client.calls import write_body, write_encoded
from penstock.client.errors import ClientClosed, TimedOut
from penstock.client.records import Record, decode_record, encode_record
from penstock.client.transports.ports import finish
from penstock.protocol.answers import Written


class Writer:
    """Writes to one topic; each record lands once and in the order of `send`.

    A batch leaves when it is full or its first record has waited `linger_ms`. Memory is bounded:
    `send` waits for room. If a batch fails for good the writer ends: every later call raises its
    error, and `unacked` has what is not known to be written. Any thread may send. A writer belongs
    to its process: after a fork, make another.
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
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._moved = threading.Condition(self._lock)
        self._hurry = False
        self._closed = False
        self._process = os.getpid()
        self._pump = threading.Thread(
            target=self._run, name=f"penstock writer {topic}", daemon=True
        )
        self._pump.start()
        atexit.register(self.close)

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
        with self._lock:
            return [decode_record(each) for each in self._batcher.unacked()]

    def send(self, record: object) -> None:
        """Take a record in; waits only if there is no room for it."""
        encoded = encode_record(record)
        batcher = self._batcher
        with self._lock:
            self._check()
            while not batcher.has_room(len(encoded)) and batcher.failure is None:
                self._moved.wait()
                self._check()
            first = not batcher.waiting
            batcher.add(encoded)
            if first or batcher.due:
                self._work.notify()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged, or raise why it is not."""
        batcher = self._batcher
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        self._check_process()  # before the lock, which may be held in the parent
        with self._lock:
            target = batcher.sent
            while batcher.acked < target and batcher.failure is None:
                self._hurry = True
                self._work.notify()
                left_s = None if deadline_s is None else deadline_s - monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimedOut(f"expected a flush within {timeout_s:g} s, found records left")
                self._moved.wait(left_s)
            if batcher.failure is not None:
                raise batcher.failure

    def close(self) -> None:
        """Flush, then take nothing more."""
        if os.getpid() != self._process:
            return  # the parent flushes its own
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
        try:
            self.flush()
        finally:
            with self._lock:
                self._work.notify()
            if threading.current_thread() is not self._pump:
                self._pump.join()
        if self._batcher.failure is not None:
            raise self._batcher.failure  # of a callback after the last batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise ClientClosed("expected an open writer, found it closed")
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClientClosed("expected a writer of this process, found one from before a fork")

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                written = finish(self._write(batch))
                with self._lock:
                    self._batcher.done()
                    self._moved.notify_all()
                if self._on_written is not None:
                    self._on_written(written)
        except Exception as error:
            with self._lock:
                self._batcher.failed(as_failure(error))
                self._moved.notify_all()

    def _next(self) -> Batch | None:
        """The next batch when it is due; None when closed and nothing is left."""
        with self._lock:
            while not self._batcher.waiting:
                if self._closed:
                    return None
                self._work.wait()
            until_s = monotonic() + self._linger_s
            while not (self._batcher.due or self._hurry or self._closed):
                left_s = until_s - monotonic()
                if left_s <= 0:
                    break
                self._work.wait(left_s)
            self._hurry = False
            return self._batcher.take()

    async def _write(self, batch: Batch) -> Written:
        key = batch.idempotency_key
        records = b"[%b]" % b",".join(batch.records)
        body = write_body(records, idempotency_key=key, **self._fields)
        call = write_encoded(self._topic, body, idempotency_key=key, return_seqs=False)
        return await self._runner.run(call)
