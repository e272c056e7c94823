"""What Spark's side says to a topic server: one small HTTP client for drivers and tasks.

It is made of plain settings, so that it travels to Spark's Python workers, and imports little, so
that a worker starts soon. A server that does not answer is asked again until the time is over.
"""

from __future__ import annotations

import http.client
import io
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlsplit

import pyarrow as pa

from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Gone, Rejected, Unavailable

ARROW: Final = "application/vnd.apache.arrow.stream"
PAGE_RECORDS: Final = 65_536
PAGE_BYTES: Final = 32 << 20
"""The most that a server puts into one page."""

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_AGAIN: Final = (429, 503)
_RANDOM: Final = Random()


class TopicMissing(Rejected):
    """There is no topic of that name."""

    code = "topic_missing"


class RequestRefused(Rejected):
    """The topic server will not do it, now or later."""

    code = "request_refused"


class RecordsGone(Gone):
    """Records of the range were evicted by the topic's cap or age."""

    code = "records_gone"


class TopicRecreated(Gone):
    """The topic of that name is another one than before: it was deleted and made again."""

    code = "topic_recreated"


class TopicServerDown(Unavailable):
    """The topic server could not be reached, or could not answer, in the time allowed."""

    code = "topic_server_down"


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """A topic on a server, and how long to try to reach it."""

    url: str
    topic: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Rejected(f"expected a URL such as http://127.0.0.1:4000, found {self.url!r}")
        if not self.topic:
            raise Rejected("expected the name of a topic, found an empty one")
        if not self.timeout_s > 0:
            raise Rejected(f"expected timeout_s above 0, found {self.timeout_s}")


@dataclass(frozen=True, slots=True)
class State:
    """Where a topic stands."""

    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    size_bytes: int
    idempotency_window_ms: int


class Page(NamedTuple):
    """Some records after a seq. `next_seq` is where to go on; what is lost is in `tombstone`."""

    rows: pa.Table
    next_seq: int
    head_seq: int
    epoch: int
    tombstone: Mapping[str, Any] | None


class TopicConnection:
    """One connection to the server of a topic, made again when it is lost. For one thread."""

    def __init__(self, address: TopicAddress) -> None:
        self.address = address
        parts = urlsplit(address.url)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._tls = parts.scheme == "https"
        self._path = parts.path.rstrip("/") + "/v0/topics/" + quote(address.topic, safe=":")
        self._headers = {"User-Agent": "penstock-spark"}
        if address.api_key is not None:
            self._headers["Authorization"] = f"Bearer {address.api_key}"
        self._accept = ARROW if self._host in _LOOPBACK else f"{ARROW};compression=lz4"
        self._connection: http.client.HTTPConnection | None = None

    def state(self) -> State:
        """What the topic holds now."""
        found = json.loads(self._call("GET", "?touch=true"))
        return State(
            found["epoch"], found["head_seq"], found["earliest_seq"], found["count"],
            found["bytes"], found["config"]["idempotency_window_ms"],
        )  # fmt: skip

    def page(
        self, from_seq: int, limit: int, epoch: int | None = None, *, wait_ms: int = 0
    ) -> Page:
        """The records after a seq, as many as fit a page; if there are none, waits for some."""
        wanted = {
            "from_seq": from_seq, "limit": min(limit, PAGE_RECORDS), "include_tags": True,
            "max_batch_bytes": PAGE_BYTES,
        }  # fmt: skip
        if epoch is not None:
            wanted["epoch"] = epoch
        if wait_ms:
            wanted["wait_ms"] = wait_ms
        body = self._call("POST", "/diff", json.dumps(wanted).encode(), accept=self._accept)
        try:
            with pa.ipc.open_stream(io.BytesIO(body)) as reader:
                rows = reader.read_all()
        except pa.ArrowInvalid as error:
            raise RequestRefused(
                f"expected an Arrow stream from {self.address.url}, found {body[:40]!r}"
            ) from error
        facts = {key: json.loads(value) for key, value in rows.schema.metadata.items()}
        return Page(
            rows, facts[b"next_from_seq"], facts[b"head_seq"], facts[b"epoch"], facts[b"tombstone"]
        )

    def write(self, records: bytes, *, idempotency_key: str, create: bool) -> Mapping[str, Any]:
        """Append an array of records, all or none; the key makes it safe to send it again."""
        head = json.dumps({"idempotency_key": idempotency_key, "create": create}).encode()
        body = b'%b,"records":%b}' % (head[:-1], records)
        found: Mapping[str, Any] = json.loads(self._call("POST", "?return_seqs=false", body))
        return found

    def close(self) -> None:
        """End the connection; the next call makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, target: str, body: bytes = b"", *, accept: str = "") -> bytes:
        """Ask until there is an answer. Everything that is asked here may be asked twice."""
        backoff = Backoff(50, 2_000, 0.5, self.address.timeout_s * 1_000)
        begun = time.monotonic()
        failures = 0
        while True:
            status, answer = self._once(method, target, body, accept)
            if status and status not in _AGAIN and status < 500:
                if status >= 400:
                    raise self._refusal(status, answer)
                return answer
            failures += 1
            elapsed_ms = (time.monotonic() - begun) * 1_000
            delay_ms = backoff.next_ms(failures, elapsed_ms=elapsed_ms, random=_RANDOM)
            if delay_ms is None:
                said = f"{status or ''} {answer[:200].decode(errors='replace')}".strip()
                raise TopicServerDown(
                    f"expected an answer from {self.address.url} for topic "
                    f"{self.address.topic!r}, found {said} after {failures} tries in "
                    f"{elapsed_ms / 1_000:.1f} s"
                )
            time.sleep(delay_ms / 1_000)

    def _once(self, method: str, target: str, body: bytes, accept: str) -> tuple[int, bytes]:
        """Status and body of an answer; 0 and what went wrong if there was none."""
        if self._connection is None:
            self._connection = self._connect()
        headers = dict(self._headers)
        if body:
            headers["Content-Type"] = "application/json"
        if accept:
            headers["Accept"] = accept
        try:
            self._connection.request(method, self._path + target, body or None, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return 0, f"{type(error).__name__}: {error}".encode()

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s = min(self.address.timeout_s, 30.0)
        if self._tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _refusal(self, status: int, answer: bytes) -> Rejected:
        try:
            error = json.loads(answer)["error"]
            code, message = error["code"], error["message"]
        except (ValueError, KeyError, TypeError):
            code, message = "", answer[:200].decode(errors="replace")
        if code == "topic_not_found":
            return TopicMissing(
                f"expected a topic {self.address.topic!r} at {self.address.url}, found none"
            )
        return RequestRefused(
            f"expected {self.address.url} to take a request for topic {self.address.topic!r}, "
            f"found {status} {code}: {message}"
        )
