"""A model of the server's watch: fixed records, streams that are cut where a test says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tests.unit.client.scripted import (
    CUT,
    HANG,
    STREAM_HEAD,
    Seen,
    answered,
    chunk,
    failed,
    frame,
)


class LogServer:
    """Serves topics, each a number of records; the n-th stream ends after `cuts[n]` bytes.

    A cut of None lets the stream live; "shutdown" ends it with an error frame; "lost" forgets the
    session before it is opened. Streams repeat the record before the cursor if `overlap`.
    """

    def __init__(
        self, topics: dict[str, int], cuts: Iterable[Any], *, batch: int = 2, overlap: bool = False
    ) -> None:
        self.topics = topics
        self.bodies: list[Any] = []
        self._cuts = iter(cuts)
        self._batch = batch
        self._overlap = overlap
        self._sessions: dict[str, dict[str, int]] = {}

    def __call__(self, seen: Seen) -> Iterable[Any]:
        if seen.method == "POST":
            return self._create(seen)
        cursors = self._sessions.pop(seen.path.rpartition("/")[2], None)
        cut = next(self._cuts, None)
        if cursors is None or cut == "lost":
            return failed(404, "not_found")
        return self._stream(cursors, cut)

    def _create(self, seen: Seen) -> Iterable[Any]:
        body = seen.json()
        self.bodies.append(body)
        wid = f"wid_{len(self.bodies)}"
        lenient = "lenient=true" in seen.target
        missing = [name for name in body["topics"] if name not in self.topics]
        if missing and not lenient:
            return failed(404, "topic_not_found", topic=missing[0])
        self._sessions[wid] = {
            name: self.topics[name] if place.get("tail") else place["from_seq"]
            for name, place in body["topics"].items()
            if name in self.topics
        }
        places = {
            name: {"from_seq": seq, "head_seq": self.topics[name], "earliest_seq": 1, "epoch": 5}
            for name, seq in self._sessions[wid].items()
        }
        return answered(200, {"wid": wid, "stream_url": f"/v0/watch/{wid}", "topics": places})

    def _stream(self, cursors: dict[str, int], cut: Any) -> Iterator[Any]:
        yield STREAM_HEAD
        body = b"retry: 2000\n\n: hb\n\n" + b"".join(self._frames(cursors))
        if cut == "shutdown":
            half = body[: body.find(b"\n\n", len(body) // 2) + 2]
            error = {"code": "server_shutting_down", "message": "going"}
            yield chunk(half + frame("error", error))
            yield b"0\r\n\r\n"
        elif cut is None:
            yield chunk(body)
            yield HANG
        else:
            if cut:
                yield chunk(body[:cut])
            yield CUT

    def _frames(self, cursors: dict[str, int]) -> Iterator[bytes]:
        for name, cursor in cursors.items():
            head = self.topics[name]
            start = max(0, cursor - 1) if self._overlap else cursor
            for low in range(start, head, self._batch):
                high = min(low + self._batch, head)
                records = [
                    {"$seq": n, "$ts": 1, "data": f"{name}{n}"} for n in range(low + 1, high + 1)
                ]
                yield frame("record", {
                    "topic": name, "from_seq": low, "head_seq": head, "records": records,
                    "to_seq": high,
                })  # fmt: skip
            yield frame("caught-up", {"topic": name, "head_seq": head})


def wanted(topics: dict[str, int]) -> dict[str, list[str]]:
    return {name: [f"{name}{n}" for n in range(1, head + 1)] for name, head in topics.items()}
