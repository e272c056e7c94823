"""Connections as the edge's core sees them: what each has under way, and what is counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.ingest.frames import Fragment, FrameError, FrameReader
from penstock.ingest.reassemble import EdgeDevice


class Link(Protocol):
    """A connection, as the core sees it."""

    def send(self, data: bytes) -> None:
        """Send frames."""
        ...

    def pause(self) -> None:
        """Read no more for now."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def end(self, error: FrameError) -> None:
        """Send an ERROR frame and close."""
        ...


class Session:
    """One connection and what it has under way."""

    __slots__ = (
        "acks", "device", "frame_began_ms", "heard_ms", "held", "held_bytes", "is_open", "link",
        "opened_ms", "paused", "reader", "stalled",
    )  # fmt: skip

    def __init__(self, link: Link, reader: FrameReader, now_ms: int) -> None:
        self.link = link
        self.reader = reader
        self.device: EdgeDevice | None = None
        self.is_open = True
        self.paused = False
        self.stalled: list[Fragment] = []
        """Fragments that wait for memory, the first of them first."""
        self.held: deque[Fragment] = deque()
        """Fragments that wait for credits, all of them after those stalled."""
        self.held_bytes = 0
        self.acks: list[int] = []
        self.opened_ms = self.heard_ms = now_ms
        self.frame_began_ms: int | None = None


Item: TypeAlias = tuple[Session, Fragment]
OnReject: TypeAlias = Callable[[Session, FrameError, bytes], None]


@dataclass(slots=True)
class EdgeCounters:
    """What was counted since the start."""

    connections: int = 0
    frames: int = 0
    bytes_in: int = 0
    messages_acked: int = 0
    messages_again: int = 0
    frame_errors: int = 0
    unauthorized: int = 0
    too_slow: int = 0
    superseded: int = 0
