"""The records of one write, together: checked once, then logged and kept as the bytes that came.

>>> batch = parse_write(b'{"records":[{"data":1},{"data":{"a": 2},"tag":"x"}]}').batch
>>> len(batch), batch.size_bytes, batch.records[1].tag
(2, 8, 'x')
>>> Batch.decoded(batch.body) == batch
True
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from penstock.protocol.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from penstock.protocol.limits import TopicLimits
from penstock.protocol.values import check_text
from penstock.topics.core.bodies import LooseBody, PlainBody, RoutedBody, WriteBody
from penstock.topics.core.record import DEPTH_MAX, Record, Routed, check_depth, check_meta, size_of

_SMALL_BYTES: Final = 2 * DEPTH_MAX  # JSON no longer than this cannot be too deep
_SLACK_BYTES: Final = 64
"""A request may be logged as it came if it is at most this and twice its records in size."""


class Batch:
    """Records that are appended together, with their sizes. Never changed once it is made.

    `body` has all of them: the request that brought them, where there is one that will do.
    """

    __slots__ = ("body", "count", "size_bytes", "sizes")

    def __init__(self, body: bytes, sizes: list[int]) -> None:
        self.body = body
        self.sizes = array("Q", sizes)
        self.count = len(sizes)
        self.size_bytes = sum(sizes)

    @classmethod
    def of(cls, records: Sequence[Record]) -> Batch:
        """A batch of records that came from elsewhere than one request."""
        return cls(encode_records(records), [size_of(record) for record in records])

    @classmethod
    def decoded(cls, body: bytes) -> Batch:
        """The batch that was encoded to these bytes."""
        return cls(body, _sizes(body, decode_records(body)))

    @property
    def records(self) -> list[Record]:
        """Its records, decoded each time."""
        return decode_records(self.body)

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.records == other.records

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch({self.count} records, {self.size_bytes} bytes)"


def encode_records(records: Sequence[Record]) -> bytes:
    """Bytes from which records can be had again."""
    routed = any(type(record) is Routed for record in records)
    if not routed:
        return _ENCODER.encode({"records": records})
    return _ROUTED + _ENCODER.encode({"records": [_with_hops(record) for record in records]})


def decode_records(body: bytes) -> list[Record]:
    """The records of a request, or those that were encoded to these bytes."""
    if body.startswith(_ROUTED):
        routed = _ROUTED_DECODER.decode(memoryview(body)[1:]).records
        return [_plain(record) for record in routed]
    wanted = _decode(body)
    if wanted.node is not None or b"null" in body:
        return _completed(body, wanted.records, wanted.node)
    return wanted.records


def decode_each(bodies: Sequence[bytes]) -> list[Record]:
    """The record of each of these bodies, which have one: quicker than one after another."""
    together = b"[%b]" % b",".join(bodies)
    try:
        wanted = _EACH_DECODER.decode(together)
    except msgspec.DecodeError:  # some are of routers
        return [decode_records(body)[0] for body in bodies]
    for one in wanted:
        if one.node is not None:
            _completed(b"", one.records, one.node)
    return _completed(together, [one.records[0] for one in wanted], None)


class Write(NamedTuple):
    """A write as it was asked for. `config` counts only if the write creates its topic."""

    batch: Batch
    key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool = False

    @property
    def may_create(self) -> bool:
        """Whether it makes its topic if there is none."""
        wanted = self.config is None or self.config.get("auto_create") is not False
        return wanted and self.create is not False


_NULL: Final = Raw(b"null")
_ROUTED: Final = b"R"
_decode: Final = msgspec.json.Decoder(WriteBody).decode
_decode_plain: Final = msgspec.json.Decoder(PlainBody).decode
_LOOSE_DECODER: Final = msgspec.json.Decoder(LooseBody)
_ROUTED_DECODER: Final = msgspec.json.Decoder(RoutedBody)
_EACH_DECODER: Final = msgspec.json.Decoder(list[WriteBody])
_ENCODER: Final = msgspec.json.Encoder()


def parse_write(body: bytes, limits: TopicLimits = TopicLimits()) -> Write:  # noqa: B008
    """Read the body of a write and check every limit on it, or `InvalidRequest` and its like."""
    try:
        batch = _plain_batch(body, _decode_plain(body), limits)
        if batch is not None:
            return Write(batch)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        wanted = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _parse_any(body, _parse_loose(body), limits)
    return _parse_any(body, wanted, limits)


def _plain_batch(body: bytes, wanted: PlainBody, limits: TopicLimits) -> Batch | None:
    """The usual write: compact ASCII, records of data alone, nothing said about the batch.

    None if it is not that, whether it is right or wrong. A few looks at the whole body
    show that no single record has to be looked at.
    """
    if (
        wanted.node is not None
        or wanted.idempotency_key is not None
        or wanted.config is not None
        or wanted.create is not None
        or wanted.disable_backpressure is not None
        or not body.isascii()
        or _has_blanks(body)
    ):
        return None
    sizes = [len(record.data) for record in wanted.records]
    count = len(sizes)
    if not 0 < count <= limits.batch_records_max:
        return None
    largest_bytes = max(sizes) if count > 1 else sizes[0]
    if largest_bytes > _SMALL_BYTES or largest_bytes > limits.record_bytes_max:
        return None
    batch = Batch(body, sizes)
    if len(body) > 2 * batch.size_bytes + _SLACK_BYTES * (count + 4):
        return None
    return batch


def _parse_loose(body: bytes) -> LooseBody:
    """The fields of a write that may have others beside them; of a wrong one, what is wrong."""
    try:
        return _LOOSE_DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected a write, found: {error}") from None


def _parse_any(body: bytes, wanted: WriteBody | LooseBody, limits: TopicLimits) -> Write:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"expected a write, found: {error}") from None
    if wanted.node is not None:
        check_text("node", wanted.node, limits.node_bytes_max)
    records = _completed(body, wanted.records, wanted.node)
    sizes = _sizes(body, records)
    check_batch(records, sizes, limits)
    key = wanted.idempotency_key
    if key is not None:
        check_text("idempotency_key", key, limits.key_bytes_max)
    # What is logged has the fields of records and nothing else, and not much else than them.
    is_wasteful = len(body) > 2 * sum(sizes) + _SLACK_BYTES * (len(records) + 4)
    if is_wasteful or type(wanted) is LooseBody or wanted.config is not None:
        body = encode_records(
            [Record(each.data, each.tag, each.node, each.meta) for each in records]
        )
    batch = Batch(body, sizes)
    return Write(batch, key, wanted.create, wanted.config, bool(wanted.disable_backpressure))


def check_batch(records: Sequence[Record], sizes: Sequence[int], limits: TopicLimits) -> None:
    """Refuse a write whose records are none, too many, too large or of the wrong shape."""
    if not records:
        raise InvalidRequest("expected at least one record, found none")
    if len(records) > limits.batch_records_max:
        raise BatchTooLarge(
            f"expected at most {limits.batch_records_max} records, found {len(records)}"
        )
    largest_bytes = max(sizes)
    if largest_bytes > limits.record_bytes_max:
        raise RecordTooLarge(
            f"expected at most {limits.record_bytes_max} bytes a record, found {largest_bytes}"
        )
    for record in records:
        if record.meta is not None:
            check_meta(bytes(record.meta), limits)
    _check_texts(records, limits)
    if largest_bytes > _SMALL_BYTES:
        _check_depths(records, sizes)


def _check_texts(records: Sequence[Record], limits: TopicLimits) -> None:
    # No character has more than four bytes: a text this short is within its limit.
    tag_max, node_max = limits.tag_bytes_max // 4, limits.node_bytes_max // 4
    for record in records:
        tag, node = record.tag, record.node
        if tag is not None and len(tag) > tag_max:
            check_text("tag", tag, limits.tag_bytes_max)
        if node is not None and len(node) > node_max:
            check_text("node", node, limits.node_bytes_max)


def _check_depths(records: Sequence[Record], sizes: Sequence[int]) -> None:
    for record, size_bytes in zip(records, sizes, strict=True):
        if size_bytes > _SMALL_BYTES:
            check_depth(record.data)
            if record.meta is not None:
                check_depth(record.meta)


def _completed(body: bytes, records: Sequence[Record], node: str | None) -> list[Record]:
    """Records with the node of their batch, if they have none; a meta of null is none."""
    if b"null" in body:
        for record in records:
            if record.meta == _NULL:
                record.meta = None
    if node is not None:
        for record in records:
            if record.node is None:
                record.node = node
    return [*records]


def _sizes(body: bytes, records: Sequence[Record]) -> list[int]:
    """The compact size of each record; where the whole body is compact, its length."""
    if _has_blanks(body):
        return [size_of(record) for record in records]
    return [
        len(record.data) if record.meta is None else len(record.data) + len(record.meta)
        for record in records
    ]


def _has_blanks(body: bytes) -> bool:
    """Whether a body may have blanks between its tokens; numbers are found faster than bytes."""
    return 0x20 in body or 0x0A in body or 0x09 in body or 0x0D in body


def _with_hops(record: Record) -> Routed:
    if type(record) is Routed:
        return record
    return Routed(record.data, record.tag, record.node, record.meta, hops=0)


def _plain(record: Routed) -> Record:
    if record.hops:
        return record
    return Record(record.data, record.tag, record.node, record.meta)
