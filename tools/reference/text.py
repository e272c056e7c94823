"""Docstrings as Markdown: prose as it is, examples and indented blocks as code."""

from __future__ import annotations

from itertools import groupby


def markdown(docstring: str | None) -> list[str]:
    """The lines of a docstring as Markdown, with an empty line at the end; [] if there is none."""
    if not docstring:
        return []
    lines: list[str] = []
    for is_code, block in groupby(paragraphs(docstring), key=looks_like_code):
        if is_code:
            text = "\n\n".join("\n".join(paragraph) for paragraph in block)
            language = "python" if ">>>" in text else "text"
            lines += [f"```{language}", *text.split("\n"), "```", ""]
        else:
            for paragraph in block:
                *above, last = paragraph
                lines += [*above, last[:-1] if last.endswith("::") else last, ""]
    return lines


def paragraphs(text: str) -> list[list[str]]:
    """Runs of lines between empty ones."""
    runs = groupby(text.splitlines(), key=lambda line: bool(line.strip()))
    return [list(lines) for filled, lines in runs if filled]


def looks_like_code(paragraph: list[str]) -> bool:
    """Whether a paragraph is an example or set off by indentation."""
    first = paragraph[0]
    return first.lstrip().startswith(">>>") or first.startswith("    ")
