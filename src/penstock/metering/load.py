"""Load for an edge: a fleet of devices that together follow a shape, and wait where they must."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from penstock.ingest.device import Device
from penstock.metering.fleet import Fleet
from penstock.metering.shapes import Arrivals, Shape

TICK_MS = 20


@dataclass(slots=True)
class LoadState:
    """How a load is going. `offered` fell due so far; what is not `sent` its devices still hold."""

    offered: int = 0
    sent: int = 0
    acked: int = 0
    connects: int = 0
    resent: int = 0
    elapsed_ms: int = 0
    sent_by_device: list[int] = field(default_factory=list)

    @property
    def backlog(self) -> int:
        """What fell due and is not sent."""
        return self.offered - self.sent


@dataclass(frozen=True, slots=True)
class Target:
    """The address of an edge, and the credentials of its devices."""

    host: str
    port: int
    token: bytes = b""
    tls: ssl.SSLContext | None = None


class LoadGenerator:
    """A running load. `arrivals.factor` may be turned at any time: that is a burst."""

    def __init__(self, target: Target, fleet: Fleet, shape: Shape) -> None:
        self.fleet = fleet
        self.arrivals = Arrivals(shape)
        self.state = LoadState(sent_by_device=[0] * fleet.devices)
        self.devices = [
            Device(
                target.host,
                target.port,
                fleet.name(number),
                target.token,
                tls=target.tls,
                random=Random(f"{fleet.seed}:{number}"),
            )
            for number in range(fleet.devices)
        ]
        self._due = [0] * fleet.devices
        self._wakes = [asyncio.Event() for _ in range(fleet.devices)]
        self._next = 0
        self._is_ending = False
        self._is_over = False
        """Nothing more falls due. Senders end by this alone: what is offered is sent."""

    async def run(
        self, *, seconds: float, on_progress: Callable[[LoadState], None] | None = None
    ) -> LoadState:
        """Offer load for so long, then wait until all of it is acknowledged."""
        senders = [asyncio.ensure_future(self._send(number)) for number in range(len(self.devices))]
        try:
            for device in self.devices:
                device.start()
            offering = asyncio.ensure_future(self._offer(seconds, on_progress))
            await self._first_of(offering, senders)
            for sender, wake in zip(senders, self._wakes, strict=True):
                wake.set()
                await sender
            self._count()
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*(device.close() for device in self.devices))
        return self.state

    def end(self) -> None:
        """Offer nothing more; `run` returns when all is acknowledged."""
        self._is_ending = True

    @property
    def trouble(self) -> str | None:
        """The reason of one device, if no device has a connection."""
        reasons = [device.trouble for device in self.devices]
        return reasons[0] if all(reason is not None for reason in reasons) else None

    async def _first_of(
        self, offering: asyncio.Future[None], senders: Sequence[asyncio.Future[None]]
    ) -> None:
        """Wait for the end of the offer; a sender that fails ends it at once."""
        done, _ = await asyncio.wait([offering, *senders], return_when=asyncio.FIRST_COMPLETED)
        if offering not in done:
            offering.cancel()
        for each in done:
            each.result()

    async def _offer(self, seconds: float, on_progress: Callable[[LoadState], None] | None) -> None:
        loop = asyncio.get_running_loop()
        began_s, offered_ms = loop.time(), 0
        while offered_ms < seconds * 1_000 and not self._is_ending:
            await asyncio.sleep(TICK_MS / 1_000)
            now_ms = min(int((loop.time() - began_s) * 1_000), int(seconds * 1_000))
            self._fall_due(self.arrivals.take(offered_ms, now_ms - offered_ms))
            offered_ms = self.state.elapsed_ms = now_ms
            if on_progress is not None:
                self._count()
                on_progress(self.state)
        self._is_over = True

    def _fall_due(self, count: int) -> None:
        """Spread messages over the devices, each in its turn."""
        for _ in range(count):
            number = self._next
            self._next = (number + 1) % len(self._due)
            self._due[number] += 1
            self._wakes[number].set()
        self.state.offered += count

    async def _send(self, number: int) -> None:
        device, wake = self.devices[number], self._wakes[number]
        while True:
            if self._due[number]:
                await device.send(self.fleet.payload(number, self.state.sent_by_device[number]))
                self._due[number] -= 1
                self.state.sent_by_device[number] += 1
                self.state.sent += 1
            elif self._is_over:
                await device.flush()
                return
            else:
                wake.clear()
                await wake.wait()

    def _count(self) -> None:
        self.state.acked = sum(device.core.acked for device in self.devices)
        self.state.connects = sum(device.connects for device in self.devices)
        self.state.resent = sum(device.core.resent for device in self.devices)
