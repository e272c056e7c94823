"""Runs calls: sends them, retries them where that is safe, reads the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from random import Random
from time import monotonic
from typing import TypeVar

from penstock.client.calls import ApiCall
from penstock.client.errors import ClientClosed, answer_error
from penstock.client.retry import OnTrouble, Tries
from penstock.client.settings import ClientSettings
from penstock.client.transports.aio import AsyncConnection, AsyncTransport
from penstock.client.wire import HttpAnswer, HttpRequest
from penstock.kernel.clock import Clock
from penstock.kernel.system import SystemClock
from penstock.protocol.errors import CallError

P = TypeVar("P")
T = TypeVar("T")


class AsyncRunner:
    """Runs calls on a transport, each within its deadline."""

    def __init__(
        self,
        settings: ClientSettings,
        transport: AsyncTransport,
        random: Random,
        on_trouble: OnTrouble | None = None,
        *,
        is_strict: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.transport = transport
        self.random = random
        self.on_trouble = on_trouble
        self._is_strict = is_strict
        self._clock = clock or SystemClock()

    def within(self, timeout_s: float) -> AsyncRunner:
        """The same connections with a different limit for each call, also for calls that wait.

        Otherwise the time that the server is asked to wait is added to the limit.
        """
        settings = replace(self.settings, timeout_s=timeout_s)
        return AsyncRunner(
            settings,
            self.transport,
            self.random,
            self.on_trouble,
            is_strict=True,
            clock=self._clock,
        )

    async def run(self, call: ApiCall[T]) -> T:
        """The answer to a call, after as many tries as necessary within its deadline."""
        began_s = monotonic()
        wait_s = call.wait_ms / 1_000
        deadline_s = began_s + self._limit_s(call)
        tries: Tries | None = None
        while True:
            try:
                answer = await self.transport.exchange(call.request, deadline_s, wait_s)
                if answer.status < 300:
                    if tries is not None:
                        self.tell(None)
                    return call.read(answer)
                error = self._error(answer)
            except CallError as raised:
                error = raised
            is_first = tries is None
            tries = tries or self._tries(call)
            await self._pause(tries, error, began_s, tell=is_first)

    async def _pause(self, tries: Tries, error: CallError, began_s: float, *, tell: bool) -> None:
        """Wait before the next try; raise the call's final error if there is none."""
        elapsed_ms = (monotonic() - began_s) * 1_000
        delay_ms = tries.failed(error, elapsed_ms=elapsed_ms, random=self.random)
        if delay_ms is None:
            raise tries.verdict()
        if tell:
            self.tell(error)
        try:
            await self.transport.pause(delay_ms / 1_000)
        except ClientClosed as closed:
            tries.failed(closed, elapsed_ms=elapsed_ms, random=self.random)
            raise tries.verdict() from closed

    async def pages(
        self, first: ApiCall[P], following: Callable[[P], ApiCall[P] | None]
    ) -> AsyncIterator[P]:
        """Pages, each fetched when the caller reaches it.

        `following` makes the call for the page after the given one; None after the last.
        """
        call: ApiCall[P] | None = first
        while call is not None:
            page = await self.run(call)
            yield page
            call = following(page)

    async def rows(
        self,
        first: ApiCall[P],
        following: Callable[[P], ApiCall[P] | None],
        rows_of: Callable[[P], Iterable[T]],
    ) -> AsyncIterator[T]:
        """The rows of pages, one after the other."""
        async for page in self.pages(first, following):
            for row in rows_of(page):
                yield row

    async def open(self, request: HttpRequest) -> AsyncConnection:
        """Open a stream; raises a refusal. Tried once: a stream has its own reconnect logic."""
        deadline_s = monotonic() + self.settings.timeout_s
        opened = await self.transport.stream(request, deadline_s)
        if isinstance(opened, HttpAnswer):
            raise self._error(opened)
        return opened

    def _limit_s(self, call: ApiCall[T]) -> float:
        """How long a call may take."""
        return self.settings.timeout_s + (0.0 if self._is_strict else call.wait_ms / 1_000)

    def tell(self, trouble: CallError | None) -> None:
        """Report to `on_trouble` why something is retried, or None once it has worked."""
        if self.on_trouble is not None:
            self.on_trouble(None if trouble is None else trouble.message)

    def _tries(self, call: ApiCall[T]) -> Tries:
        retry = self.settings.retry
        return Tries(
            replace(retry, tries_max=1) if call.probes else retry,
            changes=call.changes,
            repeatable=call.repeatable,
            window_ms=self._limit_s(call) * 1_000,
            idempotency_key=call.idempotency_key,
        )

    def _error(self, answer: HttpAnswer) -> CallError:
        return answer_error(
            answer.status,
            answer.body,
            answer.headers,
            server=self.settings.url,
            now_ms=self._clock.now_ms(),
        )
