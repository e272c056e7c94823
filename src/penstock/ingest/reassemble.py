"""Fragments to whole messages: per device and message id, in any order, within bounds.

A message comes out once: while it is in flight to the topic, further copies are ignored, and once
it is durable they are only acknowledged again.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from itertools import chain
from typing import Any, Final, NamedTuple

from penstock.ingest.frames import ErrorCode, Fragment, FrameError
from penstock.ingest.limits import EdgeLimits

PIECE_BYTES_MIN: Final = 256
"""The least a fragment brings, but for the last of its message: bounds what pieces cost."""
WINDOW: Final = 256
_MASK: Final = (1 << WINDOW) - 1


class Look(Enum):
    """What is known of a message id."""

    NEW = 1
    DURABLE = 2
    STALE = 3
    """Below the window: a device that keeps the rules had it acknowledged, or never used it."""


class Seen:
    """The durable ids of one device, exact in a few words of memory.

    Message ids of a device only grow, and none may be sent that is `WINDOW` or more above the
    lowest that is not yet acknowledged. So the highest durable id and one bit for each of the
    `WINDOW` ids below it are enough: what is lower was acknowledged long ago. Bit n of `bits` is
    the id `top - n`.

    >>> seen = Seen()
    >>> seen.add(10); seen.add(12)
    >>> [seen.look(message_id).name for message_id in (9, 10, 11, 12, 13)]
    ['NEW', 'DURABLE', 'NEW', 'DURABLE', 'NEW']
    >>> seen.add(10 + WINDOW)
    >>> seen.look(10).name, seen.look(11).name
    ('STALE', 'NEW')
    """

    __slots__ = ("bits", "top")

    def __init__(self, top: int = 0, bits: int = 0) -> None:
        self.top = top
        self.bits = bits

    def look(self, message_id: int) -> Look:
        """Whether a message is durable."""
        below = self.top - message_id
        if below < 0:
            return Look.NEW
        if below >= WINDOW:
            return Look.STALE
        return Look.DURABLE if self.bits >> below & 1 else Look.NEW

    def add(self, message_id: int) -> None:
        """A message is durable now; one below the window is forgotten at once."""
        above = message_id - self.top
        if above > WINDOW:
            self.bits = 1
            self.top = message_id
        elif above > 0:
            self.bits = (self.bits << above | 1) & _MASK
            self.top = message_id
        elif above > -WINDOW:
            self.bits |= 1 << -above


class EdgeDevice:
    """What the edge knows of a device, as long as it runs."""

    __slots__ = (
        "high", "low", "name", "name_bytes", "partial_bytes", "partials", "pending",
        "reserved_bytes", "seen", "session",
    )  # fmt: skip

    def __init__(self, name: str, seen: Seen | None = None) -> None:
        self.name = name
        self.name_bytes = name.encode()
        self.seen = seen or Seen()
        self.pending: set[int] = set()
        """Whole messages that are not durable yet."""
        self.partials: dict[int, Partial] = {}
        self.partial_bytes = 0
        self.reserved_bytes = 0
        self.low = 0
        """At most the lowest id that is pending or partial."""
        self.high = self.seen.top
        """The highest id that is durable, pending or partial."""
        self.session: Any = None
        """The connection it is at now, or None."""

    def took(self, message_id: int) -> None:
        """An id is pending or partial now."""
        if message_id > self.high:
            self.high = message_id
        if message_id < self.low:
            self.low = message_id


class Partial:
    """A message that is not whole."""

    __slots__ = ("deadline_ms", "found", "found_bytes", "message_bytes", "pieces")

    def __init__(self, fragment: Fragment, deadline_ms: int) -> None:
        self.pieces = fragment.pieces
        self.message_bytes = fragment.message_bytes
        self.deadline_ms = deadline_ms
        self.found: dict[int, bytes] = {}
        self.found_bytes = 0


class Message(NamedTuple):
    """A whole message on its way to the topic."""

    device: EdgeDevice
    message_id: int
    payload: bytes


class Outcome(Enum):
    """What became of a fragment that made no message whole."""

    KEPT = 1
    DURABLE = 2
    """The message is durable: acknowledge it again."""
    WAIT = 3
    """No memory is free for it now: offer it again later."""


class Reassembler:
    """Every message that is not whole. Refuses what breaks a rule before it changes anything."""

    def __init__(self, limits: EdgeLimits) -> None:
        self._limits = limits
        self._deadlines: OrderedDict[tuple[str, int], tuple[int, EdgeDevice]] = OrderedDict()
        self.reserved_bytes = 0
        self.partial_bytes = 0
        self.freed = False
        """Set when memory was given back; cleared by the caller that lets fragments wait."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def take(self, device: EdgeDevice, fragment: Fragment, now_ms: int) -> Message | Outcome:
        """Accept a fragment. `FrameError` if its device breaks a rule."""
        message_id, piece, pieces, message_bytes, payload = fragment
        if message_id in device.pending:
            return Outcome.KEPT
        if message_id <= device.seen.top:
            look = device.seen.look(message_id)
            if look is Look.DURABLE:
                return Outcome.DURABLE
            if look is Look.STALE:
                raise _stale(device, message_id)
        _check_window(device, message_id)
        if pieces != 1 or piece or len(payload) != message_bytes or device.partials:
            return self._gather(device, fragment, now_ms)
        if message_bytes > self._limits.message_bytes_max:
            raise self._too_large(fragment)
        device.pending.add(message_id)
        device.took(message_id)
        return Message(device, message_id, payload)

    def _gather(self, device: EdgeDevice, fragment: Fragment, now_ms: int) -> Message | Outcome:
        partial = device.partials.get(fragment.message_id)
        self._check(fragment, partial)
        if fragment.pieces == 1:
            device.pending.add(fragment.message_id)
            device.took(fragment.message_id)
            return Message(device, fragment.message_id, fragment.payload)
        if partial is None:
            if not self._reserve(device, fragment):
                return Outcome.WAIT
            partial = self._begin(device, fragment, now_ms)
        elif fragment.piece in partial.found:
            return Outcome.KEPT
        partial.found[fragment.piece] = fragment.payload
        partial.found_bytes += len(fragment.payload)
        if len(partial.found) < partial.pieces:
            return Outcome.KEPT
        payload = b"".join([partial.found[number] for number in range(partial.pieces)])
        self.drop(device, fragment.message_id)
        if len(payload) != partial.message_bytes:
            raise _mismatch(fragment, f"{partial.message_bytes} bytes", f"{len(payload)}")
        device.pending.add(fragment.message_id)
        return Message(device, fragment.message_id, payload)

    def _check(self, fragment: Fragment, partial: Partial | None) -> None:
        message_id, piece, pieces, message_bytes, payload = fragment
        if message_bytes > self._limits.message_bytes_max:
            raise self._too_large(fragment)
        if not piece < pieces <= max(1, -(-message_bytes // PIECE_BYTES_MIN)):
            raise FrameError(
                ErrorCode.BAD_BODY,
                f"expected fragment {piece} of {pieces} to be one of those of {message_bytes} "
                f"bytes in pieces of at least {PIECE_BYTES_MIN}",
                message_id=message_id,
            )
        if pieces == 1 and len(payload) != message_bytes:
            raise _mismatch(fragment, f"{message_bytes} bytes", f"{len(payload)}")
        if partial is None:
            return
        if pieces != partial.pieces or message_bytes != partial.message_bytes:
            raise _mismatch(
                fragment,
                f"{partial.pieces} fragments and {partial.message_bytes} bytes",
                f"{pieces} and {message_bytes}",
            )
        known = partial.found.get(piece)
        if known is not None and known != payload:
            raise _mismatch(fragment, "the same bytes as before", "others")
        if known is None and partial.found_bytes + len(payload) > message_bytes:
            raise _mismatch(fragment, f"{message_bytes} bytes in all", "more")

    def _reserve(self, device: EdgeDevice, fragment: Fragment) -> bool:
        """Set memory aside for all that the device may have incomplete, before its first piece.

        So a device that has begun can always finish: waits cannot form a cycle.
        """
        limits = self._limits
        if device.partial_bytes + fragment.message_bytes > limits.partial_bytes_max:
            raise FrameError(
                ErrorCode.WINDOW_EXCEEDED,
                f"expected incomplete messages of at most {limits.partial_bytes_max} bytes, "
                f"found {device.partial_bytes + fragment.message_bytes}",
                message_id=fragment.message_id,
            )
        if not device.reserved_bytes:
            if self.reserved_bytes + limits.partial_bytes_max > limits.partials_bytes_max:
                return False
            device.reserved_bytes = limits.partial_bytes_max
            self.reserved_bytes += device.reserved_bytes
        return True

    def _begin(self, device: EdgeDevice, fragment: Fragment, now_ms: int) -> Partial:
        deadline_ms = now_ms + self._limits.message_ms
        partial = Partial(fragment, deadline_ms)
        device.partials[fragment.message_id] = partial
        device.took(fragment.message_id)
        device.partial_bytes += fragment.message_bytes
        self.partial_bytes += fragment.message_bytes
        self._deadlines[device.name, fragment.message_id] = deadline_ms, device
        return partial

    def extend(self, device: EdgeDevice, message_id: int, now_ms: int) -> None:
        """Restart the time limit of a message."""
        deadline_ms = now_ms + self._limits.message_ms
        device.partials[message_id].deadline_ms = deadline_ms
        self._deadlines[device.name, message_id] = deadline_ms, device
        self._deadlines.move_to_end((device.name, message_id))

    def drop(self, device: EdgeDevice, message_id: int) -> None:
        """Discard the fragments of a message."""
        partial = device.partials.pop(message_id)
        del self._deadlines[device.name, message_id]
        device.partial_bytes -= partial.message_bytes
        self.partial_bytes -= partial.message_bytes
        if not device.partials:
            self.reserved_bytes -= device.reserved_bytes
            device.reserved_bytes = 0
            self.freed = True

    def drop_all(self, device: EdgeDevice) -> None:
        """Forget every incomplete message of a device: it will send them again, whole."""
        for message_id in list(device.partials):
            self.drop(device, message_id)
        device.high = max(chain((device.seen.top,), device.pending))

    def overdue(self, now_ms: int) -> list[tuple[EdgeDevice, int]]:
        """The messages whose time limit has passed."""
        found = []
        for (_, message_id), (deadline_ms, device) in self._deadlines.items():
            if deadline_ms > now_ms:
                break
            found.append((device, message_id))
        return found

    def _too_large(self, fragment: Fragment) -> FrameError:
        return FrameError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"expected a message of at most {self._limits.message_bytes_max} bytes, "
            f"found {fragment.message_bytes}",
            message_id=fragment.message_id,
        )


def _check_window(device: EdgeDevice, message_id: int) -> None:
    """Refuse an id that is too far from those that are not acknowledged."""
    if message_id == 0:
        raise FrameError(ErrorCode.BAD_BODY, "expected message ids from 1 on, found 0")
    if not device.pending and not device.partials:
        device.low = message_id
    if message_id - device.low >= WINDOW:
        device.low = min(chain(device.pending, device.partials))
        if message_id - device.low >= WINDOW:
            raise _too_far(device.low, message_id, about=message_id)
    if device.high - message_id >= WINDOW:
        raise _too_far(message_id, device.high, about=message_id)


def _too_far(low: int, high: int, *, about: int) -> FrameError:
    return FrameError(
        ErrorCode.WINDOW_EXCEEDED,
        f"expected ids less than {WINDOW} above the lowest that is not acknowledged ({low}), "
        f"found {high}",
        message_id=about,
    )


def _stale(device: EdgeDevice, message_id: int) -> FrameError:
    return FrameError(
        ErrorCode.STALE_ID,
        f"expected ids above {device.seen.top - WINDOW} (the last durable one is "
        f"{device.seen.top}), found {message_id}: ids are never used again",
        message_id=message_id,
    )


def _mismatch(fragment: Fragment, expected: str, found: str) -> FrameError:
    return FrameError(
        ErrorCode.FRAGMENT_MISMATCH,
        f"expected {expected} in message {fragment.message_id}, found {found}",
        message_id=fragment.message_id,
    )
