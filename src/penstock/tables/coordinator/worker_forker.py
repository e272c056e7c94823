"""A process that has loaded everything a worker needs, and forks workers that are ready at once.

Loading an engine's packages can take seconds. The forker loads them once. It has no threads and
opens nothing, so it can be forked safely. It ends when its coordinator does; the workers it forked
keep their own sockets.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from penstock.kernel.errors import Unavailable
from penstock.tables.engine import Factory

_MESSAGE_BYTES: Final = 1 << 16
_PATIENCE_S: Final = 120
_PROGRAM: Final = (
    "import sys; from penstock.tables.coordinator.worker_forker import main; main(*sys.argv[1:])"
)


class ForkerLost(Unavailable):
    """The process that forks workers is gone, or does not respond."""

    code = "worker_forker_lost"


class WorkerForker:
    """The coordinator's end: requests workers. For one thread."""

    def __init__(self, runner: Factory) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(_PATIENCE_S)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), runner.name],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,  # stderr: what an engine prints must not mix with our output
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
            )
        finally:
            theirs.close()
        self._ready = False
        self._until_s = time.monotonic() + _PATIENCE_S

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Whether it has finished loading; never blocks."""
        if self._ready:
            return True
        if select.select([self._line], [], [], 0)[0]:
            self._ready = bool(self._answer()["ready"])
        elif time.monotonic() > self._until_s:
            raise ForkerLost(f"the worker forker has not loaded its engine within {_PATIENCE_S} s")
        return self._ready

    def fork(self, theirs: socket.socket) -> int:
        """Fork a worker at the other end of a socket, if ready; returns its process id."""
        try:
            socket.send_fds(self._line, [b"fork"], [theirs.fileno()])
        except OSError as error:
            raise ForkerLost(f"no worker was forked: {error}") from error
        return int(self._answer()["pid"])

    def _answer(self) -> dict[str, int]:
        try:
            answer = self._line.recv(_MESSAGE_BYTES)
        except OSError as error:
            raise ForkerLost(f"no worker was forked: {error}") from error
        if not answer:
            raise ForkerLost("no worker was forked: the forker has died and will be started again")
        found: dict[str, int] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the forker; workers keep running."""
        self._line.close()
        self._process.kill()
        self._process.wait()


def main(number: str, runner: str) -> None:
    """Fork workers for the coordinator at the other end of a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator handles Ctrl-C
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers
    line = socket.socket(fileno=int(number))
    from penstock.tables.worker import process

    with suppress(Exception):  # each worker will find and report it
        preload = Factory(runner).beside("preload")
        if preload is not None:
            preload()
    with suppress(OSError):
        line.send(json.dumps({"ready": 1}).encode())
    while True:
        fds: list[int] = []
        with suppress(OSError):  # a broken connection counts as closed
            _, fds, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 1)
        if not fds:
            return
        pid = os.fork()
        if not pid:
            line.close()
            _become(process.main, fds[0])
        os.close(fds[0])
        try:
            line.send(json.dumps({"pid": pid}).encode())
        except OSError:
            return  # the coordinator is gone; the worker will notice too


def _become(work: Callable[[int], None], number: int) -> NoReturn:
    """Run the worker in a forked process, and never return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        work(number)
    except SystemExit:
        pass
    except BaseException:  # never return to the parent's code, whatever happened
        traceback.print_exc()
    finally:
        os._exit(1)
