"""A process that has loaded everything a worker needs, and forks workers that are ready at once.

Loading an engine's packages can take seconds. The nursery does it once, has no threads and opens
nothing, and so can be forked safely. It ends when its coordinator does; workers that it forked stay
with their own sockets.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from penstock.kernel.errors import Unavailable
from penstock.tables.shell.refresher import Factory

_MESSAGE_BYTES: Final = 1 << 16
_PATIENCE_S: Final = 120
_PROGRAM: Final = "import sys; from penstock.tables.shell.nursery import main; main(*sys.argv[1:])"


class NurseryLost(Unavailable):
    """The process that makes workers is gone, or does not answer."""

    code = "nursery_lost"


class Nursery:
    """A coordinator's end: asks for workers. For one thread."""

    def __init__(self, runner: Factory) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(_PATIENCE_S)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), runner.name],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an engine prints is no answer of ours
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The nursery's own process id."""
        return self._process.pid

    def fork(self, theirs: socket.socket) -> int:
        """A new worker at the other end of a socket; returns its process id."""
        try:
            socket.send_fds(self._line, [b"fork"], [theirs.fileno()])
            answer = self._line.recv(_MESSAGE_BYTES)
        except OSError as error:
            raise NurseryLost(f"expected a worker, found: {error}") from error
        if not answer:
            raise NurseryLost("expected a worker, found that the process that makes them is gone")
        return int(json.loads(answer)["pid"])

    def close(self) -> None:
        """End it; workers stay."""
        self._line.close()
        self._process.kill()
        self._process.wait()


def main(number: str, runner: str) -> None:
    """Fork workers for whoever holds the other end of a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets workers that end
    line = socket.socket(fileno=int(number))
    from penstock.tables.shell import worker

    with suppress(Exception):  # each worker will find out by itself, and say so
        preload = Factory(runner).beside("preload")
        if preload is not None:
            preload()
    while True:
        fds: list[int] = []
        with suppress(OSError):  # a line that broke is a line that ended
            _, fds, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 1)
        if not fds:
            return
        pid = os.fork()
        if not pid:
            line.close()
            _be(worker.main, fds[0])
        os.close(fds[0])
        try:
            line.send(json.dumps({"pid": pid}).encode())
        except OSError:
            return  # who asked is gone, and the worker will see that too


def _be(work: Callable[[int], None], number: int) -> NoReturn:
    """What a forked process does, and nothing after it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        work(number)
    except SystemExit:
        pass
    except BaseException:  # the parent's code must not go on here, whatever it was
        traceback.print_exc()
    finally:
        os._exit(1)
