"""Predicates on a record's tag: which records a delete removes or a router forwards.

>>> parse_predicate("chat-42:*")
Predicate(text='chat-42:', prefix=True)
>>> [parse_predicate("chat-42:*").matches(tag) for tag in ("chat-42:a", "chat-420:a", None)]
[True, False, False]
>>> parse_predicate(["tag", "Eq", "a*"]).serialised()
['tag', 'Eq', 'a*']
"""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.protocol.errors import InvalidRequest


class Predicate(NamedTuple):
    """A tag equals a text, or begins with it. A record without a tag never matches."""

    text: str
    prefix: bool

    def matches(self, tag: str | None) -> bool:
        """Whether a record with this tag matches."""
        if tag is None:
            return False
        return tag.startswith(self.text) if self.prefix else tag == self.text

    def serialised(self) -> list[str]:
        """The three-part form, which `parse_predicate` parses to an equal predicate."""
        return ["tag", "Glob", f"{self.text}*"] if self.prefix else ["tag", "Eq", self.text]


def parse_predicate(value: Any) -> Predicate:
    """Parse `["tag", "Eq", v]`, `["tag", "Glob", "p*"]`, or a plain string for either."""
    match value:
        case str():
            return _glob(value) if value.endswith("*") else _literal(value)
        case ["tag", "Eq", str() as text]:
            return Predicate(text, prefix=False)
        case ["tag", "Glob", str() as text]:
            return _glob(text)
    raise InvalidRequest(
        f"malformed predicate {value!r}: "
        'give one such as ["tag","Eq","a"], ["tag","Glob","a*"] or "a*"'
    )


def _glob(text: str) -> Predicate:
    if not text or text.find("*") != len(text) - 1:
        raise InvalidRequest(f"malformed pattern {text!r}: * is allowed once, at the end")
    return Predicate(text[:-1], prefix=True)


def _literal(text: str) -> Predicate:
    if "*" in text:
        raise InvalidRequest(f"malformed pattern {text!r}: * is allowed once, at the end")
    return Predicate(text, prefix=False)
