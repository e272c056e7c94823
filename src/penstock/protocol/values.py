"""Single values of requests: their types, and checks that say what a value must be.

The types carry what JSON Schema says of a value; `check` holds a value against such a schema.

>>> check("ttl_ms", 5, {"type": "integer", "minimum": 0})
5
>>> check("mode", "fast", {"enum": ["slow", "steady"]})
Traceback (most recent call last):
...
penstock.protocol.errors.InvalidRequest: mode must be one of slow, steady, not 'fast'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import Meta

from penstock.protocol.errors import InvalidRequest

Schema = Mapping[str, Any]

U64_MAX: Final = 2**64 - 1
U32_MAX: Final = 2**32 - 1

U64 = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
"""An integer that fits 64 bits. msgspec has no upper bound this large, hence the extra."""
U32 = Annotated[int, Meta(ge=0, le=U32_MAX)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]

TOPIC_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
ROUTER_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"
TopicName = Annotated[str, Meta(extra_json_schema={"pattern": TOPIC_NAME})]
_TOPIC_NAME: Final = re.compile(TOPIC_NAME.strip("^$"))
_ROUTER_NAME: Final = re.compile(ROUTER_NAME.strip("^$"))


RESERVED_PREFIX: Final = "penstock."
"""Topics with such names are the server's own: their records count in no total of the node."""


def is_reserved(name: str) -> bool:
    """Whether a topic belongs to the server itself."""
    return name.startswith(RESERVED_PREFIX)


def check_topic_name(name: object) -> str:
    """A valid name for a new topic, or `InvalidRequest`."""
    if not isinstance(name, str) or _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidRequest(f"{name!r} cannot name a topic: use 1 to 255 of A-Z a-z 0-9 . _ : -")
    return name


def begins(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a name begins with a prefix; those of the server itself only if one asks for them.

    >>> begins("penstock.events", ("p",)), begins("penstock.events", ("p", "penstock."))
    (False, True)
    """
    if is_reserved(name):
        prefixes = tuple(prefix for prefix in prefixes if is_reserved(prefix))
    return name.startswith(prefixes)


def check_router_name(name: str) -> str:
    """A valid name for a new router, or `InvalidRequest`."""
    if _ROUTER_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} cannot name a router: use 1 to 255 of A-Z a-z 0-9 . _ : > -"
        )
    return name


def check_text(what: str, text: str, bytes_max: int) -> None:
    """Refuse a text that is too long in UTF-8, or cannot be encoded."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} has half a character (a lone surrogate): {text!a}") from None
    if size_bytes > bytes_max:
        raise InvalidRequest(f"{what} must have at most {bytes_max} bytes, not {size_bytes}")


def parse_bool(key: str, value: Any) -> bool:
    """A JSON boolean, or `InvalidRequest`."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{key} must be true or false, not {value!r}")
    return value


def parse_choice(key: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of the given choices, or `InvalidRequest`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(f"{key} must be one of {', '.join(choices)}, not {value!r}")
    return value


def check(key: str, value: Any, shape: Schema) -> Any:
    """A value that fits the schema, or `InvalidRequest`; a subset of JSON Schema."""
    if "enum" in shape:
        return parse_choice(key, value, tuple(shape["enum"]))
    either = [each for each in shape.get("anyOf", ()) if each != {"type": "null"}]
    if either:
        return None if value is None else check(key, value, {**either[0], "null": True})
    or_null = " or null" if "null" in shape else ""
    match shape["type"]:
        case "boolean":
            return parse_bool(key, value)
        case "integer":
            least, most = shape.get("minimum", 0), shape.get("maximum", U64_MAX)
            if type(value) is int and least <= value <= most:
                return value
            from_0 = " from 0 on" if least == 0 else ""
            text = f"{key} must be a whole number{from_0}{or_null}, not {value!r}"
            raise InvalidRequest(text)
        case "string":
            if not isinstance(value, str):
                raise InvalidRequest(f"{key} must be a string{or_null}, not {value!r}")
            if "pattern" in shape and not _pattern(shape["pattern"]).match(value):
                text = f"{key} must be a valid name{or_null}, not {value!r}"
                raise InvalidRequest.told(text, {key: value})
    return value


@lru_cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.removesuffix("$") + r"\Z")  # `$` would accept a trailing newline
