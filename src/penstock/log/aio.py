"""Asynchronous direct writes on Linux: past the page cache, durable when done, without a thread.

A thread that waits for a sync has to be woken afterwards, has to acquire the interpreter and has to
wake another thread with the answer; that took as long as the sync itself. The kernel's native
asynchronous IO (`io_submit`) takes a write of whole pages and signals an eventfd when it is on
disk; meanwhile the calling thread continues. Any Linux since 4.13 has it, also in containers, where
io_uring is often disabled.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from typing import Any, Final

from penstock.kernel.units import MIB

PAGE_BYTES: Final = 4_096
PIECES_MAX: Final = 4
PIECE_BYTES_MAX: Final = MIB

_CALLS: Final = {  # io_setup, io_destroy, io_submit, io_getevents
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
_EVENT: Final = struct.Struct("<QQqq")
_PWRITE: Final = 1
_ZEROS: Final = bytes(PAGE_BYTES)


class AioWriter:
    """Writes a few pieces at a time. `OSError` if this machine does not support it.

    The eventfd `done_fd` becomes readable soon after a piece is done. Read it, then check
    `is_done`: it may still be readable from an earlier piece.
    """

    def __init__(self) -> None:
        if sys.platform != "linux" or platform.machine() not in _CALLS:
            raise OSError(errno.ENOSYS, f"no native asynchronous IO on {platform.platform()}")
        setup, self._destroy_no, self._submit_no, self._events_no = _CALLS[platform.machine()]
        self._context = 0
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Polling takes the kernel a few microseconds, so it keeps the interpreter lock; waiting
        # releases it.
        self._ask = _syscall(ctypes.PyDLL(None, use_errno=True))
        self._wait = _syscall(ctypes.CDLL(None, use_errno=True))
        context = ctypes.c_ulong(0)
        _checked(self._ask(setup, PIECES_MAX, ctypes.addressof(context), 0, 0, 0))
        self._context = context.value
        self._events = ctypes.create_string_buffer(_EVENT.size * PIECES_MAX)
        self._events_at = ctypes.addressof(self._events)
        self._free = [AioPiece(number) for number in range(PIECES_MAX)]
        self._results: dict[int, int] = {}

    def begin(self, fd: int, before: bytes, data: bytes, offset: int) -> AioPiece | None:
        """Start to write `before`, `data` and zeros up to a whole page, at the start of a page.

        `fd` must be open with `O_DIRECT` and `O_DSYNC`. Returns None if enough is being written
        already, or if the write is so large that submitting it would take long. Concurrent pieces
        must not share a page.
        """
        if not self._free or len(before) + len(data) > PIECE_BYTES_MAX:
            return None
        piece = self._free[-1]
        address, count = piece.fill(before, data)
        iocb = (piece.number, 0, 0, _PWRITE, 0, fd, address, count, offset, 0, 1, self.done_fd)
        _IOCB.pack_into(piece.iocb, 0, *iocb)
        _checked(self._ask(self._submit_no, self._context, 1, piece.iocbs_at, 0, 0))
        return self._free.pop()

    def is_done(self, piece: AioPiece) -> bool:
        """Whether `result` would return without waiting."""
        if piece.number not in self._results:
            self._get(self._ask, 0)
        return piece.number in self._results

    def result(self, piece: AioPiece) -> int:
        """How many bytes were written; waits for completion. Call it once per piece."""
        while not self.is_done(piece):
            self._get(self._wait, 1)
        self._free.append(piece)
        result = self._results.pop(piece.number)
        return _checked(result, -result)

    def _get(self, call: Any, at_least: int) -> None:
        found = call(self._events_no, self._context, at_least, PIECES_MAX, self._events_at, 0)
        if found < 0 and ctypes.get_errno() == errno.EINTR:
            return
        for at in range(0, _checked(found) * _EVENT.size, _EVENT.size):
            number, _, result, _ = _EVENT.unpack_from(self._events, at)
            self._results[number] = result

    def __del__(self) -> None:
        if getattr(self, "_context", 0):
            self._wait(self._destroy_no, self._context, 0, 0, 0, 0)  # waits for writes in flight
        if hasattr(self, "done_fd"):
            os.close(self.done_fd)


class AioPiece:
    """The buffer of one write: the kernel reads it while the write is in flight."""

    __slots__ = ("_address", "_buffer", "_iocbs", "iocb", "iocbs_at", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self.iocb))
        self.iocbs_at = ctypes.addressof(self._iocbs)
        self._buffer = mmap.mmap(-1, PIECE_BYTES_MAX)  # page-aligned
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))

    def fill(self, before: bytes, data: bytes) -> tuple[int, int]:
        """Fill with bytes, and zeros up to a whole page; return address and length."""
        start = len(before)
        end = start + len(data)
        whole = -(-end // PAGE_BYTES) * PAGE_BYTES
        buffer = self._buffer
        buffer[:start] = before
        buffer[start:end] = data
        buffer[end:whole] = _ZEROS[: whole - end]
        return self._address, whole


def open_direct(fd: int) -> int:
    """Another descriptor of the same file, for `AioWriter`; `OSError` if not supported."""
    direct = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
    try:
        page = mmap.mmap(-1, PAGE_BYTES)
        os.preadv(direct, [page], 0)  # fails if the device does not accept whole pages
    except BaseException:
        os.close(direct)
        raise
    return direct


def _syscall(library: ctypes.CDLL) -> Any:
    call = library["syscall"]
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, *[ctypes.c_ulong] * 5]
    return call


def _checked(result: int, error: int = 0) -> int:
    if result < 0:
        error = error or ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
