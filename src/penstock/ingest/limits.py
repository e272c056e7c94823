"""Every limit of the edge, in one place, checked where it is made."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ingest.frames import FRAGMENT_BYTES_MAX
from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB, MIB


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """How much devices may make the edge hold, and for how long."""

    connections_max: int = 10_000
    devices_max: int = 100_000
    """Devices whose durable messages are remembered."""
    fragment_bytes_max: int = FRAGMENT_BYTES_MAX
    message_bytes_max: int = 256 * KIB
    partial_bytes_max: int = 512 * KIB
    """Messages of one device that are not whole, together."""
    partials_bytes_max: int = 128 * MIB
    """The same for all devices: what each may hold is set aside before its first fragment."""
    held_bytes_max: int = 32 * MIB
    """Read and not admitted: beyond it no socket is read but those that can go on."""
    buffered_bytes_max: int = 256 * MIB
    """Whole messages that are not durable yet."""
    batch_records_max: int = 2_000
    batch_bytes_max: int = 4 * MIB
    hello_ms: int = 10_000
    frame_ms: int = 10_000
    """From the first byte of a frame to its last."""
    message_ms: int = 30_000
    """From the first fragment of a message to its last."""
    idle_ms: int = 300_000
    """Silence after which a connection is taken for lost; devices send PING before."""
    write_stall_ms: int = 30_000
    """How long a device may leave its acknowledgements unread."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise Rejected(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.fragment_bytes_max <= self.message_bytes_max <= self.partial_bytes_max:
            raise Rejected(
                "fragment_bytes_max <= message_bytes_max <= partial_bytes_max does not hold: "
                f"{self.fragment_bytes_max}, {self.message_bytes_max}, {self.partial_bytes_max}"
            )
        if self.partial_bytes_max > self.partials_bytes_max:
            raise Rejected(
                f"expected partials_bytes_max of at least {self.partial_bytes_max}, "
                f"found {self.partials_bytes_max}"
            )
