"""Follow a page as a reader would: its commands and programs in order, against its own server.

`penstock serve` stays in the background until the end of the page. It listens on a free port, and
`http://127.0.0.1:4000`, which pages say, stands for wherever it does. `penstock topic follow` is
ended by Ctrl-C once it has shown what the page shows. A command that ends with `&` stays in the
background too; the next comes when it has shown what the page shows. Where a page shows output, it
must come so; the times in it are of the reader's clock, so any will do. A `toml` block that begins
with `# name` is a file of that name.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from tests.docs.terminal import COLUMNS, Terminal
from tools import markdown

ADDRESS = "http://127.0.0.1:4000"
LIMIT_S = 300.0
SERVE = re.compile(r"^(\w+=\S+ )*penstock serve\b(?!.*--help)")
BACKGROUND = re.compile(r"^(.+?)\s*&$")
EXPORT = re.compile(r"^export (\w+=.*)$")
FILE = re.compile(r"# (\S+\.toml)\n")
FOLLOW = re.compile(r"^penstock topic follow\b")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")
HIDDEN = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VIRTUAL_ENV", "PYTHONPATH", "JAVA_HOME")
INSTEAD = {
    "make demo": "make demo DEMO_ARGS=--help",  # showing it takes minutes, and is a test of its own
    "make test": "make -n test checks",  # these tests are part of it
    "make bench": "make -n bench",  # takes as long as measuring takes
}
"""What is run instead of a command that would not end soon."""


class Step(NamedTuple):
    """A command with the output the page shows, or a program; `line` is where it stands."""

    line: int
    kind: str
    text: str
    shown: str = ""


def steps(page: Path) -> list[Step]:
    """What a page asks its reader to do, in order."""
    found = [
        step for line, text in markdown.blocks(page, "console") for step in commands(line, text)
    ]
    for line, text in markdown.blocks(page, "python"):
        if ADDRESS in text:
            found.append(Step(line, "example" if ">>>" in text else "program", text))
    for line, text in markdown.blocks(page, "toml"):
        if FILE.match(text):
            found.append(Step(line, "file", text))
    return sorted(found)


def commands(line: int, text: str) -> Iterator[Step]:
    """The commands of a console block, each with the lines that follow it."""
    for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
        if part.startswith("$ "):
            command, _, shown = part.replace("\\\n", "").removeprefix("$ ").partition("\n")
            yield Step(line, "command", command.partition("  #")[0].strip(), shown)
        line += part.count("\n")


class Story:
    """A reader in a directory, with programs on the path, and perhaps a server.

    `instead` are words of the page that stand for others here, such as ports that are free, and
    `environ` are variables that the reader need not have.
    """

    def __init__(
        self,
        directory: Path,
        programs: Path,
        instead: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._instead = dict(instead or {})
        self._background: list[Terminal] = []
        self._url = ADDRESS
        self._server: Terminal | None = None
        kept = {
            name: text
            for name, text in os.environ.items()
            if name not in HIDDEN and not name.startswith("PENSTOCK_")
        }
        path = f"{programs}:{kept['PATH']}"
        self._environ = kept | {"PATH": path, "TERM": "dumb", "COLUMNS": str(COLUMNS)}
        self._environ |= environ or {}

    def do(self, step: Step) -> None:
        """Do one step; what is not as the page says fails."""
        text = self._here(step.text).replace(ADDRESS, self._url)
        step = step._replace(shown=self._here(step.shown))
        match step.kind:
            case "file":
                name = FILE.match(text)
                assert name is not None
                (self._directory / name[1]).write_text(text)
            case "example":
                self._check(step, text)
            case "program":
                exec(compile(text, "page", "exec"), {"__name__": "__main__"})
            case _ if found := EXPORT.match(text):
                name, _, value = shlex.split(found[1])[0].partition("=")
                self._environ[name] = value
            case _ if found := BACKGROUND.match(text):
                self._start(step, found[1])
            case _ if SERVE.match(text):
                self._serve(text)
            case _ if FOLLOW.match(text):
                self._follow(step, text)
            case _:
                self._run(step, text)

    def close(self) -> None:
        """End everything that was started."""
        self._end_server()
        for terminal in reversed(self._background):
            terminal.close()
        self._background.clear()

    def _here(self, text: str) -> str:
        for word, other in self._instead.items():
            text = text.replace(word, other)
        return text

    def _start(self, step: Step, command: str) -> None:
        terminal = Terminal(f"exec env {command}", self._directory, self._environ)
        self._background.append(terminal)
        came = terminal.read_until(lambda said: is_as_shown(step.shown, said), LIMIT_S)
        assert came, f"{command}\n{terminal.output}"
        assert terminal.process.poll() is None, f"{command} ended\n{terminal.output}"
        threading.Thread(target=terminal.drain, daemon=True).start()

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.press_ctrl_c()
            status = self._server.wait(30)
            self._server.close()
            self._server = None
            assert status == 0, "the server ended in good order"

    def _run(self, step: Step, command: str) -> None:
        terminal = Terminal(INSTEAD.get(command, command), self._directory, self._environ)
        status = terminal.wait(LIMIT_S)
        terminal.close()
        assert status == 0, f"{command}\n{terminal.output}"
        if step.shown:
            assert is_as_shown(step.shown, terminal.output), f"{command}\n{terminal.output}"

    def _serve(self, command: str) -> None:
        self._end_server()
        port_file = self._directory / "port-of-the-story"
        port_file.unlink(missing_ok=True)
        own = {"PENSTOCK_PORT": "0", "PENSTOCK_PORT_FILE": str(port_file)}
        self._server = Terminal(f"exec env {command}", self._directory, self._environ | own)
        until(port_file.exists, self._server)
        self._url = f"http://{port_file.read_text().strip()}"
        self._environ["PENSTOCK_URL"] = self._url
        until(lambda: answers(f"{self._url}/readyz"), self._server)

    def _follow(self, step: Step, command: str) -> None:
        terminal = Terminal(f"exec {command}", self._directory, self._environ)
        try:
            assert terminal.read_until(lambda said: is_as_shown(step.shown, said), 30), (
                f"{command}\n{terminal.output}"
            )
            terminal.press_ctrl_c()
            assert terminal.wait(30) == 0, terminal.output
        finally:
            terminal.close()

    def _check(self, step: Step, text: str) -> None:
        test = doctest.DocTestParser().get_doctest(text, {}, "page", "page", step.line - 1)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        assert runner.run(test).failed == 0


def is_as_shown(shown: str, said: str) -> bool:
    """Whether output is what a page shows of it, but for times and blanks; `...` is anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(
        TIME.sub("TIME", shown), TIME.sub("TIME", said), flags
    )


def until(is_so, server: Terminal) -> None:
    """Wait for something of a server that runs."""
    deadline_s = time.monotonic() + 60
    while not is_so():
        server.read_until(lambda _: False, 0.05)
        assert server.process.poll() is None, f"the server ended:\n{server.output}"
        assert time.monotonic() < deadline_s, f"no server:\n{server.output}"


def answers(url: str) -> bool:
    """Whether a server says yes."""
    try:
        with urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (URLError, ConnectionError, TimeoutError):
        return False
