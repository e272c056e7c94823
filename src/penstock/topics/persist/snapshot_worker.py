"""The worker process that makes snapshots, fed by the server: `python -m` this module.

It gets the path of the last snapshot and the payloads of the log after it, replays both, moves cold
records to segments, writes the new snapshot, and reports that in one line. So the server's event
loop is not involved, and the memory is freed when the process ends. It never reads the log itself,
so it works with every store. The end of its input tells it that the server is gone; then it leaves
nothing behind that is used.
"""

from __future__ import annotations

import gc
import os
import select
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from penstock.protocol.limits import TopicLimits
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.partition import Partition
from penstock.topics.core.registry import Registry
from penstock.topics.persist.data_dir import (
    ColdFiles,
    File,
    SnapshotFiles,
    segment_name,
    write_file,
)
from penstock.topics.persist.segments import (
    BlockPlace,
    SealOptions,
    SegmentHead,
    segments_to_seal,
    share_of_each,
)
from penstock.topics.persist.snapshot import (
    Restoring,
    SnapshotHeader,
    SnapshotReader,
    decode_kept,
    encode_snapshot,
)

PIECE: Final = struct.Struct("<cI")  # kind, number of bytes that follow
JOB: Final = b"J"
PAYLOADS: Final = b"P"  # any number of log payloads, each preceded by its length
END: Final = b"E"
LENGTH: Final = struct.Struct("<I")
_NICENESS: Final = 10


class SnapshotJob(Struct, frozen=True):
    """A request for a snapshot of one partition, up to an index of its log."""

    partition: int
    index: int
    previous: str | None
    snapshots: str
    cold: str | None
    seal: SealOptions | None
    now_ms: int
    member: int = 0


class Sealed(Struct, frozen=True):
    """A new segment with records of a topic."""

    topic: str
    epoch: int
    file: str
    blocks: list[BlockPlace]
    tags: list[tuple[list[str], bytes] | None]


class Manifest(Struct, frozen=True):
    """The result of a job."""

    partition: int
    index: int
    size_bytes: int
    records: int
    sealed: list[Sealed]


def main() -> int:
    """Run jobs until the input ends."""
    os.nice(_NICENESS)
    gc.disable()  # there are no reference cycles here, and every job ends
    source = sys.stdin.buffer
    while True:
        piece = _piece(source)
        if piece is None:
            return 0
        kind, data = piece
        if kind != JOB:
            raise ValueError(f"unknown kind of job: {kind!r}")
        manifest = work(msgspec.json.decode(data, type=SnapshotJob), source)
        sys.stdout.buffer.write(msgspec.json.encode(manifest) + b"\n")
        sys.stdout.buffer.flush()


def work(job: SnapshotJob, source: BinaryIO) -> Manifest:
    """Run one job with the log payloads from the source."""
    partition = Partition(Registry(TopicLimits(topics_max=0, routers_max=0)))
    sealed: list[Sealed] = []
    if job.previous is not None:
        restore(partition, Path(job.previous))
    while (piece := _needed(source))[0] == PAYLOADS:
        for payload in _payloads(piece[1]):
            partition.apply_all(decode_entries(payload))
        if _is_full(partition, job):
            seal(partition, job, sealed)
    seal(partition, job, sealed)
    header = SnapshotHeader(job.partition, job.index)
    path = SnapshotFiles(Path(job.snapshots)).path_of(header)
    if _is_orphan(source):
        sys.exit(3)
    size_bytes = write_file(path, encode_snapshot(partition, header))
    records = sum(topic.count for topic in partition.topics.values())
    return Manifest(job.partition, job.index, size_bytes, records, sealed)


def restore(partition: Partition, path: Path) -> None:
    """Load a snapshot in one go."""
    with File(path) as file:
        restoring = Restoring(partition)
        reader = SnapshotReader(path.name, file.read)
        for payload in reader.payloads():
            restoring.take(decode_kept(path.name, payload))


def _is_full(partition: Partition, job: SnapshotJob) -> bool:
    """Whether so much was loaded that some must be sealed before the rest."""
    bytes_max = job.seal.node_bytes_max if job.seal is not None else 0
    return bool(bytes_max) and partition.registry.hot_bytes > 3 * bytes_max


def seal(partition: Partition, job: SnapshotJob, sealed: list[Sealed]) -> None:
    """Move cold records to segments, durably."""
    if job.seal is None or job.cold is None:
        return
    files = ColdFiles(Path(job.cold))
    share_bytes = 0
    if job.seal.node_bytes_max:
        topics = (t for t in partition.topics.values() if t.config.durability != "ephemeral")
        share_bytes = share_of_each(topics, job.seal.node_bytes_max)
    for topic in partition.topics.values():
        for runs in list(segments_to_seal(topic, job.seal, job.now_ms, share_bytes)):
            name = segment_name(
                job.partition, job.index, job.now_ms, len(sealed), member=job.member
            )
            blocks = files.write(name, SegmentHead(job.partition, topic.name, topic.epoch), runs)
            topic.row.seal(blocks)
            places = [
                BlockPlace(block.first_seq, block.last_seq, block.offset, block.length)
                for block in blocks
            ]
            tags = [
                (list(block.tags.texts), block.tags.codes.tobytes()) if block.tags else None
                for block in blocks
            ]
            sealed.append(Sealed(topic.name, topic.epoch, name, places, tags))
        partition.registry.recount(topic)
    if sealed:
        files.sync()


def _payloads(data: bytes) -> list[bytes]:
    found = []
    at = 0
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        found.append(data[at : at + length])
        at += length
    return found


def _piece(source: BinaryIO) -> tuple[bytes, bytes] | None:
    head = source.read(PIECE.size)
    if len(head) < PIECE.size:
        return None
    kind, length = PIECE.unpack(head)
    data = source.read(length)
    return (kind, data) if len(data) == length else None


def _needed(source: BinaryIO) -> tuple[bytes, bytes]:
    piece = _piece(source)
    if piece is None:
        sys.exit(3)  # the server is gone
    return piece


def _is_orphan(source: BinaryIO) -> bool:
    """Whether the server is gone: another one may own the directory by now."""
    poll = select.poll()
    poll.register(source.fileno(), select.POLLIN)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
