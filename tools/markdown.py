"""Read Markdown pages: fenced blocks, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def pages(root: Path) -> list[Path]:
    """The Markdown pages of a checkout: those at its top and all of docs/."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """Each fenced block of a language, with the line of its first line of code."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match[1] == language:
            yield text.count("\n", 0, match.start(2)) + 1, match[2]


def links(page: Path) -> list[str]:
    """Where a page points to, outside code."""
    return LINK.findall(FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """What a link may name after `#`: the page's headings, as code hosts spell them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
