"""Scripted tests: commands and expected answers in a text file that a flag rewrites.

A script is a list of steps. A step is one or more command lines, a line `----`, and the expected
answer up to a blank line. Lines that begin with `#` are comments::

# marking twice keeps the place
    mark a band=1
    mark a band=1
    ----
    marked
    waiting already

Set PENSTOCK_REWRITE=1 to write the actual answers into the file; review the diff before committing
it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REWRITE_VARIABLE = "PENSTOCK_REWRITE"


@dataclass(frozen=True, slots=True)
class Command:
    """One line: a verb, plain words, and options written `name=value`."""

    verb: str
    words: tuple[str, ...]
    options: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> Command:
        """Parse a line, split as in a shell."""
        verb, *rest = shlex.split(line)
        pairs = [word.partition("=") for word in rest if "=" in word]
        return cls(
            verb,
            tuple(word for word in rest if "=" not in word),
            {name: value for name, _, value in pairs},
        )

    def number(self, name: str, default: int | None = None) -> int:
        """An option as an integer."""
        if name not in self.options and default is None:
            raise ValueError(f"{self.verb!r} needs {name}=…; it has {self.options}")
        return int(self.options.get(name, default or 0))


@dataclass(frozen=True, slots=True)
class Step:
    """Commands, their expected answers, and the comment above them."""

    comment: tuple[str, ...]
    commands: tuple[str, ...]
    expected: str


class ScriptMismatch(AssertionError):
    """A step of a script gave an unexpected answer."""


def run_script(path: Path, answer: Callable[[Command], str]) -> int:
    """Run every step of a script through `answer`; return the number of steps.

    A command that raises answers with the error's type and text. Under PENSTOCK_REWRITE the file is
    rewritten instead of compared.
    """
    steps = parse_script(path.read_text())
    if not steps:
        raise ValueError(f"{path} has no steps")
    given = [
        "\n".join(_answer(answer, line) for line in step.commands).strip("\n") for step in steps
    ]
    if os.environ.get(REWRITE_VARIABLE):
        path.write_text(render_script(steps, given))
        return len(steps)
    for step, found in zip(steps, given, strict=True):
        if found != step.expected:
            raise ScriptMismatch(
                f"{path.name}: after\n  "
                + "\n  ".join(step.commands)
                + f"\nexpected\n{step.expected}\nfound\n{found}\n"
                f"(run with {REWRITE_VARIABLE}=1 to take the new answers)"
            )
    return len(steps)


def parse_script(text: str) -> list[Step]:
    """Split a script into steps."""
    steps = []
    for block in text.split("\n\n"):
        lines = block.strip("\n").split("\n")
        comment = tuple(line for line in lines if line.startswith("#"))
        body = [line for line in lines if not line.startswith("#") and line.strip()]
        if not body:
            continue
        if "----" not in body:
            raise ValueError(f"a line ---- must follow the commands: {body}")
        cut = body.index("----")
        steps.append(Step(comment, tuple(body[:cut]), "\n".join(body[cut + 1 :])))
    return steps


def render_script(steps: list[Step], answers: list[str]) -> str:
    """The script with these answers."""
    blocks = [
        "\n".join((*step.comment, *step.commands, "----", answer)).rstrip("\n")
        for step, answer in zip(steps, answers, strict=True)
    ]
    return "\n\n".join(blocks) + "\n"


def _answer(answer: Callable[[Command], str], line: str) -> str:
    try:
        return answer(Command.parse(line))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
