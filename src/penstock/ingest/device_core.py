"""The device side of the protocol without its socket: ids, window, what is to be sent again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.ingest.frames import ErrorCode, Failure, Welcome, encode_message
from penstock.kernel.errors import Rejected

TRY_AGAIN_FROM: Final = ErrorCode.TOO_MANY_DEVICES
_ABOUT_A_MESSAGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_REFUSED})
_PASSING: Final = frozenset({ErrorCode.TOO_SLOW})


class DeviceRefused(Rejected):
    """The edge permanently refuses what this device sends; do not retry."""

    code = "device_refused"


class DeviceCore:
    """The messages of a device that are not acknowledged, oldest first."""

    def __init__(self, window_max: int = 256) -> None:
        self.next_id = 1
        self.acked = 0
        self.resent = 0
        self.failure: DeviceRefused | None = None
        self.refused: list[tuple[int, str]] = []
        """Messages that the edge refused permanently, and why; they are discarded."""
        self.welcome: Welcome | None = None
        self._window_max = window_max
        self._unacked: dict[int, bytes] = {}

    @property
    def unacked(self) -> int:
        """How many messages are not acknowledged."""
        return len(self._unacked)

    @property
    def has_room(self) -> bool:
        """Whether the next message may be sent: its id is within the window, and a HELLO was."""
        if self.welcome is None:
            return False
        if not self._unacked:
            return True
        window = min(self._window_max, self.welcome.window)
        return self.next_id - next(iter(self._unacked)) < window

    def welcomed(self, welcome: Welcome) -> bytes:
        """A connection is ready: everything that is not acknowledged, to be sent again."""
        if self.welcome is None and not self._unacked:
            self.next_id = max(self.next_id, welcome.last_id + 1)
        self.welcome = welcome
        self.resent += len(self._unacked)
        return b"".join(
            [
                encode_message(message_id, payload, welcome.fragment_bytes_max)
                for message_id, payload in self._unacked.items()
            ]
        )

    def message(self, payload: bytes) -> tuple[int, bytes]:
        """The id of a new message and its frames. `Rejected` if the edge takes none so large."""
        if self.failure is not None:
            raise self.failure
        assert self.welcome is not None, "called without room"
        if len(payload) > self.welcome.message_bytes_max:
            raise Rejected(
                f"expected a message of at most {self.welcome.message_bytes_max} bytes, "
                f"found {len(payload)}"
            )
        message_id = self.next_id
        self.next_id += 1
        self._unacked[message_id] = payload
        return message_id, encode_message(message_id, payload, self.welcome.fragment_bytes_max)

    def acknowledged(self, message_ids: Iterable[int]) -> None:
        """Messages are durable; each counts once."""
        for message_id in message_ids:
            if self._unacked.pop(message_id, None) is not None:
                self.acked += 1

    def failed(self, failure: Failure) -> None:
        """The edge ended the connection: give up, give up one message, or try again later."""
        error_code = failure.error_code
        if error_code in _ABOUT_A_MESSAGE and failure.message_id in self._unacked:
            del self._unacked[failure.message_id]
            self.refused.append((failure.message_id, failure.text))
        elif error_code < TRY_AGAIN_FROM and error_code not in _PASSING:
            self.failure = DeviceRefused(
                f"the edge refuses messages, error {error_code}: {failure.text}",
                error_code=error_code,
            )
