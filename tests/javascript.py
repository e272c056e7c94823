"""Pure modules of the dashboard, run by V8 from PyPI: no Node and no browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from py_mini_racer import MiniRacer

import penstock.web

STATIC: Final = Path(penstock.web.__file__).parent / "static"
_IMPORT: Final = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT: Final = re.compile(r"^export (?=const|let|function|async|class)", re.MULTILINE)
_NAMES: Final = re.compile(r"export\s*\{([^}]*)\};?")


class Modules:
    """Modules in one scope, in the order given; what they export is called by name."""

    def __init__(self, *paths: str) -> None:
        self._v8 = MiniRacer()
        # Of browsers, not of the language; dagre clones plain values only.
        self._v8.eval("globalThis.structuredClone = (value) => JSON.parse(JSON.stringify(value))")
        for path in paths:
            self._v8.eval(self._script((STATIC / path).read_text()))

    @staticmethod
    def _script(text: str) -> str:
        """A module as a script: mini-racer has no loader, and pure modules import little."""
        text = _EXPORT.sub("", _IMPORT.sub("", text))

        def names(match: re.Match[str]) -> str:
            pairs = [part.split(" as ") for part in match[1].split(",")]
            return "".join(
                f"globalThis[{json.dumps(name[-1].strip())}] = {name[0].strip()};" for name in pairs
            )

        return _NAMES.sub(names, text)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function with JSON values; returns what it returned, as JSON."""
        given = json.dumps(arguments)
        return json.loads(
            self._v8.eval(f"JSON.stringify({name}(...JSON.parse({json.dumps(given)})) ?? null)")
        )

    def value(self, expression: str) -> Any:
        """The value of an expression, as JSON."""
        return json.loads(self._v8.eval(f"JSON.stringify({expression})"))

    def run(self, script: str) -> None:
        """Run a script in the scope of the modules."""
        self._v8.eval(script)

    def function(self, name: str) -> Callable[..., Any]:
        """A function as one of Python's."""
        return lambda *arguments: self.call(name, *arguments)
