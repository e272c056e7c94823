"""WebSocket messages: from clients as operations, from the server as bytes.

>>> parse_message(b'{"op":"ping","request_id":[1]}')
PingMessage(request_id=b'[1]')
>>> pong(b"[1]")
b'{"op":"pong","request_id":[1]}'
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from penstock.kernel.errors import Rejected
from penstock.protocol import requests
from penstock.protocol.decoding import decode
from penstock.protocol.errors import InvalidJson, InvalidRequest
from penstock.server.api.answers import encode
from penstock.server.api.errors import Hide, as_it_is, told
from penstock.server.http.message import UNKNOWN_CODES

NO_ID: Final = b"null"


class BadMessage(Exception):
    """A message that is not a valid operation, with the request id to answer."""

    def __init__(self, request_id: bytes, error: Rejected) -> None:
        super().__init__(error.message)
        self.request_id = request_id
        self.error = error


class PingMessage(NamedTuple):
    """A check that the server is alive."""

    request_id: bytes


class SubscribeMessage(NamedTuple):
    """Push the records of topics from now on."""

    request_id: bytes
    body: requests.Subscribe


class UnsubscribeMessage(NamedTuple):
    """Stop pushing these topics; None means all of them."""

    request_id: bytes
    topics: list[str] | None


class PublishMessage(NamedTuple):
    """Write records; `raw` is the whole message, whose fields are those of a write."""

    request_id: bytes
    topic: str
    raw: bytes
    return_seqs: bool


Operation = PingMessage | SubscribeMessage | UnsubscribeMessage | PublishMessage


class _Head(msgspec.Struct):
    """The part of a message that determines how to parse the rest."""

    op: Any = None
    request_id: msgspec.Raw = msgspec.Raw(NO_ID)
    topic: Any = None
    return_seqs: Any = True


_decode_head: Final = msgspec.json.Decoder(_Head).decode


def parse_message(text: bytes) -> Operation:
    """Parse a message, or `BadMessage`."""
    try:
        head = _decode_head(text)
    except msgspec.ValidationError as error:
        raise BadMessage(
            NO_ID, InvalidRequest(f"the message must be an object: {error}")
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(NO_ID, InvalidJson(f"the message is not valid JSON: {error}")) from error
    request_id = bytes(head.request_id)
    try:
        return _operation(head, request_id, text)
    except InvalidRequest as error:
        raise BadMessage(request_id, error) from error


def _operation(head: _Head, request_id: bytes, text: bytes) -> Operation:
    match head.op:
        case "publish":
            if not isinstance(head.topic, str):
                raise InvalidRequest(f"topic must be a string, not {head.topic!r}")
            if not isinstance(head.return_seqs, bool):
                raise InvalidRequest(f"return_seqs must be true or false, not {head.return_seqs!r}")
            return PublishMessage(request_id, head.topic, text, head.return_seqs)
        case "subscribe":
            return SubscribeMessage(request_id, _with_topics(decode(requests.Subscribe, text)))
        case "unsubscribe":
            return UnsubscribeMessage(request_id, _names(decode(requests.Unsubscribe, text)))
        case "ping":
            return PingMessage(request_id)
    raise InvalidRequest(f"op must be subscribe, unsubscribe, publish or ping, not {head.op!r}")


def _with_topics(body: requests.Subscribe) -> requests.Subscribe:
    """Make a subscription to one topic one to several."""
    if body.topic is not None:
        place = requests.WatchPlace(
            from_seq=body.from_seq, tail=body.tail, epoch=body.epoch, tag=body.tag
        )
        body.topics = {**(body.topics or {}), body.topic: place}
    return body


def _names(body: requests.Unsubscribe) -> list[str] | None:
    """The topics to unsubscribe from: one, several, or None for all."""
    if body.topic is None:
        return body.topics
    return [body.topic, *(body.topics or ())]


# Messages from the server


def pong(request_id: bytes) -> bytes:
    """The answer to a ping."""
    return b'{"op":"pong","request_id":%b}' % request_id


def subscribed(request_id: bytes, topics: dict[str, dict[str, int]]) -> bytes:
    """The answer to a subscription: where each topic begins."""
    return b'{"op":"subscribed","request_id":%b,"topics":%b}' % (request_id, encode(topics))


def unsubscribed(request_id: bytes, topics: list[str]) -> bytes:
    """The answer to the end of a subscription."""
    return b'{"op":"unsubscribed","request_id":%b,"topics":%b}' % (request_id, encode(topics))


def acked(request_id: bytes, written: bytes, *, return_seqs: bool) -> bytes:
    """The answer to a publication: a write's answer, prefixed with the op and the id."""
    if not return_seqs:
        written = written.replace(b',"head_seq":', b',"seqs":null,"head_seq":', 1)
    return b'{"op":"ack","request_id":%b,%b' % (request_id, written[1:])


def pushed(op: bytes, data: bytes) -> bytes:
    """A push message: the data of the event of that name, prefixed with the op."""
    return b'{"op":"%b",%b' % (op, data[1:])


def failed(request_id: bytes, error: Exception, hide: Hide = as_it_is) -> bytes:
    """The error of an operation; it says so if the operation may have taken effect."""
    _, code, message, _ = told(error, hide)
    return b'{"op":"error","request_id":%b,"code":%b,"message":%b%b}' % (
        request_id,
        encode(code),
        encode(message),
        b',"outcome":"unknown"' if code in UNKNOWN_CODES else b"",
    )


def refused(request_id: bytes, answer: bytes) -> bytes:
    """The error of an operation that another node has refused, from its answer.

    >>> refused(b"7", b'{"error":{"code":"topic_full","message":"no room"}}')
    b'{"op":"error","request_id":7,"code":"topic_full","message":"no room"}'
    """
    error = msgspec.json.decode(answer)["error"]
    return b'{"op":"error","request_id":%b,"code":%b,"message":%b%b}' % (
        request_id,
        encode(error["code"]),
        encode(error["message"]),
        b',"outcome":"unknown"' if error["code"] in UNKNOWN_CODES else b"",
    )


def closing(code: str, text: str) -> bytes:
    """The last message when the server ends the connection."""
    return b'{"op":"error","request_id":null,"code":%b,"message":%b}' % (encode(code), encode(text))
