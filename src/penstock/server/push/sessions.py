"""Watch sessions: cursors that outlive a connection, until unused for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.protocol.errors import Throttled
from penstock.server.api.auth import Grant
from penstock.server.push.watching import WatchRequest

SESSION_TTL_MS: Final = 300_000
NO_EPOCH: Final = 0
"""An epoch that no topic has."""
_COLLECT_MS: Final = 1_000
"""Minimum interval between scans of all sessions, while there is room for more."""


@dataclass(slots=True)
class Session:
    """A watch: its request, its owner, and the cursor of every topic.

    `epochs` tells which incarnation of a topic its cursor belongs to.
    """

    wid: str
    request: WatchRequest
    grant: Grant | None
    cursors: dict[str, int]
    epochs: dict[str, int]
    used_ms: int
    lives: dict[str, int] = field(default_factory=dict)
    """The epochs of topics that were recreated during the session."""
    streams: int = 0
    step_out: Callable[[], None] | None = None
    """Updates the cursors, while a shared watch keeps them."""

    def resume(self, places: dict[str, int], lives: dict[str, int]) -> None:
        """Go back to the client's position; never forward, and only in known topics.

        A position in an earlier incarnation of a topic is ignored: the client does not know this
        one yet.
        """
        for name, seq in places.items():
            cursor = self.cursors.get(name)
            if cursor is None:
                continue
            if name in self.lives and lives.get(name) != self.lives[name]:
                self.cursors[name] = 0
                self.epochs[name] = lives.get(name, NO_EPOCH)
                del self.lives[name]
            elif seq < cursor:
                self.cursors[name] = seq

    def enter(self, topic: str, epoch: int) -> None:
        """The cursor of a topic now belongs to this incarnation of it."""
        if self.epochs.get(topic, epoch) != epoch:
            self.lives[topic] = epoch
        self.epochs[topic] = epoch


class Sessions:
    """Every watch session of the server."""

    def __init__(
        self, new_id: Callable[[], str], *, sessions_max: int = 0, ttl_ms: int = SESSION_TTL_MS
    ) -> None:
        self._new_id = new_id
        self._sessions_max = sessions_max
        self.ttl_ms = ttl_ms
        self._sessions: dict[str, Session] = {}
        self._collected_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def check_room(self, now_ms: int) -> None:
        """Refuse another session if the limit is reached."""
        is_full = self._sessions_max and len(self._sessions) >= self._sessions_max
        if is_full or now_ms - self._collected_ms >= _COLLECT_MS:
            self.collect(now_ms)
        if self._sessions_max and len(self._sessions) >= self._sessions_max:
            raise Throttled(
                f"expected at most {self._sessions_max} watch sessions, found no room",
                limit="max_watch_sessions",
                max=self._sessions_max,
            )

    def add(self, request: WatchRequest, grant: Grant | None, now_ms: int) -> Session:
        """Begin a session. The caller, which knows the topics, sets its cursors."""
        session = Session(self._new_id(), request, grant, {}, {}, now_ms)
        self._sessions[session.wid] = session
        return session

    def find(self, wid: str, now_ms: int) -> Session | None:
        """A session that has not expired."""
        session = self._sessions.get(wid)
        if session is not None and self._is_over(session, now_ms):
            del self._sessions[wid]
            return None
        return session

    def remove(self, wid: str) -> None:
        """End a session."""
        self._sessions.pop(wid, None)

    def collect(self, now_ms: int) -> None:
        """Remove sessions without a stream that were unused for a while."""
        self._collected_ms = now_ms
        sessions = self._sessions.items()
        for wid in [wid for wid, session in sessions if self._is_over(session, now_ms)]:
            del self._sessions[wid]

    def _is_over(self, session: Session, now_ms: int) -> bool:
        return not session.streams and now_ms - session.used_ms > self.ttl_ms
