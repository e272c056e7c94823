"""What goes wrong in a run: drawn from its seed, or named by a profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from penstock.raft.progress import Limits

PROFILES = (
    "calm", "lossy", "cuts", "isolated", "crash", "torn", "slow-disk", "late-report", "full-disk",
    "sync-error", "skew", "overload", "churn",
)  # fmt: skip
AGAIN = ("isolated", "torn")
"""Profiles whose faults come again and again, so that terms end before they have begun."""
TICK = 100


@dataclass(frozen=True)
class Faults:
    """The faults of one run. Rates are chances of one fault when it is the time for one."""

    profile: str
    kinds: frozenset[str]
    voters: int
    spares: int
    clients: int
    limits: Limits = field(compare=False)
    drop: float = 0.0
    repeat: float = 0.0
    delay: int = 20  # at most, of a message
    disk_delay: int = 30
    late: float = 0.0  # a core hears late of a sync
    torn: float = 0.0  # a crash right after something was handed to the disk
    payload: int = 40
    every: int = 1_500  # mean time between faults
    keep: int = 10  # entries kept behind a snapshot
    snapshot_every: int = 40


def draw_faults(random: Random, profile: str, without: frozenset[str] = frozenset()) -> Faults:
    """A swarm: the profile's own fault, and each other one with some chance."""
    kinds = {kind for kind in PROFILES[1:] if random.random() < 0.25} | {profile}
    if profile == "calm":
        kinds = {"calm"}
    kinds -= without
    low = random.randint(3, 5)
    return Faults(
        profile=profile,
        kinds=frozenset(kinds),
        voters=random.choice((3, 3, 3, 5)),
        spares=random.randint(1, 2) if "churn" in kinds else 0,
        clients=random.randint(6, 16) if "overload" in kinds else random.randint(2, 6),
        limits=_limits(random, low),
        drop=random.uniform(0.01, 0.2) if "lossy" in kinds else 0.0,
        repeat=random.uniform(0.0, 0.1) if "lossy" in kinds else 0.0,
        delay=random.choice((10, 20, 40, 80)) if kinds & {"lossy", "torn"} else 20,
        disk_delay=random.choice((100, 250)) if "slow-disk" in kinds else 30,
        late=random.uniform(0.05, 0.5) if "late-report" in kinds else 0.0,
        torn=random.uniform(0.001, 0.005) if "torn" in kinds else 0.0,
        payload=random.choice((300, 900)) if "overload" in kinds else 40,
        every=random.choice((300, 600, 1_500) if profile in AGAIN else (600, 1_500, 3_000)),
        keep=random.choice((0, 3, 20)),
        snapshot_every=random.choice((10, 40, 150)),
    )


def _limits(random: Random, low: int) -> Limits:
    window = random.choice((400, 2_000, 20_000))
    return Limits(
        election_ticks_min=low,
        election_ticks_max=low + random.randint(3, 5),
        message_bytes=random.choice((60, 400, 4_000)),
        inflight_messages=random.choice((1, 4, 16)),
        inflight_bytes=window,
        inflight_bytes_min=window // 4,
        inflight_bytes_max=window * 4,
        uncommitted_bytes=random.choice((1_000, 8_000, 100_000)),
        held_bytes=random.choice((0, 500, 10_000)),
        saturated_ticks=random.randint(1, 5),
        near_bytes=random.choice((200, 1_000)),
    )
