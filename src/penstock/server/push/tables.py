"""The event stream of a table: its rows at a snapshot, then what each commit behind it changed.

The warehouse is read in threads. One task for all watchers learns of new snapshots, and what a
commit changed is encoded once for all watches at the same place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.kernel.errors import PenstockError
from penstock.protocol import events
from penstock.protocol.errors import (
    InvalidRequest,
    NoContents,
    NotAcceptable,
    TableNotFound,
    Throttled,
)
from penstock.protocol.routes import EVENT_STREAM, READ, TEXT, Param
from penstock.server.api.answers import encode
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.queries import check_accepts_events
from penstock.server.api.warehouse import ERRORS, TablesDesk, desk
from penstock.server.push import sse

if TYPE_CHECKING:
    from penstock.tables.notify import NotifierCall
    from penstock.tables.pages import TablePage
    from penstock.tables.warehouse import Warehouse

PAGE_ROWS: Final = 1_000
PART_CHANGES: Final = 1_000
CHANGES_MAX: Final = 100_000
"""A commit that changed more rows is told as a reset: the rows follow again."""
HEARTBEAT_S: Final = 15.0
LOOK_S: Final = 0.25
"""How often the lake is looked at without a notification: other tools do not send any."""
KEPT_STEPS: Final = 32
_LOGGER: Final = logging.getLogger("penstock.server")


@ROUTES.get(
    "/v0/tables/{name}/watch",
    scope=READ,
    named="table",
    query=(
        Param("after", TEXT, "`id` of an event: only what changed behind it."),
        Param("token", TEXT, "The key, for browsers."),
    ),
    headers=(Param("Last-Event-ID", TEXT, "As `after`, sent by browsers that connect again."),),
    errors=(*ERRORS, TableNotFound, NoContents, NotAcceptable, Throttled),
    media=EVENT_STREAM,
    key_in_query=True,
)
async def watch_table(call: Call) -> None:
    """Rows of a table at a snapshot, then the changes behind it, as an event stream."""
    check_accepts_events(call.request.headers)
    tables = desk(call)
    asked = call.request.headers.get("last-event-id") or call.query.text("after")
    after = None if not asked else read_id(asked)
    name, uuid, snapshot = await tables.do(lambda warehouse: warehouse.watched(call.name))
    if call.exchange.is_head:
        call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS).close()
        return
    with call.context.caps.opening(call.grant):
        TableStream(call, tables, name, after, (uuid, snapshot)).start()


def read_id(text: str) -> tuple[str, int]:
    """Which table, and up to which snapshot: the id of an event."""
    uuid, _, number = text.rpartition(":")
    if not uuid or not number.isdecimal() or len(text) > 100:
        raise InvalidRequest(f"{text[:100]!r} is not the id of an event of a table")
    return uuid, int(number)


class TableNews:
    """Tells streams of new snapshots. Runs while there are streams."""

    def __init__(self, tables: TablesDesk) -> None:
        self._tables = tables
        self._streams = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._latest = -1
        self._steps: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def enter(self) -> None:
        """A stream begins."""
        self._streams += 1
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._follow())

    def leave(self) -> None:
        """A stream ended."""
        self._streams -= 1
        if not self._streams and self._task is not None:
            self._task.cancel()

    @property
    def changed(self) -> asyncio.Event:
        """Set when there is a newer snapshot than when this was asked for."""
        return self._changed

    def known(self, uuid: str, after: int) -> Any:
        """What another stream was told at the same place."""
        return self._steps.get((uuid, after))

    def keep(self, uuid: str, after: int, step: Any) -> None:
        """Keep what a stream was told, for others at the same place."""
        self._steps[uuid, after] = step
        while len(self._steps) > KEPT_STEPS:
            self._steps.popitem(last=False)

    async def _follow(self) -> None:
        notifier: NotifierCall | None = None
        try:
            while True:
                if notifier is None or not notifier.is_open:
                    notifier = await self._tables.do(lambda warehouse: warehouse.notifier())
                with suppress(PenstockError):  # streams find out themselves
                    self._tell(await self._tables.do(_latest))
                await self._pause(notifier)
        finally:
            if notifier is not None:
                notifier.close()

    async def _pause(self, notifier: NotifierCall) -> None:
        """Wait until the coordinator notifies, or for a while."""
        if not notifier.is_open:
            await asyncio.sleep(LOOK_S)
            return
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        descriptor = notifier.fileno()
        loop.add_reader(descriptor, heard.set)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), LOOK_S)
        finally:
            loop.remove_reader(descriptor)
        notifier.receive()

    def _tell(self, latest: int) -> None:
        if latest != self._latest:
            self._latest = latest
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()


class TableStream:
    """One watcher of a table."""

    def __init__(
        self,
        call: Call,
        tables: TablesDesk,
        name: str,
        after: tuple[str, int] | None,
        now: tuple[str, int],
    ) -> None:
        self._context, self._grant, self._tables = call.context, call.grant, tables
        self._name, self._after, self._now = name, after, now
        self._session = call.session
        self._news = _news_of(tables)
        self._stream = call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS)
        self._room = asyncio.Event()
        self._stream.on_room = self._room.set
        self._stream.on_gone = self._stop
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def start(self) -> None:
        """Begin to push."""
        self._context.streams[self] = self._session
        self._news.enter()
        self._task = self._context.spawn(self._run())

    def end(self, farewell: sse.Farewell = sse.SHUTDOWN) -> None:
        """The server stops, or the session has ended."""
        if not self._ended:
            self._stream.write(_error(*farewell))
            self._stream.close()
            self._stop()

    def _stop(self) -> None:
        self._ended = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._stream.write(sse.RETRY)
            await self._push()
        except asyncio.CancelledError:
            pass
        except PenstockError as error:
            self._say_goodbye(error.code, error.message)
        except Exception:
            _LOGGER.exception("the stream of table %r failed", self._name)
            self._say_goodbye("internal", "the server failed; its log tells")
        finally:
            self._news.leave()
            self._context.streams.pop(self, None)
            self._context.caps.close_stream(self._grant)

    def _say_goodbye(self, code: str, text: str) -> None:
        if not self._ended:
            self._ended = True
            self._stream.write(_error(code, text))
            self._stream.close()

    async def _push(self) -> None:
        """Rows if the watcher has none, then changes for ever."""
        from penstock.tables.changes import ResetNeeded, Unchanged

        at = self._after
        if at is None:
            at = await self._rows(*self._now)
        told = -1
        while True:
            news = self._news.changed
            found = await self._next(*at)
            if isinstance(found, ResetNeeded):
                reset = events.TableReset(table=self._name, reason=found.reason, message=found.text)
                await self._send(_frame(b"", "reset", reset))
                at = await self._rows(*await self._tables.do(partial(_begin, name=self._name)))
            elif isinstance(found, Unchanged):
                at = at[0], found.snapshot
                if told != found.snapshot:
                    told = found.snapshot
                    await self._send(self._caught_up(*at))
                await self._wait(news)
            else:
                frames, snapshot = found
                for frame in frames:
                    await self._send(frame)
                at = at[0], snapshot

    async def _next(self, uuid: str, after: int) -> Any:
        """What changed next: why not, that nothing did, or frames and where they lead."""
        known = self._news.known(uuid, after)
        if known is not None:
            return known
        name = self._name

        def work(warehouse: Warehouse) -> Any:
            from penstock.tables.publishing import WatchedChange

            found = warehouse.next_change(name, uuid, after, rows_max=CHANGES_MAX)
            if not isinstance(found, WatchedChange):
                return found
            return change_frames(name, uuid, found), found.snapshot

        found = await self._tables.do(work)
        if isinstance(found, tuple) and isinstance(found[0], list):
            self._news.keep(uuid, after, found)
        return found

    async def _rows(self, uuid: str, snapshot: int) -> tuple[str, int]:
        """Send the contents at a snapshot, page by page."""
        offset: int | None = 0
        name = self._name
        while offset is not None:
            page = await self._tables.do(partial(_page, name=name, at=snapshot, offset=offset))
            offset = page.next_offset
            place = b"" if offset is not None else _id(uuid, snapshot)
            await self._send(await asyncio.to_thread(_page_frame, name, page, place))
        return uuid, snapshot

    async def _send(self, frame: bytes) -> None:
        """Write a frame when the watcher has taken those before it."""
        while not self._stream.has_room():
            self._room.clear()
            await self._room.wait()
        if not self._stream.write(frame):
            raise asyncio.CancelledError

    async def _wait(self, news: asyncio.Event) -> None:
        """Wait for a new snapshot; sends heartbeats meanwhile."""
        while not news.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), HEARTBEAT_S)
            if not news.is_set():
                await self._send(sse.HEARTBEAT)

    def _caught_up(self, uuid: str, snapshot: int) -> bytes:
        event = events.TableCaughtUp(table=self._name, snapshot=snapshot)
        return _frame(_id(uuid, snapshot), "caught-up", event)


def _news_of(tables: TablesDesk) -> TableNews:
    if tables.news is None:
        tables.news = TableNews(tables)
    found: TableNews = tables.news
    return found


def change_frames(name: str, uuid: str, found: Any) -> list[bytes]:
    """The frames of one commit. Only the last has an id: a commit counts as a whole."""
    parts = max(1, -(-len(found.changes) // PART_CHANGES))
    frames = []
    for part in range(parts):
        told = found.changes[part * PART_CHANGES : (part + 1) * PART_CHANGES]
        event = {
            "table": name, "after": found.after, "snapshot": found.snapshot, "changes": told,
            "frontier": found.frontier, "part": part, "parts": parts,
        }  # fmt: skip
        place = _id(uuid, found.snapshot) if part == parts - 1 else b""
        frames.append(_frame(place, "changes", event))
    return frames


def _begin(warehouse: Warehouse, *, name: str) -> tuple[str, int]:
    _, uuid, snapshot = warehouse.watched(name)
    return uuid, snapshot


def _page(warehouse: Warehouse, *, name: str, at: int, offset: int) -> TablePage:
    return warehouse.rows(name, at=at, offset=offset, limit=PAGE_ROWS)


def _page_frame(name: str, page: TablePage, place: bytes) -> bytes:
    from penstock.tables.changes import plain_rows

    event = {
        "table": name, "snapshot": page.snapshot, "rows": plain_rows(page.rows),
        "offset": page.offset, "rows_total": page.rows_total,
    }  # fmt: skip
    return _frame(place, "rows", event)


def _latest(warehouse: Warehouse) -> int:
    return warehouse.lake.latest().id


def _id(uuid: str, snapshot: int) -> bytes:
    return f"{uuid}:{snapshot}".encode()


def _frame(place: bytes, event: str, data: Any) -> bytes:
    """One event; without an id, a watcher that connects again is where it was before."""
    made = sse.frame(place, event.encode(), encode(data))
    return made if place else made.partition(b"\n")[2]


def _error(code: str, text: str) -> bytes:
    return b"event: error\ndata: %b\n\n" % encode({"code": code, "message": text})
