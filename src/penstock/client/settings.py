"""How a client finds its server, and the limits of all it does. Settings can be pickled.

>>> settings = ClientSettings("https://penstock.example:8443/base/", api_key="secret")
>>> settings.address
Address(host='penstock.example', port=8443, tls=True, path='/base')
>>> "secret" in repr(settings)
False
>>> [each.url for each in ClientSettings("a:4000, b:4000").servers]
['http://a:4000', 'http://b:4000']

A contended write is retried along a back-off; values out of range are clamped:

>>> policy = CommitBackpressure(jitter=0)
>>> [round(policy.nominal_ms(conflict), 3) for conflict in (1, 2, 3, 6, 8, 12)]
[0.781, 1.562, 3.125, 25.0, 100.0, 1000.0]
>>> CommitBackpressure(base_ms=50, cap_ms=1, jitter=7, window_ms=-1)
CommitBackpressure(base_ms=50, cap_ms=50, jitter=1.0, window_ms=0.0)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock.client.retry import RetryPolicy
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB, MIB

DEFAULT_URL: Final = "http://127.0.0.1:4000"
_SHORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):\d+(/.*)?|localhost(/.*)?")
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class Address(NamedTuple):
    """Where to connect; `path` precedes every route, for servers behind a proxy."""

    host: str
    port: int
    tls: bool
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client. Every wait and every buffer has its limit here."""

    url: str = DEFAULT_URL
    """Where the server is; `host:port` alone is taken as http.

    For a cluster several of its nodes, joined by commas: the client moves on to the next one when
    one cannot be reached, does not answer, or has no leader in reach.
    """
    api_key: str | None = field(default=None, repr=False)
    """The API key, if the server requires one."""
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 10.0
    """The longest silence of the server in the middle of an exchange."""
    timeout_s: float = 30.0
    """The longest a call may take, including all its tries.

    Keep it below the topics' `idempotency_window_ms`: a key protects a write only within it.
    """
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    reconnect: Backoff = field(
        default_factory=lambda: Backoff(base_ms=100, cap_ms=5_000, jitter=0.5, window_ms=300_000)
    )
    """How a watch or a work stream reconnects; its window limits consecutive failures."""
    connections_max: int = 16
    """Connections for calls; a call beyond them waits its turn."""
    streams_max: int = 64
    """Watch and work streams open at the same time."""
    gzip: bool | None = None
    """Compress bodies both ways; None does it unless the server is on this machine."""
    gzip_bytes_min: int = 4 * KIB
    """Smaller requests are not compressed."""
    answer_bytes_max: int = 256 * MIB
    stream_buffer_bytes: int = 4 * MIB
    """How much a stream reads ahead of its reader before it applies back-pressure."""
    ca_file: str | None = None
    """Certificates to trust with https, instead of the system's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _whole_urls(self.url))
        for each in self.servers:
            _ = each.address
        for name in ("connect_timeout_s", "read_timeout_s", "timeout_s"):
            if not getattr(self, name) > 0:
                raise Rejected(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("connections_max", "streams_max", "answer_bytes_max", "stream_buffer_bytes"):
            if getattr(self, name) < 1:
                raise Rejected(f"{name} must be at least 1, not {getattr(self, name)}")
        key = self.api_key
        if key is not None and not (key.isascii() and key.isprintable()):
            raise Rejected("the API key must consist of printable ASCII characters")

    @property
    def servers(self) -> tuple[ClientSettings, ...]:
        """These settings for each of the URLs alone."""
        given: object = self.url  # any value from the program
        if not isinstance(given, str) or "," not in given:
            return (self,)
        return tuple(replace(self, url=url) for url in self.url.split(","))

    @property
    def address(self) -> Address:
        """Where the URL points to; of several, the first."""
        if len(self.servers) > 1:
            return self.servers[0].address
        given: object = self.url  # any value from the program: a port alone is not a URL
        parts = urlsplit(given if isinstance(given, str) else "")
        if parts.scheme not in ("http", "https") or not parts.hostname or not _plain(self.url):
            raise Rejected(f"{self.url!r} is not the URL of a server: write it like {DEFAULT_URL}")
        tls = parts.scheme == "https"
        port = _port(parts, self.url) or (443 if tls else 80)
        return Address(parts.hostname, port, tls, parts.path.rstrip("/"))

    @property
    def compresses(self) -> bool:
        """Whether bodies are compressed."""
        return not self.is_local if self.gzip is None else self.gzip

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, where compression costs more than it saves."""
        return all(each.address.host in _LOOPBACK for each in self.servers)


def _whole_urls(url: str) -> str:
    given: object = url  # any value from the program
    if not isinstance(given, str) or "," not in given:
        return whole_url(url)
    return ",".join(whole_url(each.strip()) for each in url.split(",") if each.strip())


def whole_url(url: str) -> str:
    """The URL of a server; `http://` is what a host and a port are left without.

    >>> whole_url("localhost:4000"), whole_url("[::1]:4000"), whole_url("https://a.example/x")
    ('http://localhost:4000', 'http://[::1]:4000', 'https://a.example/x')
    """
    given: object = url  # any value from the program
    is_short = isinstance(given, str) and _SHORT.fullmatch(given) is not None
    return f"http://{url}" if is_short else url


def _port(parts: SplitResult, url: str) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise Rejected(f"the port in {url!r} must be between 0 and 65535") from None


def _plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url


@dataclass(frozen=True, slots=True)
class CommitBackpressure(Backoff):
    """When an event whose commit met a conflict runs again, and when it gives up.

    The first delays are tiny, because most conflicts are over once fresh state has arrived; they
    double while a conflict lasts. The window runs from an event's first conflict; with a window of
    0 the first conflict is final. Values out of range are clamped.
    """

    base_ms: float = 25 / 32
    cap_ms: float = 1_000.0
    jitter: float = 0.5
    window_ms: float = 30_000.0


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """What a runtime may hold, and how long it waits for a server that does not answer."""

    pending_max: int = 256
    """Unfinished events of one lane and one type."""
    coalesced_max: int = 256
    """Events that may be merged into one pending event when its lane is full."""
    ahead_max: int = 16
    """Events of a lane whose handlers ran while the first of them waits for the server."""
    away: Backoff = field(
        default_factory=lambda: Backoff(base_ms=50, cap_ms=1_000, jitter=0.5, window_ms=300_000)
    )
    """How an unanswered commit is sent again; after its window the event fails."""

    def __post_init__(self) -> None:
        for name in ("pending_max", "ahead_max"):
            if getattr(self, name) < 1:
                raise Rejected(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.coalesced_max < 0:
            raise Rejected(f"coalesced_max must be at least 0, not {self.coalesced_max}")
