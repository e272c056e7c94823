from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.kernel.errors import Rejected
from penstock.tables import processes


def test_a_process_is_alive_until_it_ends_and_nobody_else_is_taken_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = processes.process_name(process.pid)
        assert processes.is_here(name)
        assert processes.is_alive(name)
        assert processes.is_alive(f"{name}#3@somewhere")
        assert processes.pid_of(name) == process.pid
        earlier = f"{processes.host()}/{process.pid}-1"
        assert not processes.is_alive(earlier), "the same id at another time is another process"
        process.kill()
        process.wait()
        assert not processes.is_alive(name)


def test_a_process_of_another_machine_is_not_judged_here() -> None:
    assert not processes.is_here("elsewhere/1-1")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(Rejected, match="'nobody' is not a process name"):
        processes.is_alive("nobody")
