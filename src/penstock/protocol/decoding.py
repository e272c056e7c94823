"""Decoding the body of a request to its struct; what is wrong with it is said in one place.

>>> from penstock.protocol.requests import DiffBody
>>> decode(DiffBody, b'{"from_seq":7,"unknown":1e999}').from_seq
7
>>> decode(DiffBody, b'{"from_seq":-1}')
Traceback (most recent call last):
...
penstock.protocol.errors.InvalidRequest: from_seq must be at least 0, not -1
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.values import U64_MAX

S = TypeVar("S", bound=Struct)

_ANY: Final = msgspec.json.Decoder(float_hook=float)
"""Reads numbers too large for a float as infinite."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{20}")
"""An integer with fewer digits fits 64 bits."""
_SHOWN_MAX: Final = 100

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_BOUND: Final = re.compile(r"Expected `[^`]+` (>=|<=) (\S+)")
_LENGTH: Final = re.compile(r"Expected `([^`]+)` of length (>=|<=) (\d+)")
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_LEAST_OR_MOST: Final = {">=": "at least", "<=": "at most"}


def decode(kind: type[S], body: bytes) -> S:
    """The struct in a JSON body, or `InvalidRequest` that names the field."""
    try:
        found: S = _decoder(kind).decode(body)
        if not body.isascii():
            body.decode()  # the parser does not check the contents of strings
    except msgspec.ValidationError as error:
        raise InvalidRequest(_explained(kind, body, str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if _LONG_NUMBER.search(body) is not None:
        _check_numbers(found)
    return found


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, for requests that change only the keys they name.

    A number that is too large becomes infinite: whatever reads it refuses it, and in an unknown
    field it does no harm.
    """
    try:
        found = _ANY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the body must be an object")
    return found


@cache
def _decoder(kind: type[S]) -> msgspec.json.Decoder[S]:
    return msgspec.json.Decoder(kind)


def _check_numbers(found: Struct) -> None:
    """Refuse integers beyond 64 bits, for which the decoder has no bound."""
    for name in found.__struct_fields__:
        value = getattr(found, name)
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, int) and each > U64_MAX:
                raise InvalidRequest(f"{name} must be at most {U64_MAX}, not {each}")
        for each in value.values() if isinstance(value, dict) else ():
            if isinstance(each, Struct):
                _check_numbers(each)


def _explained(kind: type[Struct], body: bytes, error: str) -> str:
    """What the decoder found wrong, in the words of the protocol."""
    text, _, place = error.partition(" - at `")
    place = place.removesuffix("`").removeprefix("$").removeprefix(".")
    where = place or "the body"
    if missing := _MISSING.fullmatch(text):
        return f"{f'{place}.' if place else ''}{missing[1]} is missing"
    if unknown := _UNKNOWN.fullmatch(text):
        return _not_a_field(kind, unknown[1])
    value = _shown(body, place)
    if wrong := _TYPE.fullmatch(text):
        wanted = " or ".join(_KINDS.get(each, each) for each in wrong[1].split(" | "))
        return f"{where} must be {wanted}, not {value or _KINDS.get(wrong[2], wrong[2])}"
    if bound := _BOUND.fullmatch(text):
        found = f", not {value}" if value else ""
        return f"{where} must be {_LEAST_OR_MOST[bound[1]]} {bound[2]}{found}"
    if length := _LENGTH.fullmatch(text):
        if length.group(2, 3) == (">=", "1"):
            return f"{where} must not be empty"
        unit = "characters" if length[1] == "str" else "items"
        return f"{where} must have {_LEAST_OR_MOST[length[2]]} {length[3]} {unit}"
    if text.startswith("Invalid enum value") and (choices := _choices(kind, place)):
        return f"{where} must be one of {', '.join(choices)}, not {value}"
    return f"{where} is not valid: {text[:1].lower()}{text[1:]}"


def _not_a_field(kind: type[Struct], name: str) -> str:
    known = sorted(kind.__struct_encode_fields__)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(known)}"
    return f"{name[:_SHOWN_MAX]!r} is not a field of this request: {hint}"


def _choices(kind: type[Struct], place: str) -> list[str]:
    """The values of an enumeration among the struct's own fields."""
    for field in msgspec.structs.fields(kind):
        if field.encode_name == place:
            shape = msgspec.json.schema(field.type)
            return [*shape.get("enum", ()), *_either(shape)]
    return []


def _either(shape: dict[str, Any]) -> list[str]:
    return [each for either in shape.get("anyOf", ()) for each in either.get("enum", ())]


def _shown(body: bytes, place: str) -> str:
    """The value at a place in a body, as JSON; nothing where the place is not exactly known."""
    if not place or "[...]" in place:
        return ""
    try:
        value = _ANY.decode(body)
        for name, index in _STEP.findall(f".{place}"):
            value = value[int(index)] if index else value[name]
        shown = msgspec.json.encode(value).decode()
    except (msgspec.DecodeError, LookupError, RecursionError):
        return ""  # the text of the error has to do
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"
