"""Snapshots on their way to a member that needs entries which the log no longer has.

The leader offers the newest snapshot with the cold segments that it names, and keeps them open; the
member asks for what it lacks, a piece at a time, and puts each file in place when it is whole. What
has arrived stays after a broken connection, and the next offer goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.cluster.frames import BadLetter
from penstock.kernel.errors import Corrupt, PenstockError, Unavailable
from penstock.kernel.units import MIB
from penstock.log.disk import sync_directory
from penstock.raft import messages as m
from penstock.topics.engine.engine import Engine
from penstock.topics.persist.data_dir import File, summary_of, verify_snapshot

PIECE_BYTES: Final = MIB
TRANSFERS_MAX: Final = 2
SILENCE_S: Final = 30.0
"""An offer that is not asked about for this long, or a piece that does not come, is given up."""
ARRIVING: Final = ".arriving"
SNAPSHOT: Final = "snapshot"
"""The name of the snapshot itself among the files of an offer."""

_LOGGER: Final = logging.getLogger("penstock.cluster")


class TransferFailed(Unavailable):
    """A snapshot did not arrive; it is offered again."""

    code = "transfer_failed"


class OfferedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of an offer."""

    name: str
    size: int


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer"):
    """The leader has a snapshot for a member. `message` is what the member's group takes then."""

    partition: int
    message: bytes
    files: tuple[OfferedFile, ...]


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """The member asks for a piece."""

    number: int
    partition: int
    file: str
    offset: int


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """A piece; None if the offer does not hold any more."""

    number: int
    data: bytes | None


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """How an offer ended."""

    partition: int
    arrived: bool


Carried = Offer | Fetch | Piece | Arrived


class Send(Protocol):
    """Sends bytes to a member; False if it is certain that they will not arrive."""

    def __call__(self, member: int, payload: bytes) -> bool: ...


@dataclass(slots=True)
class _Sending:
    """An offer of this node. Its files are open, so that they can be read after their removal."""

    files: dict[str, File]
    ended: asyncio.Future[bool]
    used: asyncio.Event = field(default_factory=asyncio.Event)


class Transfers:
    """Sends and takes snapshots, for one node."""

    def __init__(self, engine: Engine, send: Send, name_of: Callable[[int], str]) -> None:
        self._engine, self._send, self._name_of = engine, send, name_of
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(TRANSFERS_MAX)
        self._sending: dict[tuple[int, int], _Sending] = {}
        self._taking: set[int] = set()
        self._pieces: dict[int, asyncio.Future[bytes | None]] = {}
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = self.taken = self.failed = self.bytes_taken = 0

    def stop(self) -> None:
        """Give up what is on its way."""
        for task in list(self._tasks):
            task.cancel()

    def view(self) -> dict[str, int]:
        """Snapshots since the start: those that arrived elsewhere and here, and bytes fetched."""
        return {
            "sent": self.sent,
            "taken": self.taken,
            "failed": self.failed,
            "bytes_taken": self.bytes_taken,
        }

    def offer(self, partition: int, message: m.InstallSnapshot) -> None:
        """Bring a snapshot to a member; `snapshot_sent` of the journal is told how it ended."""
        self._run(self._offer(partition, message))

    def take(self, sender: int, payload: bytes) -> None:
        """Take what a peer sent, or raise `BadLetter`."""
        try:
            carried = _DECODER.decode(payload)
        except msgspec.MsgspecError as error:
            raise BadLetter(f"malformed message about a snapshot: {error}") from error
        if isinstance(carried, Offer):
            self._run(self._accept(sender, carried))
        elif isinstance(carried, Fetch):
            self._run(self._read(sender, carried))
        elif isinstance(carried, Piece):
            waiting = self._pieces.get(carried.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(carried.data)
        else:
            sending = self._sending.get((carried.partition, sender))
            if sending is not None and not sending.ended.done():
                sending.ended.set_result(carried.arrived)

    # The leader

    async def _offer(self, partition: int, message: m.InstallSnapshot) -> None:
        arrived = False
        to = message.to
        try:
            async with self._room:
                arrived = await self._send_all(partition, message)
        except (PenstockError, OSError) as error:
            _LOGGER.warning(
                "the snapshot of partition %d for %s: %s", partition, self._name_of(to), error
            )
        finally:
            self.sent += arrived
            self.failed += not arrived
            if not arrived:
                await asyncio.sleep(1.0)  # before it is offered again
            self._engine.journal.snapshot_sent(partition, to, arrived)

    async def _send_all(self, partition: int, message: m.InstallSnapshot) -> bool:
        """Offer the files and keep them open until the member has them or is silent."""
        key = (partition, message.to)
        files = await self._loop.run_in_executor(None, self._open, partition, message.mark.index)
        sending = self._sending[key] = _Sending(files, self._loop.create_future())
        try:
            offered = tuple(OfferedFile(name, file.size_bytes) for name, file in files.items())
            self._tell(message.to, Offer(partition, m.encode(message), offered))
            while not sending.ended.done():
                sending.used.clear()
                used = asyncio.ensure_future(sending.used.wait())
                await asyncio.wait(
                    (sending.ended, used), timeout=SILENCE_S, return_when=asyncio.FIRST_COMPLETED
                )
                used.cancel()
                if not sending.ended.done() and not sending.used.is_set():
                    raise TransferFailed(f"not asked for within {SILENCE_S:g} s")
            return sending.ended.result()
        finally:
            del self._sending[key]
            for file in files.values():
                file.close()

    def _open(self, partition: int, index: int) -> dict[str, File]:
        snapshots, cold = self._engine.snapshots, self._engine.cold_files
        assert snapshots is not None, "a node of a cluster has a data directory"
        assert cold is not None, "a node of a cluster has a data directory"
        found = next((each for each in snapshots.found(partition) if each.index == index), None)
        if found is None:
            raise TransferFailed(f"the snapshot at index {index} has been replaced by a newer one")
        files = {SNAPSHOT: File(found.path)}
        try:
            for name in summary_of(found.path).files:
                files[name] = File(cold.path / name)
        except BaseException:
            for file in files.values():
                file.close()
            raise
        return files

    async def _read(self, sender: int, fetch: Fetch) -> None:
        """Answer with a piece of a file that is offered to this member."""
        sending = self._sending.get((fetch.partition, sender))
        file = sending.files.get(fetch.file) if sending is not None else None
        data = None
        if sending is not None and file is not None:
            sending.used.set()
            data = await self._loop.run_in_executor(None, file.read, PIECE_BYTES, fetch.offset)
        self._tell(sender, Piece(fetch.number, data))

    # The member

    async def _accept(self, sender: int, offer: Offer) -> None:
        """Fetch what is missing, put it in place, and have it read in."""
        if offer.partition in self._taking:
            return  # the earlier offer is still being taken; this one will be made again
        self._taking.add(offer.partition)
        arrived = False
        try:
            await self._install(sender, offer)
            arrived = True
        except (PenstockError, OSError, TimeoutError) as error:
            _LOGGER.warning(
                "partition %d: the snapshot of %s did not arrive: %s",
                offer.partition, self._name_of(sender), str(error) or "no piece came in time",
            )  # fmt: skip
        finally:
            self.taken += arrived
            self._taking.discard(offer.partition)
            self._send(sender, _ENCODER.encode(Arrived(offer.partition, arrived)))

    async def _install(self, sender: int, offer: Offer) -> None:
        engine = self._engine
        message = m.decode(offer.message)
        if not isinstance(message, m.InstallSnapshot) or message.sender != sender:
            raise Corrupt("an offer of a snapshot without the message that it is for")
        assert engine.snapshotter is not None, "a node of a cluster has a data directory"
        async with engine.snapshotter.lock:
            for file in offer.files:
                if file.name != SNAPSHOT:
                    await self._fetch(sender, offer.partition, file, self._cold_path(file.name))
            await self._loop.run_in_executor(None, self._check_cold, offer)
            assert engine.snapshots is not None
            place = engine.snapshots.incoming(offer.partition, message.mark.index)
            for file in offer.files:
                if file.name == SNAPSHOT:
                    await self._fetch(sender, offer.partition, file, place)
            await self._loop.run_in_executor(None, _check_snapshot, place)
            await engine.install_snapshot(offer.partition, message)
        _LOGGER.info("partition %d: a snapshot of %s is in", offer.partition, self._name_of(sender))

    def _cold_path(self, name: str) -> Path:
        """Where a segment goes; a name that is not a segment's is refused."""
        cold = self._engine.cold_files
        assert cold is not None, "a node of a cluster has a data directory"
        if not cold.is_name(name):
            raise Corrupt(f"{name!r} is not the name of a segment")
        cold.path.mkdir(parents=True, exist_ok=True)
        return cold.path / name

    async def _fetch(self, sender: int, partition: int, file: OfferedFile, place: Path) -> None:
        """Get a file that is not there yet, from where an earlier transfer ended."""
        if place.exists() and place.stat().st_size == file.size:
            return
        arriving = place.with_name(place.name + ARRIVING)
        have = arriving.stat().st_size if arriving.exists() else 0
        offset = have if have <= file.size else 0
        fd = os.open(arriving, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.ftruncate(fd, offset)
            while offset < file.size:
                data = await self._piece(sender, partition, file.name, offset)
                await self._loop.run_in_executor(None, os.pwrite, fd, data, offset)
                offset += len(data)
                self.bytes_taken += len(data)
            await self._loop.run_in_executor(None, os.fsync, fd)
        finally:
            os.close(fd)
        arriving.replace(place)
        await self._loop.run_in_executor(None, sync_directory, place.parent)

    async def _piece(self, sender: int, partition: int, name: str, offset: int) -> bytes:
        number = next(self._numbers)
        waiting: asyncio.Future[bytes | None] = self._loop.create_future()
        self._pieces[number] = waiting
        try:
            self._tell(sender, Fetch(number, partition, name, offset))
            async with asyncio.timeout(SILENCE_S):
                data = await waiting
        finally:
            del self._pieces[number]
        if not data:
            raise TransferFailed(f"{name} is not offered any more, or ends before {offset}")
        return data

    def _check_cold(self, offer: Offer) -> None:
        """Check every segment as a whole; a damaged one is removed, so that it is fetched again."""
        cold = self._engine.cold_files
        assert cold is not None, "a node of a cluster has a data directory"
        for file in offer.files:
            if file.name != SNAPSHOT:
                try:
                    cold.verify(file.name)
                except Corrupt:
                    (cold.path / file.name).unlink()
                    raise

    def _tell(self, member: int, carried: Carried) -> None:
        if not self._send(member, _ENCODER.encode(carried)):
            raise TransferFailed(f"{self._name_of(member)} cannot be reached")

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _LOGGER.warning("a snapshot on its way: %s", error)


def _check_snapshot(path: Path) -> None:
    try:
        verify_snapshot(path)
    except Corrupt:
        path.unlink()
        raise


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Carried]] = msgspec.msgpack.Decoder(Carried)
