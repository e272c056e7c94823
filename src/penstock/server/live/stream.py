"""The one stream of a browser: everything that its tabs show, page by page, over SSE."""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from urllib.parse import parse_qsl

from penstock.kernel.errors import PenstockError
from penstock.kernel.units import KIB
from penstock.protocol.errors import InvalidRequest, NotAcceptable, NotFound, Throttled
from penstock.protocol.pages import Page, address_of, page_of, parse_address, words_of
from penstock.protocol.routes import EVENT_STREAM, READ, TEXT, Param
from penstock.server.api.answers import encode
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.queries import check_accepts_events
from penstock.server.live.channels import Address, Channel
from penstock.server.live.hub import Hub, Place
from penstock.server.push import sse

PAGES_MAX: Final = 16
"""Pages of one stream."""
RETRY: Final = b"retry: 1000\n\n"
WAITING_BYTES_MAX: Final = 64 * KIB
"""A viewer for which more waits in its socket is left out, until it has read all of that."""
_LOGGER: Final = logging.getLogger("penstock.server")


@ROUTES.get(
    "/v0/live",
    scope=READ,
    query=(
        Param("on", TEXT, f"The address of a page, like `/topics/x?tag=a`; up to {PAGES_MAX}."),
        Param("page", TEXT, "Instead of `on`: the name of a page, like `topic`."),
        Param("name", TEXT, "With `page`: the name in its path."),
        Param("id", TEXT, "With `page`: the id in its path."),
        Param("after", TEXT, "The same as `Last-Event-ID`, which a new EventSource cannot send."),
    ),
    headers=(Param("Last-Event-ID", TEXT, "Go on behind this event."),),
    errors=(NotFound, NotAcceptable, Throttled),
    media=EVENT_STREAM,
)
async def live(call: Call) -> None:
    """Pages of the dashboard: their twins, then what changes in them once a second."""
    check_accepts_events(call.request.headers)
    hub = call.context.live
    if hub is None:
        raise NotFound("this server has no dashboard")
    addresses = asked_for(call.request.query)
    if call.exchange.is_head:
        call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS).close()
        return
    after = dict(parse_qsl(call.request.query, errors="replace")).get("after", "")
    place = read_id(call.request.headers.get("last-event-id", after), hub)
    with call.context.caps.opening(call.grant):
        LiveStream(call, hub, addresses, place).start()


def asked_for(query: str) -> list[Address]:
    """The pages that a stream is asked for."""
    values = parse_qsl(query, errors="replace")
    asked = list(dict.fromkeys(value for key, value in values if key == "on"))
    if not asked:
        asked = [_named(dict(values))]
    if len(asked) > PAGES_MAX:
        raise InvalidRequest(f"a stream has at most {PAGES_MAX} pages, not {len(asked)}")
    return [parse_on(on) for on in asked]


def parse_on(on: str) -> Address:
    """The page at an address, or `NotFound`."""
    found = parse_address(on)
    if found is None:
        raise NotFound(f"there is no page {on[:200]}")
    page, names, query = found
    return Address(on, page, tuple(names.items()), tuple(query.items()))


def canonical(page: Page, names: dict[str, str], query: dict[str, str]) -> Address:
    """A page under the address that its twin gives it."""
    on = address_of(page, names, query)
    return Address(on, page, tuple(names.items()), tuple(query.items()))


def _named(values: dict[str, str]) -> str:
    page = page_of(values.get("page", ""))
    if page is None:
        raise InvalidRequest("say which pages to stream: on=/topics/x, or page=topic&name=x")
    missing = [word for word in words_of(page.path) if not values.get(word)]
    if missing:
        raise InvalidRequest(f"page {page.name} needs {' and '.join(missing)}")
    return address_of(page, values, values)


def read_id(text: str, hub: Hub) -> Place | None:
    """Up to where a viewer was told; None if it cannot go on from there."""
    boot, _, rest = text.partition(".")
    at, _, event = rest.partition(".")
    if boot != hub.twins.identity.boot or not (at.isdecimal() and event.isdecimal()):
        return None
    if len(text) > 100:
        return None
    place = Place(int(at), int(event))
    return place if hub.may_resume(place) else None


class LiveStream:
    """One viewer."""

    def __init__(self, call: Call, hub: Hub, addresses: list[Address], place: Place | None) -> None:
        self._context, self._grant, self._hub = call.context, call.grant, hub
        self._session = call.session
        self._addresses, self._after = addresses, place
        self._stream = call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS)
        self._stream.on_room = self._has_room
        self._stream.on_gone = self._stop
        self._channels: list[Channel] = []
        self._peeked: dict[Channel, int] = {}
        self._place = place or Place(0, 0)
        self._lags = False
        self._ended = False
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        """What the viewer has not read yet."""
        return self._stream.buffered

    def start(self) -> None:
        """Begin to push."""
        self._context.streams[self] = self._session
        self._task = self._context.spawn(self._run())

    def end(self, farewell: sse.Farewell = sse.SHUTDOWN) -> None:
        """The server stops, or the session has ended."""
        self._goodbye(*farewell)

    def tell(self, channel: Channel, event: bytes, data: bytes) -> bool:
        """Send an event; False if the viewer does not read, and got nothing."""
        if self._lags or self._ended:
            return False
        if self.waiting_bytes > WAITING_BYTES_MAX or not self._stream.write(
            self._event(event, data)
        ):
            self._lags = True
            self._room.clear()
            self._stream.has_room()  # so that it tells when it has room again
            return False
        self._told(channel, event)
        return True

    async def room(self) -> None:
        """Wait until the viewer reads again, and tell it what it missed of the pages it has."""
        await asyncio.sleep(0)  # where a stream that has ended stops
        await self._room.wait()
        await self._catch_up()

    def _event(self, event: bytes, data: bytes) -> bytes:
        boot = self._hub.twins.identity.boot.encode()
        return sse.frame(b"%b.%d.%d" % (boot, self._hub.at_ms, self._hub.last_event), event, data)

    def _told(self, channel: Channel, event: bytes) -> None:
        self._place = Place(self._hub.at_ms, self._hub.last_event)
        if channel.peek is not None and event in (b"state", b"peek"):
            self._peeked[channel] = channel.peek.to_seq

    async def _run(self) -> None:
        try:
            self._stream.write(RETRY)
            for address in self._addresses:
                channel = await self._hub.join(self, address, self._grant, self._after)
                self._channels.append(channel)
            await self._closed.wait()
        except asyncio.CancelledError:
            pass
        except PenstockError as error:
            self._goodbye(error.code, error.message)
        except Exception:
            _LOGGER.exception("a stream of the dashboard failed")
            self._goodbye("internal", "the server failed; its log has the reason")
        finally:
            for channel in self._channels:
                self._hub.leave(self, channel)
            self._context.streams.pop(self, None)
            self._context.caps.close_stream(self._grant)

    def _has_room(self) -> None:
        self._room.set()
        if self._lags and not self._ended and len(self._channels) == len(self._addresses):
            self._context.spawn(self._catch_up())

    async def _catch_up(self) -> None:
        """The viewer reads again: tell it all that it missed in one piece, or nothing."""
        missed = {each: await self._hub.missed(each, self._place) for each in self._channels}
        if self._ended or not self._lags:
            return
        now_ms = self._context.clock.now_ms()
        pieces: list[bytes] = []
        for channel, each in missed.items():
            pieces += [self._event(*piece) for piece in self._hub.missing(channel, each)]
            peek, after = channel.peek, self._peeked.get(channel)
            members = None if peek is None or after is None else peek.gap(after, now_ms)
            if members is not None:
                pieces.append(self._event(b"peek", channel.told(members)))
        if not pieces or self._stream.write(b"".join(pieces)):
            self._lags = False
            for channel in missed:
                self._told(channel, b"peek")
                self._hub.told_all(self, channel)
        else:
            self._room.clear()
            self._stream.has_room()

    def _goodbye(self, code: str, text: str) -> None:
        if not self._ended:
            self._stream.write(
                b"event: bye\ndata: %b\n\n" % encode({"code": code, "message": text})
            )
            self._stream.close()
            self._stop()

    def _stop(self) -> None:
        self._ended = True
        self._closed.set()
        if self._task is not None:
            self._task.cancel()
