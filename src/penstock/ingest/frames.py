"""The frames that devices and the edge send each other, as bytes and as values.

A frame is a head of 8 bytes, a body, and the CRC-32C of both; numbers are little-endian. The page
`docs/internals/device-protocol.md` describes every byte, for authors of device software.

>>> sent = encode_hello("meter-7", b"secret") + encode_message(1, b"payload")
>>> reader = FrameReader()
>>> reader.feed(sent[:20])
[]
>>> hello, fragment = reader.feed(sent[20:])
>>> hello.device, fragment.message_id, fragment.payload
('meter-7', 1, b'payload')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from struct import Struct, pack
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB

MAGIC: Final = 0xBE
VERSION: Final = 1
HEAD: Final = Struct("<BBBBI")
FRAGMENT: Final = Struct("<QHHI")
OPENING_BODY_BYTES_MAX: Final = KIB
"""A body before HELLO: without a token, the edge cannot be made to hold more."""
OFFENDING_BYTES_MAX: Final = 256
FRAGMENT_BYTES_MAX: Final = 16 * KIB
FRAGMENTS_MAX: Final = 65_535
TOKEN_BYTES_MAX: Final = 256
PING_BYTES_MAX: Final = 64
TEXT_BYTES_MAX: Final = 512

_HELLO, _WELCOME, _FRAGMENT, _ACK, _ERROR, _PING, _PONG = range(1, 8)
_DEVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_U32: Final = Struct("<I")
_PREFIX_AND_SIZE: Final = Struct("<II")
_FRAGMENT_PREFIX: Final = MAGIC | VERSION << 8 | _FRAGMENT << 16
_WELCOME_BODY: Final = Struct("<BIIIHQI")
_ERROR_HEAD: Final = Struct("<HQ")


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
    """Bytes that are not a frame, or a frame that is not allowed here. Ends the connection."""

    code = "bad_frame"

    def __init__(self, error_code: ErrorCode, message: str, *, message_id: int = 0) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message_id = message_id


class Hello(NamedTuple):
    """The first frame of a device: its name, its token, and the versions it speaks."""

    device: str
    token: bytes
    version_min: int = VERSION
    version_max: int = VERSION


class Welcome(NamedTuple):
    """The edge's answer to HELLO: what is spoken, and the limits that the device keeps to.

    `last_id` is the highest message id of the device that is durable or on its way to be; 0 if
    there is none.
    """

    version: int
    fragment_bytes_max: int
    message_bytes_max: int
    partial_bytes_max: int
    window: int
    last_id: int
    idle_ms: int


class Fragment(NamedTuple):
    """A piece of a message: number `piece` of `pieces`; `message_bytes` is the size of all."""

    message_id: int
    piece: int
    pieces: int
    message_bytes: int
    payload: bytes


class Ack(NamedTuple):
    """Messages that are durable."""

    message_ids: tuple[int, ...]


class Failure(NamedTuple):
    """An ERROR frame: why the edge ends the connection. `message_id` is 0 if none is meant."""

    error_code: int
    message_id: int
    text: str


class Ping(NamedTuple):
    """Asks for a PONG with the same bytes."""

    payload: bytes


class Pong(NamedTuple):
    """The answer to PING."""

    payload: bytes


Frame: TypeAlias = Hello | Welcome | Fragment | Ack | Failure | Ping | Pong


# Encoding -------------------------------------------------------------------------------------


def encode_hello(
    device: str, token: bytes, *, version_min: int = VERSION, version_max: int = VERSION
) -> bytes:
    """A HELLO frame."""
    if not is_device_id(device):
        raise Rejected(f"{device!r} cannot name a device: use 1 to 64 of A-Z a-z 0-9 . _ : -")
    if len(token) > TOKEN_BYTES_MAX:
        raise Rejected(f"a token has at most {TOKEN_BYTES_MAX} bytes, not {len(token)}")
    name = device.encode()
    return encode(
        _HELLO,
        b"%b%b%b%b"
        % (pack("<BBB", version_min, version_max, len(name)), name, pack("<H", len(token)), token),
    )


def encode_welcome(welcome: Welcome) -> bytes:
    """A WELCOME frame."""
    return encode(_WELCOME, _WELCOME_BODY.pack(*welcome))


def encode_message(
    message_id: int, payload: bytes, fragment_bytes_max: int = FRAGMENT_BYTES_MAX
) -> bytes:
    """A whole message as FRAGMENT frames, in order."""
    return b"".join(encode_fragments(message_id, payload, fragment_bytes_max))


def encode_fragments(message_id: int, payload: bytes, fragment_bytes_max: int) -> list[bytes]:
    """The FRAGMENT frames of a message, in order."""
    size_bytes = len(payload)
    count = max(1, -(-size_bytes // fragment_bytes_max))
    if count > FRAGMENTS_MAX:
        raise Rejected(f"a message has at most {FRAGMENTS_MAX} fragments, not {count}")
    head = FRAGMENT.pack
    return [
        encode(
            _FRAGMENT,
            head(message_id, index, count, size_bytes)
            + payload[index * fragment_bytes_max : (index + 1) * fragment_bytes_max],
        )
        for index in range(count)
    ]


def encode_ack(message_ids: Iterable[int]) -> bytes:
    """An ACK frame."""
    ids = tuple(message_ids)
    return encode(_ACK, pack(f"<{len(ids)}Q", *ids))


def encode_error(error: FrameError) -> bytes:
    """An ERROR frame."""
    text = error.message.encode("utf-8", "replace")[:TEXT_BYTES_MAX]
    return encode(_ERROR, _ERROR_HEAD.pack(error.error_code, error.message_id) + text)


def encode_ping(payload: bytes = b"") -> bytes:
    """A PING frame."""
    return encode(_PING, payload[:PING_BYTES_MAX])


def encode_pong(payload: bytes) -> bytes:
    """A PONG frame."""
    return encode(_PONG, payload[:PING_BYTES_MAX])


def encode(kind: int, body: bytes) -> bytes:
    """A frame of any kind."""
    head = HEAD.pack(MAGIC, VERSION, kind, 0, len(body)) + body
    return head + _U32.pack(crc32c(head))


def is_device_id(device: str) -> bool:
    """Whether a text is a valid device name."""
    return _DEVICE.fullmatch(device) is not None


# Decoding -------------------------------------------------------------------------------------


class FrameReader:
    """Bytes in, frames out, however the bytes are cut.

    After the first thing that is wrong `error` says what and `offending` has the bytes where it
    stands; nothing more is read. What is held is at most one frame that is not whole.
    """

    __slots__ = ("_body_bytes_max", "_held", "_limit", "_needed", "error", "offending")

    def __init__(
        self, body_bytes_max: int = FRAGMENT_BYTES_MAX + FRAGMENT.size, *, opening: bool = True
    ) -> None:
        self._body_bytes_max = body_bytes_max
        self._limit = min(OPENING_BODY_BYTES_MAX, body_bytes_max) if opening else body_bytes_max
        self._held = bytearray()
        self._needed = HEAD.size
        self.error: FrameError | None = None
        self.offending = b""

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that is not whole."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now, in order."""
        if self.error is not None:
            return []
        held = self._held
        if held:
            held += data
            if len(held) < self._needed:
                return []
            data = bytes(held)
            held.clear()
        frames: list[Frame] = []
        at = 0
        try:
            for kind, begin, stop in self._cut(data):
                # Nearly all frames are fragments: they take no call of their own.
                if kind == _FRAGMENT and stop - begin >= FRAGMENT.size:
                    message_id, piece, pieces, size_bytes = FRAGMENT.unpack_from(data, begin)
                    payload = data[begin + FRAGMENT.size : stop]
                    frames.append(Fragment(message_id, piece, pieces, size_bytes, payload))
                else:
                    frames.append(self._parse(kind, data[begin:stop]))
                at = stop + 4
        except FrameError as error:
            self.error = error
            self.offending = data[at : at + OFFENDING_BYTES_MAX]
            return frames
        if at < len(data):
            held += memoryview(data)[at:]
        return frames

    def _cut(self, data: bytes) -> Iterable[tuple[int, int, int]]:
        """Where the whole frames are: kind, begin and end of the body. Checks all but the body."""
        view, at, end = memoryview(data), 0, len(data)
        while end - at >= HEAD.size:
            prefix, size_bytes = _PREFIX_AND_SIZE.unpack_from(data, at)
            if prefix != _FRAGMENT_PREFIX or size_bytes > self._limit:
                check_head(data[at : at + HEAD.size], self._limit)
            begin = at + HEAD.size
            stop = begin + size_bytes
            if stop + 4 > end:
                self._needed = stop + 4 - at
                return
            (expected,) = _U32.unpack_from(data, stop)
            found = crc32c(view[at:stop])
            if found != expected:
                raise FrameError(
                    ErrorCode.BAD_CHECKSUM, f"expected checksum {expected:#x}, found {found:#x}"
                )
            yield prefix >> 16 & 0xFF, begin, stop
            at = stop + 4
        self._needed = HEAD.size

    def _parse(self, kind: int, body: bytes) -> Frame:
        frame = _PARSERS[kind](body)
        if type(frame) is Hello:
            self._limit = self._body_bytes_max
        return frame


def check_head(head: bytes, body_bytes_max: int) -> None:
    """Refuse a head that begins no frame we read."""
    magic, version, kind, flags, size_bytes = HEAD.unpack(head)
    if magic != MAGIC:
        raise FrameError(
            ErrorCode.BAD_MAGIC, f"expected a frame that begins with {MAGIC:#x}, found {magic:#x}"
        )
    if version != VERSION:
        raise FrameError(
            ErrorCode.BAD_VERSION, f"expected frames of version {VERSION}, found {version}"
        )
    if kind not in _PARSERS or flags:
        raise FrameError(
            ErrorCode.BAD_TYPE,
            f"expected a type from 1 to {max(_PARSERS)} and flags 0, found {kind} and {flags}",
        )
    if size_bytes > body_bytes_max:
        raise FrameError(
            ErrorCode.BAD_LENGTH, f"expected a body of at most {body_bytes_max}, found {size_bytes}"
        )


def _hello(body: bytes) -> Hello:
    if len(body) < 5 or len(body) < 5 + body[2]:
        raise _bad("HELLO", body)
    end = 3 + body[2]
    token = body[end + 2 :]
    if int.from_bytes(body[end : end + 2], "little") != len(token) or len(token) > TOKEN_BYTES_MAX:
        raise _bad("HELLO", body)
    device = body[3:end].decode("latin-1")
    if not is_device_id(device):
        raise FrameError(
            ErrorCode.BAD_BODY,
            f"expected a device id of 1 to 64 of A-Z a-z 0-9 . _ : -, found {device!r}",
        )
    return Hello(device, token, body[0], body[1])


def _welcome(body: bytes) -> Welcome:
    if len(body) != _WELCOME_BODY.size:
        raise _bad("WELCOME", body)
    return Welcome(*_WELCOME_BODY.unpack(body))


def _short_fragment(body: bytes) -> Fragment:
    raise _bad("FRAGMENT", body)


def _ack(body: bytes) -> Ack:
    if len(body) % 8:
        raise _bad("ACK", body)
    return Ack(Struct(f"<{len(body) // 8}Q").unpack(body))


def _failure(body: bytes) -> Failure:
    if len(body) < _ERROR_HEAD.size:
        raise _bad("ERROR", body)
    error_code, message_id = _ERROR_HEAD.unpack_from(body)
    return Failure(error_code, message_id, body[_ERROR_HEAD.size :].decode("utf-8", "replace"))


def _ping(body: bytes) -> Ping:
    if len(body) > PING_BYTES_MAX:
        raise _bad("PING", body)
    return Ping(body)


def _pong(body: bytes) -> Pong:
    if len(body) > PING_BYTES_MAX:
        raise _bad("PONG", body)
    return Pong(body)


def _bad(name: str, body: bytes) -> FrameError:
    return FrameError(ErrorCode.BAD_BODY, f"malformed body of a {name} frame ({len(body)} bytes)")


_PARSERS: Final[dict[int, Callable[[bytes], Frame]]] = {
    _HELLO: _hello,
    _WELCOME: _welcome,
    _FRAGMENT: _short_fragment,
    _ACK: _ack,
    _ERROR: _failure,
    _PING: _ping,
    _PONG: _pong,
}
