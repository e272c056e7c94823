"""An edge in virtual time: the real core and windows, devices and a topic that a test turns."""

from __future__ import annotations

from collections import deque
from random import Random

from penstock.flow.planner import PlannerPolicy
from penstock.ingest.accept import EdgeCore
from penstock.ingest.device_core import DeviceCore
from penstock.ingest.frames import Ack, Failure, FrameError, FrameReader, Welcome, encode_hello
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.windows import Windows
from penstock.metering.shapes import Arrivals, Shape
from penstock.testing import ManualClock

STEP_MS = 10
SOCKET_BYTES = 32_768
"""What is under way between a device and the edge, at most."""


class SimDevice:
    """A device, its socket, and the link that the edge has of it."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"d{number}"
        self.core = DeviceCore()
        self.waiting: deque[bytes] = deque()
        self.offered: list[bytes] = []
        self.errors: list[Failure] = []
        self.connect()

    def connect(self) -> None:
        self.wire = bytearray(encode_hello(self.name, b""))
        self.reader = FrameReader(opening=False)
        self.reading = True
        self.is_connected = True
        self.unsent = b""
        self.is_welcome = False
        self.session = self.world.core.opened(self)

    def disconnect(self) -> None:
        self.is_connected = False
        self.world.core.closed(self.session)

    # the edge's calls

    def send(self, data: bytes) -> None:
        for frame in self.reader.feed(data):
            if isinstance(frame, Ack):
                self.core.acknowledged(frame.message_ids)
            elif isinstance(frame, Welcome):
                self.is_welcome = True
                self.unsent = self.core.welcomed(frame)
            elif isinstance(frame, Failure):
                self.errors.append(frame)

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True

    def end(self, error: FrameError) -> None:
        self.errors.append(Failure(error.error_code, error.message_id, error.message))
        self.is_connected = False

    # a step

    def offer(self, payload: bytes) -> None:
        self.offered.append(payload)
        self.waiting.append(payload)

    def step(self) -> None:
        if not self.is_connected:
            return
        while self.waiting and self.core.has_room and len(self.unsent) < SOCKET_BYTES:
            frames = self.core.message(self.waiting.popleft())[1]
            self.unsent += frames if self.is_welcome else b""  # else WELCOME has all sent again
        room = SOCKET_BYTES - len(self.wire)
        self.wire += self.unsent[:room]
        self.unsent = self.unsent[room:]
        if self.reading and self.wire:
            data, self.wire = bytes(self.wire), bytearray()
            self.world.core.feed(self.session, data)


class World:
    """Devices, an edge, and a topic that takes so many messages a second, or none."""

    def __init__(
        self,
        seed: int,
        *,
        devices: int,
        capacity_per_s: float,
        shape: Shape | None = None,
        limits: EdgeLimits | None = None,
        policy: PlannerPolicy | None = None,
        message_bytes: tuple[int, int] = (200, 2_000),
    ) -> None:
        self.clock = ManualClock()
        self.random = Random(seed)
        self.capacity_per_s = capacity_per_s
        self.is_blocked = False
        self.topic: list[tuple[str, int, bytes]] = []
        self.message_bytes = message_bytes
        self.arrivals = None if shape is None else Arrivals(shape)
        self.core = EdgeCore(limits or EdgeLimits(), self.clock)
        self.windows = Windows(self.core.stages, policy=policy)
        self.devices = [SimDevice(self, number) for number in range(devices)]
        self.under_way: list = []
        self._began_ns = 0
        self._spare = 0.0
        self.peak_bytes = 0
        self.occupancies: list[float] = []

    def run(self, span_ms: int) -> None:
        for _ in range(span_ms // STEP_MS):
            self.step()

    def step(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if self.arrivals is not None:
            for _ in range(self.arrivals.take(now_ms, STEP_MS)):
                self.random.choice(self.devices).offer(self.payload())
        for device in self.devices:
            device.step()
        self.clock.advance(STEP_MS)
        self._append()
        if self.clock.monotonic_ms() % 100 == 0:
            self.windows.tick(self.clock.monotonic_ms())
            self.core.pump()
            self.occupancies.append(self.core.reassemble.occupancy)
        if self.clock.monotonic_ms() % 1_000 == 0:
            self.core.sweep()
        held = self.core.held_bytes + self.core.buffered_bytes
        self.peak_bytes = max(self.peak_bytes, held)

    def payload(self) -> bytes:
        return self.random.randbytes(self.random.randint(*self.message_bytes))

    def _append(self) -> None:
        """The topic takes what its capacity allows; a batch is durable when all of it is."""
        if not self.under_way:
            self.under_way = self.core.take_batch()
            self._began_ns = self.clock.monotonic_ns()
            self._spare = min(self._spare, 0.0) if not self.under_way else self._spare
        if self.is_blocked or not self.under_way:
            return
        self._spare += self.capacity_per_s * STEP_MS / 1_000
        while self.under_way and self._spare >= len(self.under_way):
            batch, self.under_way = self.under_way, []
            self._spare -= len(batch)
            self.topic += [(m.device.name, m.message_id, m.payload) for m in batch]
            self.core.landed(batch, self.clock.monotonic_ns() - self._began_ns)
            self.under_way = self.core.take_batch()
            self._began_ns = self.clock.monotonic_ns()

    def drain(self, within_ms: int) -> None:
        self.arrivals = None
        for _ in range(within_ms // STEP_MS):
            self.step()
            if not any(d.waiting or d.core.unacked for d in self.devices):
                return
        raise AssertionError("expected everything acknowledged by now")

    def check(self) -> None:
        """Everything that was offered is in the topic once, in the order of its device."""
        for device in self.devices:
            found = [payload for name, _, payload in self.topic if name == device.name]
            ids = [number for name, number, _ in self.topic if name == device.name]
            assert len(set(ids)) == len(ids)
            assert sorted(found) == sorted(device.offered)
