"""A transport without sockets, and an application on an engine in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.system import SystemClock
from penstock.log.stores import open_store
from penstock.server.api.app import TopicApplication
from penstock.server.api.auth import CapLimits, Caps, parse_keys
from penstock.server.api.call import Context
from penstock.server.api.sessions import Authenticator
from penstock.server.http.message import Request
from penstock.server.live.hub import Hub
from penstock.server.live.site import Site
from penstock.server.live.twins import Identity, Twins
from penstock.server.push.watching import WatcherSessions
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from tests.waiting import until

DEADLINE_S = 5.0


class FakeStream:
    """Takes `room` writes, then none until `read` is called."""

    def __init__(self, room: int | None = None) -> None:
        self.on_room: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self.room = room
        self.text = b""
        self.closed = False
        self.broken = False
        self.buffered = 0

    def write(self, data: bytes) -> bool:
        if self.broken:
            raise OSError("broken")
        if self.closed or self.room == 0:
            return False
        if self.room is not None:
            self.room -= 1
        self.text += data
        return True

    def has_room(self) -> bool:
        return not self.closed and self.room != 0

    def direct(self) -> None:
        return None

    def rest(self, data: memoryview) -> None:
        raise AssertionError("it has no socket that could leave anything over")

    def close(self) -> None:
        self.closed = True

    def read(self, room: int | None) -> None:
        self.room = room
        assert self.on_room is not None
        self.on_room()

    def events(self) -> list[tuple[str, Any]]:
        """The events so far: name and data."""
        found = []
        for block in self.text.split(b"\n\n"):
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
            if b"event" in fields:
                found.append((fields[b"event"].decode(), json.loads(fields[b"data"])))
        return found

    def ids(self) -> list[str]:
        """The ids of the events so far."""
        lines = self.text.split(b"\n")
        return [line[4:].decode() for line in lines if line.startswith(b"id: ")]


class FakeSocket(FakeStream):
    """A WebSocket: messages instead of bytes."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__(room)
        self.on_text: Callable[[bytes], None] | None = None
        self.on_binary: Callable[[bytes], None] | None = None
        self.messages: list[Any] = []
        self.code: int | None = None

    def send(self, text: bytes) -> bool:
        if not self.write(b""):
            return False
        self.messages.append(json.loads(text))
        return True

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed = True
        self.code = code

    def say(self, **fields: Any) -> None:
        assert self.on_text is not None
        self.on_text(json.dumps(fields).encode())

    def ops(self) -> list[str]:
        return [message["op"] for message in self.messages]

    def payloads(self) -> list[Any]:
        pushed = [message for message in self.messages if message["op"] == "record"]
        return [record["data"] for message in pushed for record in message["records"]]


class FakeExchange:
    """One request; remembers its answer."""

    is_head = False
    is_gone = False
    half_closed = False
    peer = "192.0.2.1"

    def __init__(self, request: Request, room: int | None = None) -> None:
        self.request = request
        self.on_gone: Callable[[], None] | None = None
        self.status: int | None = None
        self.body = b""
        self.headers: dict[bytes, bytes] = {}
        self.content_type = b""
        self.live: FakeStream | None = None
        self.trouble = ""  # "no stream" can be had, or "no write" to it
        self._room = room

    def reply(
        self, status: int, body: bytes, *, content_type: bytes = b"application/json", headers=()
    ) -> None:
        assert self.status is None, "one answer to a request"
        self.status, self.body, self.content_type = status, body, content_type
        self.headers = dict(headers)

    def reply_json(self, body: bytes) -> None:
        self.reply(200, body)

    def expect_again(self, handle: Callable[[Any], None]) -> None:
        self.again = handle

    def stream(self, content_type: bytes = b"text/event-stream", headers=()) -> FakeStream:
        if self.trouble == "no stream":
            raise OSError("broken")
        self.status, self.content_type, self.headers = 200, content_type, dict(headers)
        self.live = FakeStream(self._room)
        self.live.broken = self.trouble == "no write"
        return self.live

    def upgrade(self, subprotocol: str | None = None) -> FakeSocket:
        if "upgrade" not in self.request.headers:
            raise Rejected("expected an upgrade")
        self.status = 101
        self.headers = {b"protocol": (subprotocol or "").encode()}
        self.live = FakeSocket(self._room)
        return self.live

    @property
    def may_be_gone(self) -> bool:
        return self.is_gone or self.half_closed

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


class Client:
    """Talks to an application as a transport would."""

    def __init__(self, application: TopicApplication) -> None:
        self.application = application
        self.engine = application.context.engine
        self.clock: Any = application.context.clock

    def start(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        room: int | None = None,
        trouble: str = "",
        **headers: str,
    ) -> FakeExchange:
        """WorkerHandle a request over and do not wait for its answer."""
        path, _, query = target.partition("?")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = b""
        if body is not None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            named.setdefault("content-type", "application/json")
        handed_on = "GET" if method == "HEAD" else method
        exchange = FakeExchange(Request(handed_on, path, query, named, raw), room)
        exchange.is_head = method == "HEAD"
        exchange.trouble = trouble
        self.application(exchange)
        return exchange

    async def ask(self, method: str, target: str, body: Any = None, **headers: Any) -> FakeExchange:
        """WorkerHandle a request over and wait for its answer."""
        exchange = self.start(method, target, body, **headers)
        await until(lambda: exchange.status is not None)
        return exchange

    async def write(self, topic: str, *payloads: Any, **fields: Any) -> FakeExchange:
        records = [{"data": payload} for payload in payloads]
        return await self.ask("POST", f"/v0/topics/{topic}", {"records": records, **fields})

    async def watch(self, room: int | None = None, **body: Any) -> tuple[FakeStream, str]:
        made = await self.ask("POST", "/v0/watch", body)
        assert made.status == 200, made.body
        exchange = self.start("GET", made.json["stream_url"], room=room)
        assert exchange.live is not None, exchange.body
        return exchange.live, made.json["stream_url"]

    async def socket(self, room: int | None = None) -> FakeSocket:
        exchange = await self.ask("GET", "/v0/ws", upgrade="websocket", room=room)
        assert isinstance(exchange.live, FakeSocket)
        return exchange.live


@asynccontextmanager
async def serving(
    *,
    keys: str = "",
    opened: bool = True,
    sessions_max: int = 0,
    clock: Clock | None = None,
    engine_clock: Clock | None = None,
    site: Site | None = None,
    tick_s: float = 0.02,
    **caps: int,
):
    """An application on an engine in memory; with a dashboard, its frames come every `tick_s`."""
    engine = Engine(
        open_store("memory", "unused"), EngineOptions(), clock=engine_clock or SystemClock()
    )
    clock = clock or engine_clock or SystemClock()
    sessions = WatcherSessions(
        iter(f"wid_{n:022}" for n in range(1_000)).__next__, sessions_max=sessions_max
    )
    context = Context(
        engine,
        clock,
        Caps(CapLimits(**caps)),
        sessions,
        Authenticator(parse_keys(keys), clock),
        watch_topics_max=4,
        site=site,
    )
    if site is not None:
        twins = Twins(context, Identity("1.0", "boot", "127.0.0.1:4000", 0))
        context.live = Hub(twins, tick_s=tick_s, peek_s=tick_s)
    application = TopicApplication(context)
    if opened:
        await engine.open()
        application.open()
    try:
        yield Client(application)
    finally:
        application.drain()
        await application.settle(DEADLINE_S)
        if opened:
            await engine.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop of its own."""
    asyncio.run(asyncio.wait_for(test(), 4 * DEADLINE_S))
