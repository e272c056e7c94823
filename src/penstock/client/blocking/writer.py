# Generated from ../aio/writer.py by tools/unasync.py: edit that, then `make generate`.
"""The writer: many sends become few requests, in order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from penstock.client.batching import Batcher, BatchLimits, WriteBatch, as_failure
from penstock.client.blocking.runner import Runner
from penstock.client.calls import write_body, write_encoded
from penstock.client.errors import ClientClosed, TimedOut, unanswered
from penstock.client.records import decode_record, encode_record
from penstock.client.transports.blocking import Attempt, Signal, at_exit, is_cancellation
from penstock.client.transports.connecting import closed_error
from penstock.protocol.answers import Written
from penstock.protocol.requests import Record

IDLE_S: Final = 1.0
"""How long the pump waits for records before it ends. The next record starts a new one."""


class Writer:
    """Writes to one topic; each record is written exactly once and in the order of `send`.

    A batch is sent when it is full or its first record has waited `linger_ms`. Memory is bounded:
    `send` waits for room. If a batch fails permanently the writer ends: every later call raises its
    error, and `unacked` holds the records not known to be written.

    Any thread may send.

    It belongs to its process: after a fork, make another.
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
        self._lock = threading.Lock()  # guards batcher and fields below; never held in a wait
        self._pump: Attempt[None] | None = None
        self._in_hurry = False
        self._closed = False
        self._came = Signal()
        """Signals new records, or a flush."""
        self._moved = Signal()
        """Signals an acknowledged batch, or a failure of the writer."""
        self._process = os.getpid()
        self._forget_at_exit = at_exit(self.close)

    @property
    def sent(self) -> int:
        """Records accepted so far."""
        return self._batcher.sent

    @property
    def acked(self) -> int:
        """Records that the server acknowledged so far."""
        return self._batcher.acked

    def unacked(self) -> list[Record]:
        """The records not known to be written, in order, in the form that `send` takes.

        Their data is JSON text.
        """
        with self._lock:
            return [decode_record(each) for each in self._batcher.unacked()]

    def send(self, record: object) -> None:
        """Accept a record; waits only if there is no room for it."""
        encoded = encode_record(record)
        self._check_process()  # before the lock, which the parent process may hold
        fills: bool | None = None
        while fills is None:
            seen = self._moved.count
            with self._lock:
                fills = self._take(encoded)
            if fills is None:
                self._moved.changed(seen, inf)
        if fills:
            self._runner.transport.pause(0)  # a loop of sends must let the pump run

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far is acknowledged; raises the writer's error."""
        self._check_process()
        batcher = self._batcher
        target = batcher.sent
        deadline_s = inf if timeout_s is None else monotonic() + timeout_s
        while True:
            seen = self._moved.count
            with self._lock:
                if batcher.failure is not None:
                    raise batcher.failure
                if batcher.acked >= target:
                    return
                if batcher.waiting:  # the batch being collected stops lingering
                    self._in_hurry = True
                    self._start()
            self._came.tell()
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                raise TimedOut(f"not everything was acknowledged within {timeout_s:g} s")
            self._moved.changed(seen, left_s)

    def close(self) -> None:
        """Flush, then accept nothing more."""
        if os.getpid() != self._process:
            return  # the parent process flushes its own
        self._forget_at_exit()
        with self._lock:
            self._closed = True
            pump = self._pump
        self._came.tell()
        self.flush()
        if pump is not None:
            pump.over(inf)
        if self._batcher.failure is not None:
            raise self._batcher.failure  # of a callback after the last batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if is_cancellation(error) and self._pump is not None:
            self._pump.drop()
        else:
            self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClientClosed("this writer belongs to the process before the fork; make another")

    def _take(self, encoded: bytes) -> bool | None:
        """Accept a record, under the lock: whether it fills a batch, or None without room."""
        batcher = self._batcher
        if self._closed:
            raise closed_error("writer")
        if not batcher.has_room(len(encoded)) and batcher.failure is None:
            return None
        was_due, was_empty = batcher.due, not batcher.waiting
        batcher.add(encoded)
        self._start()
        if was_empty or batcher.due:
            self._came.tell()
        return batcher.due and not was_due

    def _start(self) -> None:
        if self._pump is None:
            self._pump = Attempt(self._run, f"penstock writer {self._topic}")

    def _run(self) -> None:
        """Write batches as they become due; end after an idle period."""
        try:
            while (batch := self._next()) is not None:
                written = self._write(batch)
                with self._lock:
                    self._batcher.done()
                self._moved.tell()
                if self._on_written is not None:
                    self._on_written(written)
        except Exception as error:
            self._batcher.failed(as_failure(error))
        except BaseException:
            if not self._batcher.idle:
                self._batcher.failed(unanswered("the writer was cancelled"))
            self._pump = None
            raise
        finally:
            self._moved.tell()

    def _next(self) -> WriteBatch | None:
        """The next batch when it is due; None if the writer is closed, or was idle for a while."""
        idle_until_s = monotonic() + IDLE_S
        while True:
            seen = self._came.count
            with self._lock:
                if self._batcher.waiting:
                    break
                if self._closed or monotonic() >= idle_until_s:
                    self._pump = None  # under the lock: the next record starts a new one
                    return None
            self._came.changed(seen, idle_until_s - monotonic())
        self._linger(monotonic() + self._linger_s)
        with self._lock:
            self._in_hurry = False
            return self._batcher.take()

    def _linger(self, until_s: float) -> None:
        """Wait for more records, unless a batch is full or a flush waits for it."""
        while True:
            seen = self._came.count
            with self._lock:
                if self._batcher.due or self._in_hurry or self._closed:
                    return
            left_s = until_s - monotonic()
            if left_s <= 0:
                return
            self._came.changed(seen, left_s)

    def _write(self, batch: WriteBatch) -> Written:
        key = batch.idempotency_key
        records = b"[%b]" % b",".join(batch.records)
        body = write_body(records, idempotency_key=key, **self._fields)
        call = write_encoded(self._topic, body, idempotency_key=key, return_seqs=False)
        return self._runner.run(call)
