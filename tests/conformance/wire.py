"""A plain HTTP client for the suite: one request, one connection, everything with a deadline."""

from __future__ import annotations

import functools
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

DEADLINE_S = 10.0
"""How long anything that should happen may take before the test fails."""

JSON = {"Content-Type": "application/json"}
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
T = TypeVar("T")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url if "//" in url else f"//{url}")
        return cls(parts.hostname or "127.0.0.1", parts.port or 4000)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Answer:
    """What came back: the status, the headers (any case) and the body as bytes."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __str__(self) -> str:
        return f"{self.status} {self.body[:2000]!r}"


class Api:
    """Requests to one server, with or without a key. May be used by several threads."""

    def __init__(self, address: Address, key: str | None = None) -> None:
        self.address = address
        self.key = key

    def with_key(self, key: str | None) -> Api:
        return Api(self.address, key)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """Send a request. A body that is no bytes is sent as JSON, `None` as no body."""
        connection = self.connect()
        try:
            return self.exchange(connection, method, path, body, headers, **query)
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=3 * DEADLINE_S)

    def exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """Send a request on a connection that stays open and read its answer."""
        payload, send_headers = encode(body)
        if self.key is not None:
            send_headers["Authorization"] = f"Bearer {self.key}"
        send_headers.update(headers or {})
        if query:
            path += "?" + urlencode(query)
        connection.request(method, path, body=payload, headers=send_headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())

    def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> Answer:
        return self.request("GET", path, None, headers, **query)

    def put(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        return self.request("PUT", path, body, headers)

    def post(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> Answer:
        return self.request("POST", path, body, headers, **query)

    def delete(self, path: str, **query: Any) -> Answer:
        return self.request("DELETE", path, None, None, **query)

    # What most tests do most of the time; each insists on success.

    def make(self, topic: str, **config: Any) -> dict[str, Any]:
        """Create (or change) a topic."""
        return done(self.put(at(topic), config))

    def write(self, topic: str, *data: Any, **fields: Any) -> dict[str, Any]:
        """Write one record for each datum; `tag`, `node` and `meta` are given to each of them."""
        shared = {key: fields.pop(key) for key in ("tag", "meta") if key in fields}
        records = [{"data": datum, **shared} for datum in data]
        return done(self.post(at(topic), {"records": records, **fields}))

    def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> dict[str, Any]:
        return done(self.post(at(topic, "diff"), {"from_seq": from_seq, **fields}))

    def state(self, topic: str) -> dict[str, Any]:
        return done(self.get(at(topic), touch="false"))

    def route(self, router: str, source: str, dest: str, **fields: Any) -> dict[str, Any]:
        body = {"source": source, "dest": dest, **fields}
        return done(self.put(router_at(router), body))

    def watch(self, *topics: str, **fields: Any) -> str:
        """Open a watch session from the start of each topic; the path of its stream."""
        fields.setdefault("topics", {topic: {} for topic in topics})
        return str(done(self.post("/v0/watch", fields))["stream_url"])

    def claim(self, queue: str, node: str = "n1", **fields: Any) -> list[dict[str, Any]]:
        return list(done(self.post(at(queue, "claim"), {"node": node, **fields}))["claimed"])


def encode(body: Any) -> tuple[bytes | None, dict[str, str]]:
    """A body as bytes, and the headers that go with it."""
    if body is None:
        return None, {}
    if isinstance(body, bytes):
        return body, dict(JSON)
    return json.dumps(body).encode(), dict(JSON)


def at(topic: str, *more: str) -> str:
    """The path of a topic, or of something below it."""
    return "/".join(["/v0/topics", quote(topic, safe=":"), *more])


def router_at(router: str) -> str:
    return "/v0/routers/" + quote(router, safe=":")


def done(answer: Answer) -> dict[str, Any]:
    """The JSON of an answer that must be a success."""
    assert answer.status in (200, 201), str(answer)
    body: dict[str, Any] = answer.json
    return body


def records(*data: Any, **fields: Any) -> dict[str, Any]:
    """The body of a write."""
    return {"records": [{"data": datum} for datum in data], **fields}


def payloads(found: dict[str, Any]) -> list[Any]:
    """The data of the records of a diff or of a record frame."""
    return [record["data"] for record in found["records"]]


def seqs(found: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in found["records"]]


def blanks_outside_strings(body: bytes) -> bool:
    """Whether JSON text has any white space between its tokens."""
    return re.search(rb"\s", _STRING.sub(b"", body)) is not None


def until(probe: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Ask again and again until the answer is true, and give it; fail at the deadline."""
    pause = threading.Event()
    end = time.monotonic() + deadline_s
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {deadline_s} s; last found {found!r}"
        pause.wait(0.01)


def at_once(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Make all calls at the same time, each on a thread; their results in order."""
    wanted = list(calls)
    barrier = threading.Barrier(len(wanted))

    def together(call: Callable[[], T]) -> T:
        barrier.wait(DEADLINE_S)
        return call()

    running = [Later(functools.partial(together, call)) for call in wanted]
    return [each.result(6 * DEADLINE_S) for each in running]


class Later:
    """A call on a thread of its own whose result, or failure, is asked for later."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._future: Future[Any] = Future()
        self._call = call
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)

    def result(self, deadline_s: float = DEADLINE_S) -> Any:
        """Wait for the result; a call that failed raises here."""
        return self._future.result(deadline_s)
