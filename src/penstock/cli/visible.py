"""Text of others on a terminal: what would move the cursor or colour the screen is spelt out.

>>> print(visible("a\\x1b[2Jb\\u202ec"))
a\\u001b[2Jb\\u202ec
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of what follows."""


def visible(text: str) -> str:
    """Text as it may be shown, on one line."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
