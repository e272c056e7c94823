"""Requests that one node passes on to another over their links, and the answers to them.

A call that could not be sent certainly changed nothing. One whose answer did not come may have
taken effect: that is `CallLost`, and the caller asks again with the same key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

import msgspec

from penstock.cluster.frames import BadLetter
from penstock.cluster.outbox import ANSWER, CALL, ITEM_BYTES_MAX
from penstock.kernel.errors import Rejected, Unavailable, Unknown
from penstock.protocol.errors import OutcomeUnknown

CALL_S: Final = 90.0
"""How long an answer may take: longer than any request may wait for data."""
_HEAD_BYTES: Final = 64 * 1_024
_SEND_AGAIN_S: Final = 0.1

_LOGGER: Final = logging.getLogger("penstock.cluster")


class PeerAway(Unavailable):
    """The peer cannot be reached now: nothing was sent to it."""

    code = "peer_away"


class CallTooLarge(Rejected):
    """The request is too large to be passed on: send it to the node that leads."""

    code = "call_too_large"


class CallLost(Unknown):
    """The request was sent to a peer, and its answer did not come."""

    code = "call_lost"


class PassedOn(msgspec.Struct, frozen=True, array_like=True):
    """A request of a client, as it came."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    peer: str = ""
    key_digest: bytes = b""
    """Of the key with which the client's browser has signed in at the node that passes it on."""


class PassedBack(msgspec.Struct, frozen=True, array_like=True):
    """The whole answer to it."""

    status: int
    body: bytes
    content_type: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Send(Protocol):
    """Sends an item to a member; False if it is certain that it will not arrive."""

    def __call__(self, member: int, channel: int, payload: bytes) -> bool: ...


@dataclass(slots=True)
class _Waiting:
    member: int
    partition: int
    future: asyncio.Future[PassedBack]


class Calls:
    """Calls in both directions. `serve` answers those of peers."""

    def __init__(
        self,
        send: Send,
        serve: Callable[[PassedOn], Awaitable[PassedBack]],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._send, self._serve, self._loop = send, serve, loop
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = self.served = self.lost = 0

    async def call(self, member: int, partition: int, request: PassedOn) -> PassedBack:
        """Pass a request about a partition on to the member that leads it."""
        if len(request.body) > ITEM_BYTES_MAX - _HEAD_BYTES:
            raise CallTooLarge(
                f"a body of {len(request.body)} bytes is not passed on to the node that leads: "
                f"send it there, or send at most {ITEM_BYTES_MAX - _HEAD_BYTES} bytes"
            )
        number = next(self._numbers)
        if not self._send(member, CALL, _ENCODER.encode((number, request))):
            raise PeerAway(f"member {member:016x} cannot be reached: nothing was sent to it")
        self.sent += 1
        future: asyncio.Future[PassedBack] = self._loop.create_future()
        self._waiting[number] = _Waiting(member, partition, future)
        try:
            async with asyncio.timeout(CALL_S):
                return await future
        except TimeoutError:
            raise CallLost(f"the leader did not answer within {CALL_S:g} s") from None
        finally:
            del self._waiting[number]

    def on_call(self, sender: int, payload: bytes) -> None:
        """Serve a peer's request."""
        try:
            number, request = _CALLS.decode(payload)
        except msgspec.MsgspecError as error:
            raise BadLetter(f"malformed call: {error}") from error
        self.served += 1
        task = self._loop.create_task(self._answer(sender, number, request))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def on_answer(self, sender: int, payload: bytes) -> None:
        """Take a peer's answer; one that nothing waits for any more is dropped."""
        try:
            number, answer = _ANSWERS.decode(payload)
        except msgspec.MsgspecError as error:
            raise BadLetter(f"malformed answer: {error}") from error
        waiting = self._waiting.get(number)
        if waiting is not None and waiting.member == sender and not waiting.future.done():
            waiting.future.set_result(answer)

    def on_link(self, member: int, is_up: bool) -> None:
        """A link went up or down: what was sent on it may be lost."""
        if not is_up:
            self._lose("the link to the leader broke", lambda each: each.member == member)

    def on_leader(self, partition: int, leader: int) -> None:
        """Another member leads: the old one can answer no more that something was done."""
        self._lose(
            "the leadership moved while the request was under way",
            lambda each: each.partition == partition and each.member != leader,
        )

    def stop(self) -> None:
        """Give up everything."""
        self._lose("this node stops", lambda _: True)
        for task in self._tasks:
            task.cancel()

    async def _answer(self, sender: int, number: int, request: PassedOn) -> None:
        """Answer; a peer that waits is told also where there is no answer, or none that fits."""
        try:
            answer = await self._serve(request)
        except Exception as error:
            _LOGGER.exception("a request that a peer passed on failed")
            answer = _unknown(f"the leader failed to answer: {type(error).__name__}")
        if self._send(sender, ANSWER, _ENCODER.encode((number, answer))):
            return
        lost = _unknown(f"the leader's answer of {len(answer.body)} bytes could not be sent back")
        small = _ENCODER.encode((number, lost))
        async with asyncio.timeout(CALL_S):  # nothing waits for it longer than that
            while not self._send(sender, ANSWER, small):
                await asyncio.sleep(_SEND_AGAIN_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the link did not come back: the peer has lost the call

    def _lose(self, reason: str, is_lost: Callable[[_Waiting], bool]) -> None:
        for waiting in self._waiting.values():
            if is_lost(waiting) and not waiting.future.done():
                self.lost += 1
                waiting.future.set_exception(CallLost(f"{reason}: it may have taken effect"))


def _unknown(message: str) -> PassedBack:
    error = {"code": OutcomeUnknown.code, "message": f"{message}: it may have taken effect"}
    return PassedBack(
        OutcomeUnknown.status, msgspec.json.encode({"error": error}), b"application/json"
    )


_ENCODER: Final = msgspec.msgpack.Encoder()
_CALLS: Final = msgspec.msgpack.Decoder(tuple[int, PassedOn])
_ANSWERS: Final = msgspec.msgpack.Decoder(tuple[int, PassedBack])
