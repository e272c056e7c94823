"""The servers of a client, and the one that it talks to now: a cluster has several.

Any node answers for all of them, so the client stays with one while it answers, and moves on to the
next when it does not. Both transports share this.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.client.settings import ClientSettings
from penstock.client.wire import HttpAnswer, RequestEncoder
from penstock.protocol.errors import LEADER_HEADER

_MISDIRECTED: Final = 421
_UNAVAILABLE: Final = 503


class Server(NamedTuple):
    """One server: the settings with its URL alone, and how requests to it are encoded."""

    settings: ClientSettings
    encoder: RequestEncoder


class Servers:
    """All servers of a client, in the order in which they are tried. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        self._all = [Server(each, RequestEncoder(each)) for each in settings.servers]
        self._at = 0

    @property
    def current(self) -> Server:
        """The one to talk to."""
        return self._all[self._at]

    def failed(self, server: Server) -> None:
        """It could not be reached or did not answer: go on to the next, unless that was done."""
        if server is self.current:
            self._at = (self._at + 1) % len(self._all)

    def answered(self, server: Server, answer: HttpAnswer) -> None:
        """Go on also if the answer says that another one may know more: that one, or the next."""
        if answer.status in (_MISDIRECTED, _UNAVAILABLE):
            self.failed(server)
        named = answer.headers.get(LEADER_HEADER)
        if answer.status == _MISDIRECTED and named is not None:
            urls = [each.settings.url for each in self._all]
            self._at = urls.index(named) if named in urls else self._at
