"""A cache of cold records: blocks are loaded, kept for a while, then evicted.

The log's read scheduler reads them, so that one partition's cold reads do not delay another's.

A reader that needs a block gets `NotLoaded`, waits for it here, and retries; the blocks it has
loaded stay until it is done, whatever else is read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Self, TypeVar

from penstock.kernel.errors import Corrupt
from penstock.kernel.units import MIB
from penstock.log.reads import ReadScheduler
from penstock.protocol.errors import RecordsUnreadable
from penstock.topics.core.cold_row import ColdBlock, NotLoaded
from penstock.topics.core.record import RawRecord
from penstock.topics.persist.data_dir import ColdFiles, segment_partition
from penstock.topics.persist.segments import read_spilled

_T = TypeVar("_T")
_KEPT_MIN: Final = 8
"""This many blocks are kept however large they are: a step of a router may need a few at once."""
_SPILLED: Final = -1
"""Spilled records of all partitions share one queue, as if they were one partition."""
_RETRY_S: Final = 1.0
_LOGGER: Final = logging.getLogger("penstock.topics")
BLOCKS_A_READ_MAX: Final = 16
"""A reader that would need more blocks than this gets a shorter page."""


class ColdCache:
    """The loaded blocks, within a limit of bytes. Used only on the loop's thread."""

    def __init__(
        self,
        files: ColdFiles | None,
        reads: ReadScheduler,
        *,
        bytes_max: int = 128 * MIB,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._files = files
        self._reads = reads
        self._bytes_max = bytes_max
        self._loop = loop
        self._kept: OrderedDict[ColdBlock, None] = OrderedDict()  # oldest first
        self._kept_bytes = 0
        self._loading: dict[ColdBlock, asyncio.Future[None]] = {}
        self._failed: dict[ColdBlock, tuple[float, Exception]] = {}  # recent failures, with expiry
        self.loads = 0
        self.failures = 0

    def hold(self) -> Hold:
        """A hold that keeps the blocks loaded through it until it ends."""
        return Hold(self)

    def soon(
        self, block: ColdBlock, then: Callable[[], None], failed: Callable[[], None] | None = None
    ) -> None:
        """Load a block; `then` is called once it is loaded.

        On a failure, `failed` is called at once; without it, `then` is called after a pause, to
        retry.
        """
        if block.records is not None:
            self._loop.call_soon(then)
            return

        def loaded(future: asyncio.Future[None]) -> None:
            if future.cancelled() or future.exception() is None:
                then()
            elif failed is not None:
                failed()
            else:
                self._loop.call_later(_RETRY_S, then)

        self._load(block).add_done_callback(loaded)

    def failure(self, block: ColdBlock) -> Exception | None:
        """Why a recent load of a block failed; None if a retry is due."""
        until_s, error = self._failed.get(block, (0.0, None))
        if error is not None and self._loop.time() >= until_s:
            del self._failed[block]
            return None
        return error

    async def load(self, block: ColdBlock) -> None:
        """Load a block, sharing the load with other waiters."""
        if block.records is None:
            await asyncio.shield(self._load(block))

    def forget(self) -> None:
        """Evict every block that is not held."""
        self._shrink(0, 0)

    @property
    def kept_bytes(self) -> int:
        """The bytes of the loaded blocks, as stored in their files."""
        return self._kept_bytes

    def _load(self, block: ColdBlock) -> asyncio.Future[None]:
        found = self._loading.get(block)
        if found is None:
            found = self._loading[block] = asyncio.ensure_future(self._fetch(block))
            found.add_done_callback(_look)
        return found

    async def _fetch(self, block: ColdBlock) -> None:
        try:
            records = await self.read(block)
        except Exception as error:
            # Any error counts: the waiters will retry, and must not do so without a pause.
            _LOGGER.error("cold records cannot be read: %s", error.__cause__ or error)
            self.failures += 1
            self._failed[block] = (self._loop.time() + _RETRY_S, error)
            raise
        finally:
            self._loading.pop(block, None)
        self._failed.pop(block, None)
        self._keep(block, records)

    async def read(self, block: ColdBlock) -> list[RawRecord | None]:
        """The records of a block, which is not kept."""
        if self._files is None:
            raise Corrupt(f"{block} cannot be read: this node has no directory for cold records")
        records: list[RawRecord | None]
        try:
            if block.spill is not None:
                records = await self._reads.run(_SPILLED, partial(read_spilled, block))
            else:
                read = partial(self._files.read, block)
                records = (await self._reads.run(segment_partition(block.file), read)).records
            return records
        except (OSError, Corrupt) as error:
            raise RecordsUnreadable(block.file, block.first_seq, block.last_seq, error) from error

    def _keep(self, block: ColdBlock, records: list[RawRecord | None]) -> None:
        self.loads += 1
        block.records = records
        self._kept[block] = None
        self._kept_bytes += block.length
        block.pins += 1  # its waiters have not been called yet
        self._shrink(self._bytes_max, _KEPT_MIN)
        block.pins -= 1
        block.touched = True  # and may run only after the next load

    def _shrink(self, bytes_max: int, kept_min: int) -> None:
        """Evict the oldest blocks that are not in use; a block used since its last check stays.

        Checks each at most twice.
        """
        looks = 2 * len(self._kept)
        while self._kept_bytes > bytes_max and len(self._kept) > kept_min and looks:
            looks -= 1
            block, _ = self._kept.popitem(last=False)
            if block.pins or (block.touched and bytes_max):
                block.touched = False
                self._kept[block] = None
                continue
            self._kept_bytes -= block.length
            block.records = None


class Hold:
    """The blocks loaded by one reader; they stay until it releases them."""

    def __init__(self, cache: ColdCache) -> None:
        self._cache = cache
        self._blocks: list[ColdBlock] = []
        self.files: set[str] = set()

    async def load(self, block: ColdBlock) -> None:
        """Load a block and keep it."""
        block.pins += 1
        self._blocks.append(block)
        self.files.add(block.file)
        await self._cache.load(block)

    @property
    def is_full(self) -> bool:
        """Whether a reader has loaded as many blocks as it may."""
        return len(self._blocks) >= BLOCKS_A_READ_MAX

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for block in self._blocks:
            block.pins -= 1

    async def answer(self, ask: Callable[[int | None], _T]) -> _T:
        """Call `ask` until every block it needs is loaded.

        `ask` receives the last seq to scan: None for all, or a seq once the reader has reached its
        limit.
        """
        upto_seq: int | None = None
        while True:
            try:
                return ask(upto_seq)
            except NotLoaded as missing:
                if self.is_full and upto_seq is None:
                    upto_seq = missing.block.first_seq - 1
                else:
                    await self.load(missing.block)


def _look(future: asyncio.Future[None]) -> None:
    """Retrieve an error, so that asyncio does not report it; waiters get it too."""
    if not future.cancelled():
        future.exception()
