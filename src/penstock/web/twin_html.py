"""A twin as plain HTML, for browsers without JavaScript and for readers of the source.

An object is a list of its members, a list of objects a table, everything else text. Nothing of the
data is markup.

>>> html_of({"rung": "steady", "bands": [{"band": "B0", "depth": 0}]})
'<dl><dt>rung</dt><dd>steady</dd><dt>bands</dt><dd><table><thead><tr><th scope="col">band</th>\
<th scope="col">depth</th></tr></thead><tbody><tr><td>B0</td><td>0</td></tr></tbody></table></dd>\
</dl>'
>>> html_of("<img src=x onerror=1>")
'&lt;img src=x onerror=1&gt;'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

UNKNOWN: Final = "–"
ROWS_MAX: Final = 200
"""Rows of a table, and items of a list, that are shown; the rest is counted."""
VALUES_MAX: Final = 10
"""Values of a plain list that are shown: the last ones, for lists are mostly columns over time."""
DEPTH_MAX: Final = 6
_encode: Final = msgspec.json.Encoder().encode


def sections_html(sections: Mapping[str, Any]) -> str:
    """The sections of a twin, each under its heading."""
    return "".join(
        f'<section aria-label="{escape(name)}"><h2>{escape(name)}</h2>{html_of(value)}</section>'
        for name, value in sections.items()
    )


def html_of(value: Any, depth: int = 0) -> str:
    """Any JSON value as HTML."""
    if depth > DEPTH_MAX:
        return escape(_encode(value).decode())
    if isinstance(value, Mapping):
        return _members(value, depth)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _list(value, depth)
    return escape(_text(value))


def _text(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _members(value: Mapping[str, Any], depth: int) -> str:
    if not value:
        return UNKNOWN
    rows = (
        f"<dt>{escape(str(name))}</dt><dd>{_member(name, each, depth)}</dd>"
        for name, each in value.items()
    )
    return f"<dl>{''.join(rows)}</dl>"


def _member(name: str, value: Any, depth: int) -> str:
    """A member; one that is called `link` leads to another page."""
    if name == "link" and isinstance(value, str) and is_own_path(value):
        return f'<a href="{escape(value)}">{escape(value)}</a>'
    return html_of(value, depth + 1)


def is_own_path(text: str) -> bool:
    """Whether a text is the address of a page of this server, and of no other.

    >>> is_own_path("/topics/a"), is_own_path("//evil.example"), is_own_path("javascript:alert()")
    (True, False, False)
    """
    return text.startswith("/") and not text.startswith(("//", "/\\"))


def _list(value: Sequence[Any], depth: int) -> str:
    if not value:
        return UNKNOWN
    if all(isinstance(each, Mapping) for each in value):
        return _table(value, depth)
    if not any(isinstance(each, Mapping | list) for each in value):
        told = ", ".join(_text(each) for each in value[-VALUES_MAX:])
        return escape(f"… {told}" if len(value) > VALUES_MAX else told)
    items = "".join(f"<li>{html_of(each, depth + 1)}</li>" for each in value[:ROWS_MAX])
    return f"<ol>{items}</ol>{_rest(value)}"


def _table(rows: Sequence[Mapping[str, Any]], depth: int) -> str:
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_member(name, row.get(name), depth)}</td>' for name in names)}</tr>"
        for row in rows[:ROWS_MAX]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{_rest(rows)}"


def _rest(rows: Sequence[Any]) -> str:
    left = len(rows) - ROWS_MAX
    return f"<p>and {left} more</p>" if left > 0 else ""
