"""Which web pages may use the server, based on a request's Host, Origin and Sec-Fetch-Site.

A browser sends what any page asks it to send to any address, this server's too. It says in `Origin`
and `Sec-Fetch-Site` which page that was, and in `Host` the name that the page used. Programs send
neither of the first two.

>>> doors = Origins(allowed_origins=["https://app.example"])
>>> doors.sender({"host": "localhost:4000"}) is USUAL
True
>>> doors.sender({"host": "localhost:4000", "origin": "http://evil.example"}).check(changes=True)
Traceback (most recent call last):
    ...
penstock.protocol.errors.ForeignOrigin: the request comes from a page of http://evil.example: \
to let it in, add it to allowed_origins (penstock serve --allowed-origin)
>>> doors.sender({"host": "localhost:4000", "origin": "https://app.example"}).cors[0]
(b'Access-Control-Allow-Origin', b'https://app.example')
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.kernel.errors import Rejected
from penstock.server.http.message import USUAL, Answer, Sender

ANY: Final = "*"
NULL: Final = "null"
"""The origin that browsers send for a file or a sandboxed frame."""
_PORTS: Final = {"http": 80, "https": 443}
_FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]\\%,]+)(?::([0-9]{0,5}))?")
_ORIGIN: Final = re.compile(r"(https?)://(.+)")
_TOKENS: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_ECHO_MAX: Final = 200
"""How many characters of a header an error repeats."""
_EXPOSED: Final = (
    b"Allow, Retry-After, WWW-Authenticate, X-Penstock-Caught-Up, X-Penstock-Earliest-Seq, "
    b"X-Penstock-Epoch, X-Penstock-Head-Seq, X-Penstock-Lag, X-Penstock-Next-From-Seq, "
    b"X-Penstock-Next-Offset, X-Penstock-Offset, X-Penstock-Rows-Total, X-Penstock-Snapshot, "
    b"X-Penstock-Tombstone"
)
_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE"
_HEADERS: Final = (
    "accept", "authorization", "content-encoding", "content-type", "idempotency-key",
    "last-event-id",
)  # fmt: skip
_PREFLIGHT_S: Final = b"600"
"""How long a browser may cache the answer to a preflight."""


class Authority(NamedTuple):
    """A host and optional port: in lower case, without a trailing dot."""

    host: str
    port: int | None


class Origins:
    """The policy: whose pages may change something, and which hosts the server answers to.

    `allowed_hosts` None: any, as where keys are required. With DNS rebinding, a page counts as the
    server's own origin to its browser; only its Host header gives it away.
    """

    def __init__(
        self,
        *,
        allowed_origins: Iterable[str] = (),
        allowed_hosts: Iterable[str] | None = None,
        is_tls: bool = False,
    ) -> None:
        self._origins = frozenset(map(parse_origin, allowed_origins))
        self._hosts = None if allowed_hosts is None else frozenset(map(parse_host, allowed_hosts))
        # Behind a proxy that terminates TLS, this server's own pages have an https origin.
        self._schemes = ("https",) if is_tls else ("http", "https")

    @property
    def varies(self) -> bool:
        """Whether answers depend on the Origin, for the Vary header."""
        return bool(self._origins) and ANY not in self._origins

    def sender(self, headers: Mapping[str, str]) -> Sender:
        """What the headers of a request say about its sender."""
        host = headers.get("host")
        foreign_host = None
        if host is not None and not self._answers_to(host):
            foreign_host = host[:_ECHO_MAX]
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site")
        if origin is None and site is None and foreign_host is None:
            return USUAL
        foreign_page = None
        if origin is not None and not self._is_own(origin, host):
            foreign_page = origin[:_ECHO_MAX] or "no name"
        elif site is not None and _FOREIGN_SITES & set(_words(site)):
            foreign_page = f"another origin (Sec-Fetch-Site: {site[:_ECHO_MAX]})"
        is_same_origin = foreign_host is None and foreign_page is None
        if self._is_allowed(origin):
            return Sender(
                foreign_host=foreign_host,
                origin=origin or "",
                cors=() if origin is None else self._cors(origin),
                is_same_origin=is_same_origin,
            )
        if is_same_origin:
            return USUAL
        return Sender(
            foreign_host=foreign_host,
            foreign_page=foreign_page,
            origin=(origin or "")[:_ECHO_MAX],
            is_same_origin=False,
        )

    def _answers_to(self, host: str) -> bool:
        if self._hosts is None or ANY in self._hosts:
            return True
        found = authority(host)
        if found is None:
            return False
        name = found.host
        return (
            name == "localhost" or _is_loopback(name) or bool({name, str_of(found)} & self._hosts)
        )

    def _is_allowed(self, origin: str | None) -> bool:
        if ANY in self._origins:
            return True
        return origin is not None and _normal(origin) in self._origins

    def _is_own(self, origin: str, host: str | None) -> bool:
        """Whether an origin is the one under which the request reached the server."""
        match = _ORIGIN.fullmatch(origin.lower())
        if match is None or match[1] not in self._schemes:
            return False
        page, here = authority(match[2]), authority(host or "")
        if page is None or here is None:
            return False
        port = _PORTS[match[1]]
        return (page.host, page.port or port) == (here.host, here.port or port)

    def _cors(self, origin: str) -> tuple[tuple[bytes, bytes], ...]:
        allowed = ANY if ANY in self._origins else origin
        return (
            (b"Access-Control-Allow-Origin", allowed.encode("latin-1")),
            (b"Access-Control-Expose-Headers", _EXPOSED),
        )


def preflight(method: str, headers: Mapping[str, str], sender: Sender) -> Answer | None:
    """The answer to a CORS preflight; None if the request is not one.

    Needs no key: browsers send no credentials with a preflight.
    """
    if method != "OPTIONS" or "access-control-request-method" not in headers:
        return None
    sender.check(changes=True)
    if not sender.cors:
        return None
    asked = [name.lower() for name in _words(headers.get("access-control-request-headers", ""))]
    names = dict.fromkeys((*_HEADERS, *filter(_TOKENS.fullmatch, asked[:64])))
    lines = [
        (b"Access-Control-Allow-Methods", _METHODS),
        (b"Access-Control-Allow-Headers", ", ".join(names).encode()),
        (b"Access-Control-Max-Age", _PREFLIGHT_S),
    ]
    if headers.get("access-control-request-private-network") == "true":
        lines.append((b"Access-Control-Allow-Private-Network", b"true"))
    return Answer(204, b"", headers=tuple(lines))


def parse_origin(text: str) -> str:
    """An origin that is let in, as browsers write it; raises `Rejected`.

    >>> parse_origin("HTTPS://App.example:443")
    'https://app.example'
    """
    found = text.strip()
    if found in (ANY, NULL):
        return found
    normal = _normal(found)
    if normal is None:
        raise Rejected(
            f"{text!r} is not an origin: write allowed_origins like https://app.example "
            "or http://localhost:3000"
        )
    return normal


def parse_host(text: str) -> str:
    """A host that the server answers to, with a port or without; raises `Rejected`.

    >>> parse_host("Example.org."), parse_host("[FE80::1]:4000"), parse_host("fe80::1")
    ('example.org', '[fe80::1]:4000', 'fe80::1')
    """
    found = text.strip()
    if found == ANY:
        return found
    is_bare_address = _is_address(found)
    parsed = authority(f"[{found}]" if is_bare_address and ":" in found else found)
    if parsed is None:
        raise Rejected(
            f"{text!r} is not a host: write allowed_hosts like example.org or 10.0.0.5:4000"
        )
    return parsed.host if parsed.port is None else str_of(parsed)


def authority(text: str) -> Authority | None:
    """A Host header, or what follows the scheme of an origin; None if it is neither.

    >>> authority("LOCALHOST.:4000"), authority("[::1]"), authority("a@b")
    (Authority(host='localhost', port=4000), Authority(host='::1', port=None), None)
    """
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return None
    host = match[1].strip("[]") if match[1].startswith("[") else match[1].removesuffix(".")
    return Authority(host, int(match[2]) if match[2] else None) if host else None


def str_of(found: Authority) -> str:
    """A host with its port, as in a Host header."""
    name = f"[{found.host}]" if ":" in found.host else found.host
    return name if found.port is None else f"{name}:{found.port}"


def _normal(origin: str) -> str | None:
    """An origin in lower case, without the port that its scheme implies."""
    if origin == NULL:
        return NULL
    match = _ORIGIN.fullmatch(origin.lower())
    found = authority(match[2]) if match is not None else None
    if match is None or found is None:
        return None
    port = None if found.port == _PORTS[match[1]] else found.port
    return f"{match[1]}://{str_of(Authority(found.host, port))}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found.is_loopback or (mapped is not None and mapped.is_loopback)


def _words(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",") if word.strip()]
