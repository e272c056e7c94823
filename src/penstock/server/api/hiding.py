"""Errors without the server's paths: a client has no use for them, and they tell of the machine.

>>> hide = Hiding({"the data directory": ["/srv/data", "data"]})
>>> hide("no space left for /srv/data/log: [Errno 28] in '/srv/data/log/1.seg'", 500)
"no space left for the data directory: [Errno 28] in 'the data directory'"
>>> hide("cannot read /etc/shadow", 500), hide("expected a known path, found /v0/a/b", 404)
('cannot read a file of the server', 'expected a known path, found /v0/a/b')
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.server.api.errors import describe, error_answer
from penstock.server.http.message import Answer

_BELOW: Final = r"/[^\s'\",;:)\]]*"
_ANY_PATH: Final = re.compile(r"(?<![\w:/.])/[\w.@+-]+(?:/[\w.@+-]*)+")
"""An absolute path of at least two parts: an error of the server's own says no others."""


class Hiding:
    """Puts words in the place of the server's directories in the texts of errors."""

    def __init__(self, places: Mapping[str, Iterable[str]] | None = None) -> None:
        words = {
            root.rstrip("/"): word
            for word, roots in (places or {}).items()
            for root in roots
            if len(root.rstrip("/")) > 1
        }
        # The longest first: one directory may be in another.
        self._words = dict(sorted(words.items(), key=lambda each: -len(each[0])))
        # A name alone, such as `data`, may be any word; what is below it is not.
        known = [
            re.escape(root) + (f"(?:{_BELOW})?(?![\\w.-])" if "/" in root else _BELOW)
            for root in self._words
        ]
        self._known = re.compile(rf"(?<![\w./-])(?:{'|'.join(known)})") if known else None

    def __call__(self, text: str, status: int) -> str:
        """A text as a client may see it. Whatever path is in one of the server's own is hidden."""
        if self._known is not None:
            text = self._known.sub(self._word, text)
        return _ANY_PATH.sub("a file of the server", text) if status >= 500 else text

    def _word(self, found: re.Match[str]) -> str:
        return next(word for root, word in self._words.items() if found[0].startswith(root))

    def answer(self, error: Exception) -> Answer:
        """The answer that tells a client of an error."""
        return error_answer(error, self)

    def text(self, error: Exception) -> str:
        """An error's text, for where there is no status."""
        status, _, message, _ = describe(error)
        return self(message, max(status, 500))
