"""The records of one write: checked once, then logged and kept as the received bytes.

A decoded record costs an object, two or three more inside it, and the request it came in. Most
records are read rarely or never, so only the request is kept (`PackedRecords`) and decoded on
demand: one call per request in a run of slots, and only once for readers that go through a large
request in small steps. The first reader of a very large request splits it, so that later ones need
not decode all of it for a few records.

>>> batch = parse_write(b'{"records":[{"data":1},{"data":{"a": 2},"tag":"x"}]}').batch
>>> len(batch), batch.size_bytes, batch.records[1].tag
(2, 8, 'x')
>>> Batch.decoded(batch.body) == batch
True
>>> packed = PackedRecords(7, batch.body)
>>> [bytes(record.data) for record in unpacked([packed, packed], 7)]
[b'1', b'{"a": 2}']
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from types import NoneType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from penstock.kernel.units import KIB, MIB
from penstock.protocol.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from penstock.protocol.limits import TopicLimits
from penstock.protocol.values import check_text
from penstock.topics.core.record import (
    DEPTH_MAX,
    LooseBody,
    PlainBody,
    RawRecord,
    Routed,
    RoutedBody,
    WriteBody,
    check_depth,
    check_meta,
    size_of,
)

_SMALL_BYTES: Final = 2 * DEPTH_MAX  # JSON no longer than this cannot be too deep
_SLACK_BYTES: Final = 64
"""A request is logged unchanged if its size is at most twice its records plus this for each."""
OPENED_BYTES_MAX: Final = 4 * MIB
WHOLE_BYTES_MAX: Final = MIB
"""A larger request is split: reading one record would decode all of them."""
PIECE_BYTES: Final = 128 * KIB


class Batch:
    """Records that are appended together, with their sizes. Immutable.

    `body` contains all of them: the original request body where that can be used unchanged.
    """

    __slots__ = ("body", "count", "size_bytes", "sizes")

    def __init__(self, body: bytes, sizes: list[int]) -> None:
        self.body = body
        self.sizes = array("Q", sizes)
        self.count = len(sizes)
        self.size_bytes = sum(sizes)

    @classmethod
    def of(cls, records: Sequence[RawRecord]) -> Batch:
        """A batch of records that did not come from one request."""
        return cls(encode_records(records), [size_of(record) for record in records])

    @classmethod
    def decoded(cls, body: bytes) -> Batch:
        """The batch that was encoded to these bytes."""
        return cls(body, _sizes(body, decode_records(body)))

    @property
    def records(self) -> list[RawRecord]:
        """The records, decoded on each access."""
        return decode_records(self.body)

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.records == other.records

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch({self.count} records, {self.size_bytes} bytes)"


def encode_records(records: Sequence[RawRecord]) -> bytes:
    """Encode records for `decode_records`."""
    routed = any(type(record) is Routed for record in records)
    if not routed:
        return _ENCODER.encode({"records": records})
    return _ROUTED + _ENCODER.encode({"records": [_with_hops(record) for record in records]})


def decode_records(body: bytes) -> list[RawRecord]:
    """The records of a request, or of `encode_records`."""
    if body.startswith(_ROUTED):
        routed = _ROUTED_DECODER.decode(memoryview(body)[1:]).records
        return [_plain(record) for record in routed]
    wanted = _decode(body)
    if wanted.node is not None or b"null" in body:
        return _completed(body, wanted.records, wanted.node)
    return wanted.records


def decode_each(bodies: Sequence[bytes]) -> list[RawRecord]:
    """The record of each single-record body; faster than decoding one by one."""
    together = b"[%b]" % b",".join(bodies)
    try:
        wanted = _EACH_DECODER.decode(together)
    except msgspec.DecodeError:  # some came through routers
        return [decode_records(body)[0] for body in bodies]
    for one in wanted:
        if one.node is not None:
            _completed(b"", one.records, one.node)
    return _completed(together, [one.records[0] for one in wanted], None)


class WriteRequest(NamedTuple):
    """A write as requested. `config` applies only if the write creates its topic."""

    batch: Batch
    key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool = False

    @property
    def may_create(self) -> bool:
        """Whether the write creates a missing topic."""
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


def parse_write(body: bytes, limits: TopicLimits = TopicLimits()) -> WriteRequest:  # noqa: B008
    """Parse the body of a write and check every limit; raises `InvalidRequest` and the like."""
    try:
        batch = _plain_batch(body, _decode_plain(body), limits)
        if batch is not None:
            return WriteRequest(batch)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        wanted = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _parse_any(body, _parse_loose(body), limits)
    return _parse_any(body, wanted, limits)


def _plain_batch(body: bytes, wanted: PlainBody, limits: TopicLimits) -> Batch | None:
    """The common case: compact ASCII, records with data only, no options for the batch.

    None for any other body, valid or not. A few checks of the whole body make checks of single
    records unnecessary.
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
    """Decode a write, ignoring unknown fields; an invalid one is `InvalidRequest`."""
    try:
        return _LOOSE_DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"malformed write: {error}") from None


def _parse_any(body: bytes, wanted: WriteBody | LooseBody, limits: TopicLimits) -> WriteRequest:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"malformed write: {error}") from None
    if wanted.node is not None:
        check_text("node", wanted.node, limits.node_bytes_max)
    records = _completed(body, wanted.records, wanted.node)
    sizes = _sizes(body, records)
    check_batch(records, sizes, limits)
    key = wanted.idempotency_key
    if key is not None:
        check_text("idempotency_key", key, limits.key_bytes_max)
    # The log stores only the fields of records, with little overhead beside them.
    is_wasteful = len(body) > 2 * sum(sizes) + _SLACK_BYTES * (len(records) + 4)
    if is_wasteful or type(wanted) is LooseBody or wanted.config is not None:
        body = encode_records(
            [RawRecord(each.data, each.tag, each.node, each.meta) for each in records]
        )
    batch = Batch(body, sizes)
    return WriteRequest(batch, key, wanted.create, wanted.config, bool(wanted.disable_backpressure))


def check_batch(records: Sequence[RawRecord], sizes: Sequence[int], limits: TopicLimits) -> None:
    """Refuse a write with no records, too many, or records that are too large or malformed."""
    if not records:
        raise InvalidRequest("a write needs at least one record")
    if len(records) > limits.batch_records_max:
        raise BatchTooLarge(
            f"{len(records)} records in a write: at most {limits.batch_records_max} are allowed"
        )
    largest_bytes = max(sizes)
    if largest_bytes > limits.record_bytes_max:
        raise RecordTooLarge(
            f"a record has {largest_bytes} bytes: at most {limits.record_bytes_max} are allowed"
        )
    for record in records:
        if record.meta is not None:
            check_meta(bytes(record.meta), limits)
    _check_texts(records, limits)
    if largest_bytes > _SMALL_BYTES:
        _check_depths(records, sizes)


def _check_texts(records: Sequence[RawRecord], limits: TopicLimits) -> None:
    # A character has at most four bytes, so a text this short is within its limit.
    tag_max, node_max = limits.tag_bytes_max // 4, limits.node_bytes_max // 4
    for record in records:
        tag, node = record.tag, record.node
        if tag is not None and len(tag) > tag_max:
            check_text("tag", tag, limits.tag_bytes_max)
        if node is not None and len(node) > node_max:
            check_text("node", node, limits.node_bytes_max)


def _check_depths(records: Sequence[RawRecord], sizes: Sequence[int]) -> None:
    for record, size_bytes in zip(records, sizes, strict=True):
        if size_bytes > _SMALL_BYTES:
            check_depth(record.data)
            if record.meta is not None:
                check_depth(record.meta)


def _completed(body: bytes, records: Sequence[RawRecord], node: str | None) -> list[RawRecord]:
    """Records with the node of their batch if they have none; a null meta counts as missing."""
    if b"null" in body:
        for record in records:
            if record.meta == _NULL:
                record.meta = None
    if node is not None:
        for record in records:
            if record.node is None:
                record.node = node
    return [*records]


def _sizes(body: bytes, records: Sequence[RawRecord]) -> list[int]:
    """The compact size of each record; for a compact body, simply its length."""
    if _has_blanks(body):
        return [size_of(record) for record in records]
    return [
        len(record.data) if record.meta is None else len(record.data) + len(record.meta)
        for record in records
    ]


def _has_blanks(body: bytes) -> bool:
    """Whether a body may have whitespace between tokens; searching for an int is faster."""
    return 0x20 in body or 0x0A in body or 0x09 in body or 0x0D in body


def _with_hops(record: RawRecord) -> Routed:
    if type(record) is Routed:
        return record
    return Routed(record.data, record.tag, record.node, record.meta, hops=0)


def _plain(record: Routed) -> RawRecord:
    if record.hops:
        return record
    return RawRecord(record.data, record.tag, record.node, record.meta)


class PackedRecords:
    """A request with several records, shared by all of their slots."""

    __slots__ = ("_pieces", "body", "first_seq")

    def __init__(self, first_seq: int, body: bytes) -> None:
        self.first_seq = first_seq
        self.body = body
        self._pieces: list[PackedRecords] | None = None

    def piece(self, seq: int) -> PackedRecords:
        """The part with the record of a seq: the whole request, unless it is very large."""
        if self._pieces is None:
            if len(self.body) <= WHOLE_BYTES_MAX:
                return self
            self._pieces = _cut(self)
            self.body = b""
        return self._pieces[bisect_right(self._pieces, seq, key=_first_seq) - 1]

    def pieces(self) -> list[PackedRecords]:
        """All parts of the request."""
        return [self] if self._pieces is None else self._pieces


Item = RawRecord | bytes | PackedRecords | None
"""The content of a slot: a record, a request with this record alone or with others, or nothing."""


def unpacked(items: list[Item], first_seq: int) -> list[RawRecord | None]:
    """The records of consecutive slots, the first of which has this seq."""
    kinds = set(map(type, items))
    if kinds <= _AS_THEY_ARE:
        return items  # type: ignore[return-value]
    if kinds == _ALONE:
        return decode_each(items)  # type: ignore[arg-type,return-value]
    found: list[RawRecord | None] = []
    while len(found) < len(items):
        item = items[len(found)]
        if type(item) is PackedRecords:
            seq = first_seq + len(found)
            piece = item.piece(seq)
            skipped = seq - piece.first_seq
            wanted = skipped + len(items) - len(found)
            found += opened.records(piece)[skipped:wanted]
        else:
            found.append(unpack(item, 0))
    if NoneType in kinds:
        return [None if item is None else record for item, record in zip(items, found, strict=True)]
    return found


def unpack(item: Item, seq: int) -> RawRecord | None:
    """The record of one slot."""
    if type(item) is bytes:
        return decode_records(item)[0]
    if type(item) is PackedRecords:
        piece = item.piece(seq)
        return opened.records(piece)[seq - piece.first_seq]
    return item  # type: ignore[return-value]


class Opened:
    """Recently decoded requests with their records; the oldest are evicted first."""

    def __init__(self, bytes_max: int = OPENED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[PackedRecords, Sequence[RawRecord]] = {}
        self.kept_bytes = 0

    def records(self, packed: PackedRecords) -> Sequence[RawRecord]:
        """All records of a request."""
        found = self._kept.get(packed)
        if found is None:
            found = decode_records(packed.body)
            self._kept[packed] = found
            self.kept_bytes += len(packed.body)
            while self.kept_bytes > self._bytes_max and len(self._kept) > 1:
                oldest = next(iter(self._kept))
                del self._kept[oldest]
                self.kept_bytes -= len(oldest.body)
        return found


def _cut(packed: PackedRecords) -> list[PackedRecords]:
    """Split a request into pieces of at least one record each."""
    records = decode_records(packed.body)
    pieces: list[PackedRecords] = []
    start = end_bytes = 0
    for end, total_bytes in enumerate(accumulate(map(_bytes_of, records)), 1):
        if total_bytes >= end_bytes + PIECE_BYTES or end == len(records):
            pieces.append(
                PackedRecords(packed.first_seq + start, encode_records(records[start:end]))
            )
            start, end_bytes = end, total_bytes
    return pieces


def _bytes_of(record: RawRecord) -> int:
    return len(record.data) + (0 if record.meta is None else len(record.meta))


def _first_seq(packed: PackedRecords) -> int:
    return packed.first_seq


opened: Final = Opened()
_AS_THEY_ARE: Final = {RawRecord, Routed, NoneType}
_ALONE: Final = {bytes}
