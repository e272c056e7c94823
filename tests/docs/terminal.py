"""Run a command as a person at a terminal would, and end it by Ctrl-C where that is how."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LINES, COLUMNS = 40, 100


class Terminal:
    """One command on a terminal of its own."""

    def __init__(self, command: str, directory: Path, environ: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._said = b""
        self.process = subprocess.Popen(
            ["bash", "-c", command], cwd=directory, env=environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)

    @property
    def output(self) -> str:
        """What was shown until now, without colours."""
        return ANSI.sub("", self._said.decode(errors="replace")).replace("\r\n", "\n")

    def read_until(self, is_enough: Callable[[str], bool], limit_s: float) -> bool:
        """Read until the output is enough or the command ends; False if time is over."""
        deadline_s = time.monotonic() + limit_s
        while not is_enough(self.output):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            if select.select([self._ours], [], [], left_s)[0] and not self._read():
                return True
        return True

    def drain(self) -> None:
        """Read to the end, for a thread: a terminal that nobody reads holds its command up."""
        with suppress(OSError):  # closed meanwhile
            while self._read():
                pass

    def wait(self, limit_s: float) -> int:
        """Read to the end; the command's exit status."""
        if not self.read_until(lambda _: False, limit_s):
            self.close()
            raise TimeoutError(f"still running after {limit_s} s:\n{self.output}")
        return self.process.wait(limit_s)

    def press_ctrl_c(self) -> None:
        """What the key does: SIGINT to everything on the terminal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        """See that nothing is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def _read(self) -> bool:
        try:
            found = os.read(self._ours, 65_536)
        except OSError:  # the last process on the terminal is gone
            return False
        self._said += found
        return bool(found)
