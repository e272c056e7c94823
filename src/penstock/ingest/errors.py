"""What can be wrong with the bytes of a device, and the codes that it is told."""

from __future__ import annotations

from enum import IntEnum

from penstock.kernel.errors import Rejected


class ErrorCode(IntEnum):
    """The code of an ERROR frame. Below 100 the device is at fault, from 100 on it may try again.

    After every ERROR frame the connection ends.
    """

    BAD_MAGIC = 1
    BAD_VERSION = 2
    BAD_TYPE = 3
    BAD_LENGTH = 4
    BAD_CHECKSUM = 5
    BAD_BODY = 6
    UNAUTHORIZED = 7
    NO_HELLO = 8
    FRAGMENT_MISMATCH = 9
    MESSAGE_TOO_LARGE = 10
    WINDOW_EXCEEDED = 11
    STALE_ID = 12
    TOO_SLOW = 13
    MESSAGE_REFUSED = 14
    TOO_MANY_DEVICES = 100
    SUPERSEDED = 101
    SHUTTING_DOWN = 102
    IDLE = 103


class FrameError(Rejected):
    """Bytes that are no frame, or a frame that may not come here. Ends the connection."""

    code = "bad_frame"

    def __init__(self, error_code: ErrorCode, message: str, *, message_id: int = 0) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message_id = message_id


class TooLarge(Rejected):
    """The topic takes no record or no write of that size, now or ever."""

    code = "too_large"
