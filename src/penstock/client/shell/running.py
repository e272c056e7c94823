"""Calls carried out: sent, sent again where that is safe, and brought to an answer or an error."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from time import monotonic
from typing import TypeVar

from penstock.client.calls import Call
from penstock.client.errors import ClientClosed, ClientError, error_of
from penstock.client.retry import Tries
from penstock.client.settings import ClientSettings
from penstock.client.shell.transport import Stream, Transport
from penstock.client.wire import Answer, HttpRequest

T = TypeVar("T")


class Runner:
    """Carries out calls on a transport, each within its time."""

    def __init__(self, settings: ClientSettings, transport: Transport, random: Random) -> None:
        self.settings = settings
        self.transport = transport
        self.random = random

    def within(self, timeout_s: float) -> Runner:
        """The same connections with another limit for each call."""
        return Runner(replace(self.settings, timeout_s=timeout_s), self.transport, self.random)

    async def run(self, call: Call[T]) -> T:
        """The answer to a call, after as many tries as it needs and its time allows."""
        began_s = monotonic()
        wait_s = call.wait_ms / 1_000
        deadline_s = began_s + self.settings.timeout_s + wait_s
        tries: Tries | None = None
        while True:
            try:
                answer = await self.transport.exchange(call.request, deadline_s, wait_s)
                if answer.status < 300:
                    return call.read(answer)
                error = self._error(answer)
            except ClientError as raised:
                error = raised
            if call.probes:
                raise error
            tries = tries or self._tries(call)
            await self._pause(tries, error, began_s)

    async def _pause(self, tries: Tries, error: ClientError, began_s: float) -> None:
        """Wait before the next try; if there is none, the end of the call is raised."""
        elapsed_ms = (monotonic() - began_s) * 1_000
        delay_ms = tries.failed(error, elapsed_ms=elapsed_ms, random=self.random)
        if delay_ms is None:
            raise tries.verdict()
        try:
            await self.transport.pause(delay_ms / 1_000)
        except ClientClosed as closed:
            tries.failed(closed, elapsed_ms=elapsed_ms, random=self.random)
            raise tries.verdict() from closed

    async def open(self, request: HttpRequest) -> Stream:
        """A stream; a refusal is raised. Tried once: streams have their own way to come back."""
        deadline_s = monotonic() + self.settings.timeout_s
        opened = await self.transport.stream(request, deadline_s)
        if isinstance(opened, Answer):
            raise self._error(opened)
        return opened

    def _tries(self, call: Call[T]) -> Tries:
        return Tries(
            self.settings.retry,
            repeatable=call.repeatable,
            window_ms=self.settings.timeout_s * 1_000 + call.wait_ms,
            idempotency_key=call.idempotency_key,
        )

    def _error(self, answer: Answer) -> ClientError:
        return error_of(answer.status, answer.body, answer.headers, server=self.settings.url)
