"""A limit on the records in memory: the oldest beyond it go to unnamed temporary files.

These files need no sync and leave nothing behind: the log has what must survive, and the system
frees their space with the last block in them. When a snapshot has moved the same records to
permanent files, those take over. Records of class `ephemeral` are spilled like any other; a restart
still loses them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from penstock.kernel.units import KIB, MIB
from penstock.log.disk import make_directory
from penstock.topics.core.batch import Item
from penstock.topics.core.cold_row import ColdBlock, Tags
from penstock.topics.core.record_row import HOT_SLOT_BYTES
from penstock.topics.core.registry import Registry
from penstock.topics.core.topic import Topic
from penstock.topics.persist.segments import read_spilled, spilled_bytes

_LOGGER: Final = logging.getLogger("penstock.topics")
FILE_BYTES: Final = 64 * MIB
PASS_BYTES: Final = 4 * MIB
"""How much is written at a time."""
BLOCK_BYTES: Final = 256 * KIB
BLOCK_SLOTS: Final = 1_024
_RETRY_S: Final = 1.0


class SpillFile:
    """One unnamed file. Written by one thread, read by any."""

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        try:
            self._fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # the file system does not support unnamed files
            with tempfile.TemporaryFile(dir=directory) as file:
                self._fd = os.dup(file.fileno())
        self.size_bytes = 0

    def append(self, data: bytes) -> int:
        """Append; return the offset."""
        offset = self.size_bytes
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)
        self.size_bytes += len(data)
        return offset

    def read(self, count: int, offset: int) -> bytes:
        """Read `count` bytes from `offset`."""
        return os.pread(self._fd, count, offset)

    def __del__(self) -> None:
        os.close(self._fd)


class _Pick(NamedTuple):
    """Records of a topic to be spilled."""

    topic: Topic
    first_seq: int
    sizes: array[int]
    items: list[Item]


class HotLimit:
    """Keeps the records in memory, over all topics of a node, within a limit of bytes."""

    def __init__(
        self,
        registry: Registry,
        directory: Path | None,
        bytes_max: int,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry = registry
        self._directory = directory
        self._loop = loop
        self._file: SpillFile | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._running: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None  # while writes to the disk fail
        self.bytes_max = bytes_max if directory is not None else 0
        self.spilled_bytes = 0
        if self.bytes_max:
            registry.hot_bytes_max = self.bytes_max
            registry.refuse_bytes = self.bytes_max + self.bytes_max // 4 + PASS_BYTES
            registry.on_hot = self._start

    async def enforce(self) -> None:
        """Bring memory below its limit."""
        if self._running is None:
            self._start()
        if self._running is not None:
            await asyncio.shield(self._running)

    def close(self) -> None:
        """Stop the thread."""
        if self._retry is not None:
            self._retry.cancel()
        if self._running is not None:
            self._running.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Start to spill the oldest records, unless that is in progress."""
        if self._running is None and self._retry is None:
            self._running = self._loop.create_task(self._run())

    def _start_again(self) -> None:
        self._retry = None
        if self._registry.hot_bytes > self.bytes_max:
            self._start()

    async def _run(self) -> None:
        try:
            goal_bytes = self.bytes_max - self.bytes_max // 8
            while self._registry.hot_bytes > goal_bytes:
                if not await self._lap(goal_bytes):
                    return
        except OSError as error:
            # Retry by timer: writes that are refused meanwhile do not trigger it.
            self._retry = self._loop.call_later(_RETRY_S, self._start_again)
            _LOGGER.error("records cannot be moved out of memory: %s", error)
        finally:
            self._running = None

    async def _lap(self, goal_bytes: int) -> bool:
        """Go over all topics once; those above their share spill. Returns False if none did."""
        registry = self._registry
        share = goal_bytes // max(len(registry.topics), 1)
        gave = False
        for topics in registry.totals.topics.parts():
            over = [topic for topic in topics if topic.row.hot_bytes > share]
            while over:
                picks, room = [], PASS_BYTES
                while over and room > 0:
                    topic = over.pop()
                    given = 0
                    for pick in _picks(topic, topic.row.hot_bytes - share, room):
                        picks.append(pick)
                        given += sum(pick.sizes) + HOT_SLOT_BYTES * len(pick.items)
                    room -= given
                gave = gave or bool(picks)
                await self._move(picks)
                if registry.hot_bytes <= goal_bytes:
                    return True
            await asyncio.sleep(0)
        return gave

    async def _move(self, picks: list[_Pick]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="spill")
        blocks = await self._loop.run_in_executor(self._thread, self._write, picks)
        by_topic: dict[Topic, list[ColdBlock]] = {}
        for pick, block in zip(picks, blocks, strict=True):
            by_topic.setdefault(pick.topic, []).append(block)
        for topic, written in by_topic.items():
            if self._registry.topics.get(topic.name) is topic:
                topic.row.seal(written)
                self._registry.recount(topic)

    def _write(self, picks: list[_Pick]) -> list[ColdBlock]:
        """In the thread: write the content of slots to the file, unchanged."""
        assert self._directory is not None
        blocks = []
        for pick in picks:
            if self._file is None or self._file.size_bytes >= FILE_BYTES:
                self._file = SpillFile(self._directory)
            data = spilled_bytes(pick.first_seq, pick.items)
            block = ColdBlock(
                "spill",
                self._file.append(data),
                len(data),
                first_seq=pick.first_seq,
                last_seq=pick.first_seq + len(pick.items) - 1,
                spill=self._file,
            )
            if b'"tag"' in data or b"\\u" in data:  # else it has no tags and need not be decoded
                block.tags = Tags.of(read_spilled(block))
            self.spilled_bytes += len(data)
            blocks.append(block)
        return blocks


def _picks(topic: Topic, over_bytes: int, room: int) -> Iterator[_Pick]:
    """The oldest records of a topic, in pieces, until it has spilled enough or there is no room."""
    start = 0
    while over_bytes > 0 and room > 0:
        first_seq, sizes, items = topic.row.oldest_hot(BLOCK_SLOTS, BLOCK_BYTES, start)
        if not items:
            return
        yield _Pick(topic, first_seq, sizes, items)
        start += len(items)
        given = sum(sizes) + HOT_SLOT_BYTES * len(items)
        over_bytes -= given
        room -= given
