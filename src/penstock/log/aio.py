"""Writes that a Linux disk does by itself: past the page cache, durable when done, and no thread.

A thread that waits for a sync has to be woken when it is over, has to get the interpreter and has
to wake somebody else with the answer; that took as long as the sync itself. The kernel's native
asynchronous IO (`io_submit`) takes a write of whole pages and tells an eventfd when it is on the
disk; meanwhile the thread that asked goes on. Any Linux since 4.13 has it, in containers too, where
io_uring often is switched off.
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

_CALLS: Final = {  # io_setup, io_destroy, io_submit, io_getevents
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
_EVENT: Final = struct.Struct("<QQqq")
_PWRITE: Final = 1
_TELL_EVENTFD: Final = 1
_BUFFER_BYTES: Final = MIB


class AioWriter:
    """Writes one piece at a time. `OSError` if this machine cannot."""

    def __init__(self) -> None:
        if sys.platform != "linux" or platform.machine() not in _CALLS:
            raise OSError(errno.ENOSYS, f"no native asynchronous IO on {platform.platform()}")
        setup, self._destroy_no, self._submit_no, self._events_no = _CALLS[platform.machine()]
        self._context = 0
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Asking takes the kernel a few microseconds, so it is done without letting go of the
        # interpreter; waiting is not.
        self._ask = _syscall(ctypes.PyDLL(None, use_errno=True))
        self._wait = _syscall(ctypes.CDLL(None, use_errno=True))
        context = ctypes.c_ulong(0)
        _checked(self._ask(setup, 1, ctypes.addressof(context), 0, 0, 0))
        self._context = context.value
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._grow(_BUFFER_BYTES)

    def begin(self, fd: int, before: bytes, data: bytes, offset: int) -> None:
        """Start to write, at the start of a page, `before`, `data` and zeros up to a whole page.

        `fd` must be open with `O_DIRECT` and `O_DSYNC`. `done_fd` is readable when it is done.
        """
        start = len(before)
        end = start + len(data)
        whole = -(-end // PAGE_BYTES) * PAGE_BYTES
        if whole > len(self._buffer):
            self._grow(whole)
        buffer = self._buffer
        buffer[:start] = before
        buffer[start:end] = data
        buffer[end:whole] = bytes(whole - end)
        iocb = (
            0, 0, 0, _PWRITE, 0, fd, self._address, whole, offset, 0, _TELL_EVENTFD, self.done_fd
        )  # fmt: skip
        _IOCB.pack_into(self._iocb, 0, *iocb)
        iocbs = ctypes.addressof(self._iocbs)
        _checked(self._ask(self._submit_no, self._context, 1, iocbs, 0, 0))

    def result(self) -> int:
        """How many bytes were written; waits until they are."""
        if not self._get(self._ask, 0):
            while not self._get(self._wait, 1):
                continue
        os.eventfd_read(self.done_fd)
        result: int = _EVENT.unpack_from(self._event)[2]
        return _checked(result, -result)

    def _get(self, call: Any, at_least: int) -> int:
        event = ctypes.addressof(self._event)
        found: int = call(self._events_no, self._context, at_least, 1, event, 0)
        if found < 0 and ctypes.get_errno() == errno.EINTR:
            return 0
        return _checked(found)

    def _grow(self, size: int) -> None:
        self._buffer = mmap.mmap(-1, size)  # begins at a page
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))

    def __del__(self) -> None:
        if getattr(self, "_context", 0):
            self._wait(self._destroy_no, self._context, 0, 0, 0, 0)  # waits for what is under way
        if hasattr(self, "done_fd"):
            os.close(self.done_fd)


def open_direct(fd: int) -> int:
    """Another descriptor of the same file, for `AioWriter`; `OSError` if it cannot have one."""
    direct = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
    try:
        page = mmap.mmap(-1, PAGE_BYTES)
        os.preadv(direct, [page], 0)  # refused if whole pages are not what the device wants
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
