"""A request's target, taken apart: path and query.

>>> split_target(b"/v0/topics/a%3Ab?limit=1")
('/v0/topics/a:b', 'limit=1')
>>> split_target(b"/v0/topics/%ff")
('/v0/topics/%ff', '')
>>> split_target(b"http://example.org?limit=1")
('/', 'limit=1')
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from penstock.protocol.errors import InvalidRequest

_PLAIN: Final = re.compile(rb"(/[A-Za-z0-9._~:@/-]*)(?:\?([!-\"$-~]*))?")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SLASH: Final = re.compile(rb"%2f", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)


def split_target(target: bytes) -> tuple[str, str]:
    """The decoded path and the raw query of an origin-form, absolute-form or `*` target."""
    plain = _PLAIN.fullmatch(target)
    if plain is not None:
        return plain[1].decode(), (plain[2] or b"").decode()
    if b"#" in target:
        raise InvalidRequest("expected a target without a fragment, found '#'")
    path, _, query = _origin_form(target).partition(b"?")
    return _decode_path(path), _decode(query, "query")


def target_authority(target: bytes) -> bytes:
    """The host and port of an absolute-form target; nothing of any other.

    >>> target_authority(b"http://example.org:80/v0"), target_authority(b"/v0")
    (b'example.org:80', b'')
    """
    absolute = _ABSOLUTE.match(target)
    return absolute[1] if absolute is not None else b""


def _origin_form(target: bytes) -> bytes:
    if target.startswith(b"/") or target == b"*":
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        raise InvalidRequest("expected a target such as /v0/topics, found neither a path nor a URL")
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _decode_path(path: bytes) -> str:
    """A path without its escapes; as it came, if they stand for nothing.

    Nothing is named so, and whoever is asked for it says that in its own way.
    """
    raw = _decode(path, "path")
    if "%" not in raw or _BAD_ESCAPE.search(path):
        return raw
    # An escaped slash stays escaped: it is part of a name, not the end of one.
    try:
        return unquote_to_bytes(_SLASH.sub(b"%252F", path)).decode()
    except UnicodeDecodeError:
        return raw


def _decode(text: bytes, what: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"expected the {what} in UTF-8") from None
