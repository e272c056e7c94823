"""WebSocket messages: from clients as operations, from the server as bytes.

>>> parse_message(b'{"op":"ping","request_id":[1]}')
Ping(request_id=b'[1]')
>>> pong(b"[1]")
b'{"op":"pong","request_id":[1]}'
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import InvalidJson, InvalidRequest
from penstock.server.api.answers import encode
from penstock.server.api.errors import Hide, as_it_is, describe
from penstock.server.api.queries import decode_object

NO_ID: Final = b"null"
QUEUE_MAX: Final = 4
"""Messages that may wait for a client's socket."""


class BadMessage(Exception):
    """A message that is not a valid operation, with the request id to answer."""

    def __init__(self, request_id: bytes, error: Rejected) -> None:
        super().__init__(error.message)
        self.request_id = request_id
        self.error = error


class Ping(NamedTuple):
    """A check that the server is alive."""

    request_id: bytes


class Subscribe(NamedTuple):
    """Push the records of topics from now on; `body` holds the fields as they were sent."""

    request_id: bytes
    body: dict[str, Any]


class Unsubscribe(NamedTuple):
    """Stop pushing these topics; None means all of them."""

    request_id: bytes
    topics: list[str] | None


class Publish(NamedTuple):
    """Write records; `raw` is the whole message, whose fields are those of a write."""

    request_id: bytes
    topic: str
    raw: bytes
    return_seqs: bool


Operation = Ping | Subscribe | Unsubscribe | Publish


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
        raise BadMessage(NO_ID, InvalidRequest(f"expected an object: {error}")) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(NO_ID, InvalidJson(f"expected JSON: {error}")) from error
    request_id = bytes(head.request_id)
    try:
        return _operation(head, request_id, text)
    except InvalidRequest as error:
        raise BadMessage(request_id, error) from error


def _operation(head: _Head, request_id: bytes, text: bytes) -> Operation:
    match head.op:
        case "publish":
            if not isinstance(head.topic, str):
                raise InvalidRequest(f"expected a topic, found {head.topic!r}")
            if not isinstance(head.return_seqs, bool):
                raise InvalidRequest(
                    f"expected return_seqs to be true or false, found {head.return_seqs!r}"
                )
            return Publish(request_id, head.topic, text, head.return_seqs)
        case "subscribe":
            return Subscribe(request_id, _with_topics(decode_object(text)))
        case "unsubscribe":
            return Unsubscribe(request_id, _names(decode_object(text)))
        case "ping":
            return Ping(request_id)
    raise InvalidRequest(
        f"expected op to be subscribe, unsubscribe, publish or ping, found {head.op!r}"
    )


def _with_topics(body: dict[str, Any]) -> dict[str, Any]:
    """Normalise a subscription to one topic to one of several."""
    topic = body.get("topic")
    if topic is None:
        return body
    if not isinstance(topic, str):
        raise InvalidRequest(f"expected topic to be a name, found {topic!r}")
    place = {key: body[key] for key in ("from_seq", "tail", "epoch", "tag") if key in body}
    others = body.get("topics") or {}
    if not isinstance(others, dict):
        raise InvalidRequest(f"expected topics to be an object, found {others!r}")
    return {**body, "topics": {**others, topic: place}}


def _names(body: dict[str, Any]) -> list[str] | None:
    """The topics to unsubscribe from: one, several, or None for all."""
    topic, topics = body.get("topic"), body.get("topics")
    if topic is None and topics is None:
        return None
    others = topics if isinstance(topics, list) else [topics] if topics is not None else []
    names = [*([] if topic is None else [topic]), *others]
    if isinstance(topics, str) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest(f"expected names of topics, found {names!r}")
    return names


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
    """The error of an operation."""
    status, code, message, _ = describe(error)
    message = hide(message, status)
    return b'{"op":"error","request_id":%b,"code":%b,"message":%b}' % (
        request_id,
        encode(code),
        encode(message),
    )


def closing(code: str, text: str) -> bytes:
    """The last message when the server stops."""
    return b'{"op":"error","request_id":null,"code":%b,"message":%b}' % (encode(code), encode(text))
