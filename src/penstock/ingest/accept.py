"""The edge without its sockets: which connections are read, what waits, what is acknowledged.

Connections are `Link`s; their owner feeds their bytes in, takes batches of whole messages out, and
reports when those are durable. Two windows bound what is in between: `accept` holds fragments
that are not yet looked at, `reassemble` holds whole messages that are not yet durable. A connection
whose fragments find no credit is read no further; it is never dropped for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.flow.channel import WindowedChannel
from penstock.ingest.frames import (
    FRAGMENT,
    OFFENDING_BYTES_MAX,
    VERSION,
    ErrorCode,
    Fragment,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Ping,
    Welcome,
    encode_ack,
    encode_pong,
    encode_welcome,
)
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.reassemble import WINDOW, EdgeDevice, Look, Message, Outcome, Reassembler, Seen
from penstock.ingest.sessions import EdgeCounters, Item, Link, OnReject, Session
from penstock.ingest.tokens import DeviceTokens
from penstock.kernel.clock import Clock

FRAGMENT_SLOT_BYTES: Final = 2_048
"""What a slot is taken to hold until the first second was measured."""


class EdgeCore:
    """Every device and connection of an edge, and the two windows they share."""

    def __init__(
        self,
        limits: EdgeLimits,
        clock: Clock,
        *,
        tokens: DeviceTokens | None = None,
        on_reject: OnReject = lambda _session, _error, _bytes: None,
    ) -> None:
        self.limits = limits
        self.counters = EdgeCounters()
        self.devices: dict[str, EdgeDevice] = {}
        self.sessions: set[Session] = set()
        self.reassembler = Reassembler(limits)
        slot_bytes = FRAGMENT_SLOT_BYTES
        self.accept = WindowedChannel[Item](1, "accept", slot_bytes=slot_bytes)
        self.reassemble = WindowedChannel[Message](1, "reassemble", slot_bytes=slot_bytes)
        self.stages = (self.accept, self.reassemble)
        self.held_bytes = 0
        self.buffered_bytes = 0
        self.on_message: Callable[[], None] = lambda: None
        """Called when whole messages wait for the topic."""
        self._clock = clock
        self._tokens = tokens
        self._on_reject = on_reject
        self._waiting: deque[Session] = deque()  # for credits of accept
        self._stalled: deque[Session] = deque()  # for memory to reassemble in
        self._ackers: set[Session] = set()
        self._body_bytes_max = limits.fragment_bytes_max + FRAGMENT.size
        self._pumping = False
        self._is_crowded = False
        self._is_draining = False

    # Connections

    def opened(self, link: Link) -> Session:
        """Register a new connection; closes it at once if there are too many."""
        session = Session(link, FrameReader(self._body_bytes_max), self._clock.monotonic_ms())
        self.counters.connections += 1
        if len(self.sessions) >= self.limits.connections_max:
            session.is_open = False
            link.end(
                FrameError(
                    ErrorCode.TOO_MANY_DEVICES,
                    f"{self.limits.connections_max} connections are open: try again later",
                )
            )
            return session
        self.sessions.add(session)
        session.paused = self._is_draining
        return session

    def drain(self) -> None:
        """Stop reading all connections; messages already received are still processed."""
        self._is_draining = True
        for session in self.sessions:
            self._pause(session)

    def closed(self, session: Session) -> None:
        """A connection is closed. Complete messages are kept; the device resends the others."""
        if not session.is_open:
            return
        session.is_open = False
        self.sessions.discard(session)
        self.held_bytes -= session.held_bytes
        session.held_bytes = 0
        if session.held:
            self._waiting.remove(session)
            session.held.clear()
        if session.stalled:
            self._stalled.remove(session)
            session.stalled.clear()
        device = session.device
        if device is not None and device.session is session:
            device.session = None
            self.reassembler.drop_all(device)
            self.pump()
        self._uncrowd()

    def feed(self, session: Session, data: bytes) -> None:
        """Bytes of a connection."""
        if not session.is_open:
            return
        began_ns = self._clock.monotonic_ns()
        now_ms = began_ns // 1_000_000
        frames = session.reader.feed(data)
        session.heard_ms = now_ms
        self.counters.bytes_in += len(data)
        if frames:
            session.frame_began_ms = now_ms if session.reader.held_bytes else None
            try:
                self._take(session, frames, began_ns)
            except FrameError as error:
                self.fail(session, error, data[:OFFENDING_BYTES_MAX])
                return
        elif session.frame_began_ms is None:
            session.frame_began_ms = now_ms
        wrong = session.reader.error
        if wrong is not None:
            self.fail(session, wrong, session.reader.offending)

    def fail(self, session: Session, error: FrameError, offending: bytes = b"") -> None:
        """End a connection with an ERROR frame, count it, and keep what was wrong with it."""
        if not session.is_open:
            return
        self.counters.frame_errors += error.error_code < ErrorCode.TOO_MANY_DEVICES
        self.flush()
        if error.error_code < ErrorCode.TOO_MANY_DEVICES:
            self._on_reject(session, error, offending)
        self.closed(session)
        session.link.end(error)

    def sweep(self) -> None:
        """Called every second: closes connections that exceed a time limit."""
        now_ms = self._clock.monotonic_ms()
        for device, message_id in self.reassembler.overdue(now_ms):
            if device.session is None or message_id not in device.partials:
                continue
            if device.session.paused or self.accept.items:
                # The rest of it may wait for us, and not we for it.
                self.reassembler.extend(device, message_id, now_ms)
            else:
                self._too_slow(device.session, "whole message", self.limits.message_ms)
        for session in list(self.sessions):
            if session.paused:
                continue
            if session.device is None and now_ms - session.opened_ms > self.limits.hello_ms:
                self._too_slow(session, "HELLO", self.limits.hello_ms)
            elif (
                session.frame_began_ms is not None
                and now_ms - session.frame_began_ms > self.limits.frame_ms
            ):
                self._too_slow(session, "whole frame", self.limits.frame_ms)
            elif now_ms - session.heard_ms > self.limits.idle_ms:
                error = f"no frame for {self.limits.idle_ms} ms: send PING while idle"
                self.fail(session, FrameError(ErrorCode.IDLE, error))

    def _too_slow(self, session: Session, what: str, span_ms: int) -> None:
        self.counters.too_slow += 1
        self.fail(session, FrameError(ErrorCode.TOO_SLOW, f"no {what} within {span_ms} ms"))

    # Frames

    def _take(self, session: Session, frames: list[Frame], began_ns: int) -> None:
        self.counters.frames += len(frames)
        if session.device is not None and not any(type(each) is not Fragment for each in frames):
            self._admit(session, frames, began_ns)  # type: ignore[arg-type]  # all are fragments
            return
        fragments: list[Fragment] = []
        for frame in frames:
            if type(frame) is Fragment and session.device is not None:
                fragments.append(frame)
            else:
                self._control(session, frame)
        if fragments:
            self._admit(session, fragments, began_ns)

    def _control(self, session: Session, frame: Frame) -> None:
        if session.device is None:
            if not isinstance(frame, Hello):
                found = type(frame).__name__.upper()
                raise FrameError(
                    ErrorCode.NO_HELLO, f"the first frame is {found}: send HELLO first"
                )
            self._hello(session, frame)
        elif isinstance(frame, Ping):
            session.link.send(encode_pong(frame.payload))
        else:
            found = type(frame).__name__.upper()
            raise FrameError(ErrorCode.BAD_TYPE, f"expected FRAGMENT or PING, found {found}")

    def _hello(self, session: Session, hello: Hello) -> None:
        if self._tokens is not None and not self._tokens.allows(hello.device, hello.token):
            self.counters.unauthorized += 1
            raise FrameError(ErrorCode.UNAUTHORIZED, "wrong token for this device")
        if not hello.version_min <= VERSION <= hello.version_max:
            raise FrameError(
                ErrorCode.BAD_VERSION,
                f"expected a device of version {VERSION}, found versions "
                f"{hello.version_min} to {hello.version_max}",
            )
        device = self.devices.get(hello.device)
        if device is None:
            if len(self.devices) >= self.limits.devices_max:
                raise FrameError(
                    ErrorCode.TOO_MANY_DEVICES,
                    f"{self.limits.devices_max} devices are known: try again later",
                )
            device = self.devices[hello.device] = EdgeDevice(hello.device)
        if device.session is not None:
            self.counters.superseded += 1
            text = "the device has a newer connection"
            self.fail(device.session, FrameError(ErrorCode.SUPERSEDED, text))
        device.session = session
        session.device = device
        limits = self.limits
        session.link.send(
            encode_welcome(
                Welcome(
                    VERSION,
                    limits.fragment_bytes_max,
                    limits.message_bytes_max,
                    limits.partial_bytes_max,
                    WINDOW,
                    max(device.seen.top, max(device.pending, default=0)),
                    limits.idle_ms,
                )
            )
        )

    def _admit(self, session: Session, fragments: list[Fragment], began_ns: int) -> None:
        """Pass on fragments as far as credits allow; hold the rest and pause reading."""
        taken = 0
        if not session.held:
            size_bytes = sum([len(each.payload) for each in fragments]) // len(fragments)
            items = [(session, fragment) for fragment in fragments]
            taken = self.accept.try_send_many(items, size_bytes)
        if taken:
            took_ns = self._clock.monotonic_ns() - began_ns
            self.accept.busy_ns += took_ns
            self.accept.latency.record(took_ns // len(fragments), taken)
        if taken < len(fragments):
            self._hold(session, fragments[taken:])
        self.pump()

    def _hold(self, session: Session, fragments: Sequence[Fragment]) -> None:
        if not session.held:
            self._waiting.append(session)
        session.held.extend(fragments)
        size_bytes = sum([len(each.payload) for each in fragments])
        session.held_bytes += size_bytes
        self.held_bytes += size_bytes
        self._pause(session)
        if not self._is_crowded and self.held_bytes > self.limits.held_bytes_max:
            self._is_crowded = True
            for other in self.sessions:
                if other.device is None or not other.device.reserved_bytes:
                    self._pause(other)

    def _pause(self, session: Session) -> None:
        if not session.paused:
            session.paused = True
            session.link.pause()

    def _resume(self, session: Session) -> None:
        if self._is_draining or session.held or session.stalled:
            return
        if session.paused and session.is_open:
            session.paused = False
            now_ms = self._clock.monotonic_ms()
            session.heard_ms = now_ms
            if session.frame_began_ms is not None:
                session.frame_began_ms = now_ms
            session.link.resume()

    def _uncrowd(self) -> None:
        if self._is_crowded and self.held_bytes <= self.limits.held_bytes_max // 2:
            self._is_crowded = False
            for session in list(self.sessions):
                self._resume(session)

    # Flow

    def pump(self) -> None:
        """Advance everything as far as credits allow. Call it when credits or memory are freed."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._reassemble_some() or self._retry_stalled() or self._admit_waiting():
                pass
        finally:
            self._pumping = False
        self.flush()
        self._uncrowd()

    @property
    def _room(self) -> int:
        """How many whole messages may be taken on."""
        room = self.reassemble.room
        left_bytes = self.limits.buffered_bytes_max - self.buffered_bytes
        if room * self.limits.fragment_bytes_max <= left_bytes:
            return room
        return min(room, self._count_within(left_bytes))

    def _count_within(self, left_bytes: int) -> int:
        """How many of the next fragments fit into so many bytes, the last one in part."""
        count = 0
        for _, fragment in self.accept.items:
            if left_bytes <= 0:
                break
            left_bytes -= len(fragment.payload)
            count += 1
        return count if self.accept.items else int(left_bytes > 0)

    def _reassemble_some(self) -> bool:
        room = self._room
        if not self.accept.items:
            return False
        if room <= 0:
            self.reassemble.refusals += 1
            return False
        items = self.accept.receive_up_to(room)
        self._gather(items)
        self.accept.done(len(items))
        return True

    def _gather(self, items: Iterable[Item]) -> None:
        messages: list[Message] = []
        now_ms = self._clock.monotonic_ms()
        take = self.reassembler.take
        for session, fragment in items:
            device = session.device
            if device is None or not session.is_open:
                continue
            if session.stalled:
                self._stall(session, fragment)
                continue
            try:
                outcome = take(device, fragment, now_ms)
            except FrameError as error:
                self.fail(session, error, fragment.payload[:OFFENDING_BYTES_MAX])
                continue
            if type(outcome) is Message:
                messages.append(outcome)
            elif outcome is Outcome.DURABLE:
                self.counters.messages_again += 1
                self._acknowledge(session, fragment.message_id)
            elif outcome is Outcome.WAIT:
                self._stall(session, fragment)
            elif session.paused and self._is_crowded and device.reserved_bytes:
                self._resume(session)  # a device that holds memory must finish to give it back
        if messages:
            size_bytes = sum([len(message.payload) for message in messages])
            self.buffered_bytes += size_bytes
            taken = self.reassemble.try_send_many(messages, size_bytes // len(messages))
            assert taken == len(messages), "more items were sent than there was room for"
            self.on_message()

    def _stall(self, session: Session, fragment: Fragment) -> None:
        if not session.stalled:
            self._stalled.append(session)
        session.stalled.append(fragment)
        session.held_bytes += len(fragment.payload)
        self.held_bytes += len(fragment.payload)
        self._pause(session)

    def _retry_stalled(self) -> bool:
        """Offer what waits for memory again, in the order it came, if some was given back."""
        if not self._stalled or not self.reassembler.freed or self._room <= 0:
            return False
        self.reassembler.freed = False
        for _ in range(len(self._stalled)):
            room = self._room
            if room <= 0:
                self.reassembler.freed = True  # to come back to the rest
                break
            self._retry(self._stalled.popleft(), room)
        return True

    def _retry(self, session: Session, room: int) -> None:
        if not session.is_open:
            return
        fragments, session.stalled = session.stalled, []
        size_bytes = sum([len(each.payload) for each in fragments])
        session.held_bytes -= size_bytes
        self.held_bytes -= size_bytes
        self._gather([(session, fragment) for fragment in fragments[:room]])
        if session not in self.sessions:
            return
        waits = bool(session.stalled)  # for memory again: only more of it is worth another try
        for fragment in fragments[room:]:
            self._stall(session, fragment)
        self.reassembler.freed |= bool(fragments[room:]) and not waits
        self._resume(session)

    def _admit_waiting(self) -> bool:
        """Give credits to waiting connections, the longest wait first."""
        moved = False
        while self._waiting:
            room = self.accept.room
            if room <= 0:
                self.accept.refusals += 1
                break
            session = self._waiting[0]
            held = session.held
            count = min(room, len(held))
            fragments = [held.popleft() for _ in range(count)]
            if fragments:
                size_bytes = sum([len(each.payload) for each in fragments])
                session.held_bytes -= size_bytes
                self.held_bytes -= size_bytes
                items = [(session, fragment) for fragment in fragments]
                self.accept.try_send_many(items, size_bytes // count)
                moved = True
            if not held:
                self._waiting.popleft()
                self._resume(session)
        return moved

    # Messages

    def take_batch(self, room: int | None = None) -> list[Message]:
        """The next messages for the topic, oldest first, as many as one write may have."""
        limits = self.limits
        count, size_bytes = 0, 0
        most = limits.batch_records_max if room is None else min(limits.batch_records_max, room)
        for message in self.reassemble.items:
            size_bytes += len(message.payload)
            if count >= most or (count and size_bytes > limits.batch_bytes_max):
                break
            count += 1
        return self.reassemble.receive_up_to(count)

    def landed(self, messages: Sequence[Message], latency_ns: int) -> None:
        """Messages of a batch are durable: acknowledge them."""
        for device, message_id, _ in messages:
            device.pending.discard(message_id)
            device.seen.add(message_id)
            if device.session is not None:
                self._acknowledge(device.session, message_id)
        self.counters.messages_acked += len(messages)
        self._finish(messages, latency_ns)

    def refused(self, message: Message, error: FrameError) -> None:
        """A message can never become durable: notify its device."""
        device = message.device
        device.pending.discard(message.message_id)
        if device.session is not None:
            self.fail(device.session, error, message.payload)
        self._finish([message], 0)

    def _finish(self, messages: Sequence[Message], latency_ns: int) -> None:
        self.buffered_bytes -= sum([len(message.payload) for message in messages])
        self.reassemble.done(len(messages), latency_ns)
        self.pump()

    def found(self, device: str, message_id: int) -> None:
        """A message is in the topic already, written by any edge: remember it."""
        known = self.devices.get(device)
        if known is None:
            known = self.devices[device] = EdgeDevice(device, Seen())
        known.seen.add(message_id)
        known.high = max(known.high, message_id)

    def is_durable(self, message: Message) -> bool:
        """Whether a message was found in the topic."""
        return message.device.seen.look(message.message_id) is Look.DURABLE

    def _acknowledge(self, session: Session, message_id: int) -> None:
        session.acks.append(message_id)
        self._ackers.add(session)

    def flush(self) -> None:
        """Send the acknowledgements that are due, one frame for each connection."""
        ackers, self._ackers = self._ackers, set()
        for session in ackers:
            acks, session.acks = session.acks, []
            if session.is_open:
                session.link.send(encode_ack(acks))
