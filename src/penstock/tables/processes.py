"""Process names that show whether the process is still running.

A name holds the machine, the process id and its start time, so that a later process with the same
id is not mistaken for it.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

from penstock.kernel.errors import Rejected


@cache
def host() -> str:
    """This machine's name, without the characters that separate fields of a name."""
    return socket.gethostname().replace("/", "_").replace("#", "_")


def process_name(pid: int | None = None) -> str:
    """The name of a process on this machine; by default this one."""
    number = os.getpid() if pid is None else pid
    return f"{host()}/{number}-{_began(number) or 0}"


def is_here(name: str) -> bool:
    """Whether a process belongs to this machine, so that `is_alive` can tell."""
    return name.partition("/")[0] == host()


def is_alive(name: str) -> bool:
    """Whether a process of this machine is running. Ignores a `#` suffix."""
    pid, began = _parts(name)
    found = _began(pid)
    return found is not None and (found == began or not began)


def pid_of(name: str) -> int:
    """The process id in a name."""
    return _parts(name)[0]


def _parts(name: str) -> tuple[int, int]:
    pid, _, began = name.partition("#")[0].partition("/")[2].partition("-")
    if not (pid.isdecimal() and began.isdecimal()):
        raise Rejected(f"{name!r} is not a process name such as 'host/17-4711'")
    return int(pid), int(began)


def _began(pid: int) -> int | None:
    """The start time of a process in kernel ticks; 0 if not available, None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _signalled(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _signalled(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
