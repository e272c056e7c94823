"""One number for each row: equal rows have equal numbers, others hardly ever.

A row is found by its number and then compared, so a collision costs time and nothing else. NULL
equals NULL, NaN equals NaN, -0.0 equals 0.0, and a map's entries have no order, as in Spark's GROUP
BY. Arrays only, no IO.

>>> import pyarrow as pa
>>> found = row_hashes(pa.table({"n": [1, 1, None], "f": [-0.0, 0.0, float("nan")]}))
>>> bool(found[0] == found[1]), bool(found[0] == found[2])
(True, False)
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]

HASH_VERSION: Final = 2
"""Counts up when rows get other numbers, so that stored ones are not used any more."""

_NULL: Final = np.uint64(0x9E3779B97F4A7C15)
_STEP: Final = np.uint64(0x100000001B3)
_BASE: Final = np.uint64(0xD6E8FEB86659FD93)
"""Odd, so that it has an inverse modulo 2**64."""
_INVERSE: Final = np.uint64(pow(int(_BASE), -1, 1 << 64))
_MIX: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT: Final = np.uint64(33)
_NAN: Final = np.float64("nan")
_TEXT_BYTES: Final = 1 << 18
"""Bytes of text that are hashed at a time; the powers of the base take eight times as much."""


def row_hashes(rows: pa.Table) -> Hashes:
    """A number for each row, by the values of all columns."""
    made = np.full(rows.num_rows, _STEP, np.uint64)
    with np.errstate(over="ignore"):
        for column in rows.columns:
            made = _mixed(made * _STEP + _column(column))
    return made


def _column(column: pa.ChunkedArray) -> Hashes:
    parts = [_array(chunk) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _array(array: pa.Array) -> Hashes:
    values = _values(array)
    if array.null_count:
        values[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return values


def _values(array: pa.Array) -> Hashes:
    """A number for each value; those of NULLs do not matter."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _values(array.storage)
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return _wide(array)
    if _is_text(kind):
        return _texts(array)
    if pa.types.is_boolean(kind):
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return _integers(array)
    if pa.types.is_struct(kind):
        return _structs(array)
    return _others(array)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _floats(array: pa.Array) -> Hashes:
    values = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    values[np.isnan(values)] = _NAN
    bits: Hashes = values.view(np.uint64)
    return bits


def _integers(array: pa.Array) -> Hashes:
    if array.type == pa.month_day_nano_interval():
        return _others(array)
    if not pa.types.is_integer(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    wide: Hashes = values.astype(np.int64 if values.dtype != np.uint64 else np.uint64)
    return wide.view(np.uint64)


def _wide(array: pa.Array) -> Hashes:
    """Values of a fixed number of bytes, of which most have sixteen."""
    size = array.type.bit_width // 8
    if size % 8:
        return _others(array)
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, size // 8)
    words = words[array.offset : array.offset + len(array)]
    made = words[:, 0].copy()
    for place in range(1, size // 8):
        made = _mixed(made) + words[:, place]
    return made


def _texts(array: pa.Array) -> Hashes:
    """Each different text is hashed once."""
    kind = pa.large_binary()
    coded = array.cast(kind).dictionary_encode()
    places = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)
    if not len(coded.dictionary):
        return np.zeros(len(array), np.uint64)
    hashes: Hashes = _text_hashes(coded.dictionary)[places]
    return hashes


def _text_hashes(texts: pa.Array) -> Hashes:
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    offsets = offsets[texts.offset : texts.offset + len(texts) + 1]
    data = texts.buffers()[2]
    held = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    made = np.empty(len(texts), np.uint64)
    begin = 0
    while begin < len(texts):
        room = offsets[begin] + _TEXT_BYTES
        end = max(begin + 1, int(np.searchsorted(offsets, room, side="right")) - 1)
        end = min(end, len(texts))
        made[begin:end] = _pieces(held, offsets[begin : end + 1])
        begin = end
    return made


def _pieces(held: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    """The hash of each piece of a text: its bytes as the digits of a number."""
    first = int(offsets[0])
    data = held[first : int(offsets[-1])].astype(np.uint64) + np.uint64(1)
    digits: Hashes = data * _powers(_BASE, len(data))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(digits, dtype=np.uint64)])
    at = offsets - first
    spans = sums[at[1:]] - sums[at[:-1]]
    # Divide by the power that a piece begins with, so that its place does not matter.
    back = _powers(_INVERSE, len(data) + 1)
    made: Hashes = spans * back[at[:-1]] + np.diff(at).view(np.uint64)
    return made


def _powers(base: np.uint64, count: int) -> Hashes:
    return _known_powers(base, max(_TEXT_BYTES + 1, 1 << (count - 1).bit_length()))[:count]


@lru_cache(maxsize=2)
def _known_powers(base: np.uint64, count: int) -> Hashes:
    found: Hashes = np.cumprod(np.full(count, base, np.uint64), dtype=np.uint64)
    return found


def _structs(array: pa.Array) -> Hashes:
    made = np.zeros(len(array), np.uint64)
    for field in array.flatten():
        made = _mixed(made * _STEP + _array(field))
    return made


def _others(array: pa.Array) -> Hashes:
    """Lists, maps and intervals, value by value."""
    values = with_sorted_maps(array)
    found = (blake2b(repr(_plain(v)).encode(), digest_size=8).digest() for v in values)
    return np.frombuffer(b"".join(found), np.uint64).copy()


def with_sorted_maps(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of an array; the entries of every map are in one order, which Spark changes."""
    values: list[Any] = array.to_pylist()
    return [_sorted(v, array.type) for v in values] if _has_map(array.type) else values


def _sorted(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        entries = [(key, _sorted(item, kind.item_type)) for key, item in value]
        return sorted(entries, key=lambda entry: repr(entry[0]))
    if pa.types.is_struct(kind):
        return {field.name: _sorted(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_sorted(item, kind.value_type) for item in value]
    return value


def _has_map(kind: pa.DataType) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_map(kind) or any(map(_has_map, inner))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    return value


def _mixed(values: Hashes) -> Hashes:
    """Spread every bit over all of them."""
    values = (values ^ (values >> _SHIFT)) * _MIX[0]
    values = (values ^ (values >> _SHIFT)) * _MIX[1]
    return values ^ (values >> _SHIFT)
