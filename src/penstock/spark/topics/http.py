"""Spark's access to a topic server, through the client, for drivers and tasks.

It is made of plain settings, so that it travels to Spark's Python workers, and imports little of
the client, so that a worker starts soon. A server that does not answer is asked again until the
time is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.client.blocking.runner import Runner
from penstock.client.calls import (
    ApiCall,
    arrow_table,
    diff_arrow,
    get_topic,
    write_body,
    write_encoded,
)
from penstock.client.retry import RetryPolicy
from penstock.client.settings import ClientSettings
from penstock.client.transports.blocking import Transport
from penstock.kernel.errors import Gone, Rejected, Unavailable
from penstock.protocol.answers import Written
from penstock.protocol.errors import (
    CallError,
    OutcomeUnknown,
    ServerUnavailable,
    Throttled,
    TopicNotFound,
)

PAGE_RECORDS: Final = 65_536
PAGE_BYTES: Final = 32 << 20
"""The most that a server puts into one page."""

_READ_S_MAX: Final = 30.0
_RANDOM: Final = Random()
_RETRY: Final = RetryPolicy(base_ms=50, cap_ms=2_000, jitter=0.5)

T = TypeVar("T")


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
    """The topic was deleted and recreated under the same name."""

    code = "topic_recreated"


class TopicServerDown(Unavailable):
    """The topic server could not be reached, or could not answer, in the time allowed."""

    code = "topic_server_down"


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """A topic on a server, and how long to try to reach it."""

    url: str
    """Of one server, or those of several nodes of a cluster, joined by commas."""
    topic: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for url in self.url.split(","):
            parts = urlsplit(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise Rejected(f"{url!r} is not a URL such as http://127.0.0.1:4000")
        if not self.topic:
            raise Rejected("the name of the topic is empty")
        if not self.timeout_s > 0:
            raise Rejected(f"timeout_s must be above 0, not {self.timeout_s}")


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """Where a topic stands."""

    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    size_bytes: int
    idempotency_window_ms: int


class RecordPage(NamedTuple):
    """Some records after a seq. `next_seq` is where to go on; what is lost is in `tombstone`."""

    rows: pa.Table
    next_seq: int
    head_seq: int
    epoch: int
    tombstone: Mapping[str, Any] | None


class TopicConnection:
    """The connection to the server of a topic, made again when it is lost. For one thread."""

    def __init__(self, address: TopicAddress) -> None:
        self.address = address
        self._settings = ClientSettings(
            address.url,
            address.api_key,
            connect_timeout_s=min(address.timeout_s, _READ_S_MAX),
            read_timeout_s=min(address.timeout_s, _READ_S_MAX),
            timeout_s=address.timeout_s,
            retry=_RETRY,
            gzip=False,  # pages are compressed as Arrow where that is worth it
        )
        self._transport: Transport | None = None

    def state(self) -> TopicBounds:
        """What the topic holds now."""
        found = self.run(get_topic(self.address.topic, touch=True))
        if found.epoch is None:
            raise RequestRefused(f"{self.address.url} does not tell epochs; it needs an upgrade")
        return TopicBounds(
            found.epoch, found.head_seq, found.earliest_seq, found.count, found.size_bytes,
            found.config.idempotency_window_ms,
        )  # fmt: skip

    def page(
        self,
        from_seq: int,
        limit: int,
        epoch: int | None = None,
        *,
        wait_ms: int = 0,
        bytes_max: int = PAGE_BYTES,
    ) -> RecordPage:
        """The records after a seq, as many as fit a page; if there are none, waits for some."""
        call = diff_arrow(
            self.address.topic,
            from_seq=from_seq,
            limit=min(limit, PAGE_RECORDS),
            include_tags=True,
            max_batch_bytes=min(bytes_max, PAGE_BYTES),
            epoch=epoch,
            wait_ms=wait_ms,
            lz4=not self._settings.is_local,
        )
        with self._refusals():
            rows = arrow_table(self._client().run(call))
        facts = {key: json.loads(value) for key, value in rows.schema.metadata.items()}
        return RecordPage(
            rows, facts[b"next_from_seq"], facts[b"head_seq"], facts[b"epoch"], facts[b"tombstone"]
        )

    def write(self, records: bytes, *, idempotency_key: str, create: bool) -> Written:
        """Append an array of records, all or none; the key makes it safe to send it again."""
        body = write_body(records, idempotency_key=idempotency_key, create=create)
        call = write_encoded(
            self.address.topic, body, idempotency_key=idempotency_key, return_seqs=False
        )
        return self.run(call)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, call: ApiCall[T]) -> T:
        """Retry until there is an answer; every call made here is idempotent."""
        with self._refusals():
            return self._client().run(call)

    def _client(self) -> Runner:
        if self._transport is None:
            self._transport = Transport(self._settings)
        return Runner(self._settings, self._transport, _RANDOM)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raise the client's errors as those that this side tells apart."""
        try:
            yield
        except CallError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: CallError) -> Rejected | Unavailable:
        topic, url = self.address.topic, self.address.url
        if isinstance(error, TopicNotFound):
            return TopicMissing(f"there is no topic {topic!r} at {url}")
        if isinstance(error, ServerUnavailable | Throttled | OutcomeUnknown):
            return TopicServerDown(
                f"no answer from {url} for topic {topic!r} in {self.address.timeout_s:g} s: {error}"
            )
        return RequestRefused(f"{url} refused a request for topic {topic!r}: {error}")
