"""The answers of routes about the cluster: members, groups of partitions, checks and comparisons.

Members that an older server does not send have defaults, so that a newer client reads its answers.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ClusterMember(Struct, frozen=True, kw_only=True):
    """A node of the cluster, and the link to it from the node that answers."""

    name: str
    id: str
    address: str
    """Where its peers reach it."""
    url: str = ""
    """Where clients reach it; empty if that is not known."""
    state: str
    """voter or learner."""
    link: str = "none"
    """self, up, down or none."""
    heard_ms_ago: int | None = None
    reads: int | None = None
    """The newest version of log entries that it is known to read."""
    problem: str | None = None
    """Why the link is down."""


class ClusterEntries(Struct, frozen=True, kw_only=True):
    """The version of log entries that the cluster writes: one that all its members read."""

    active: int
    newest: int
    """The newest version that any member reads."""
    held_by: tuple[str, ...] = ()
    """The members without which a newer version would be written: upgrade them."""


class ClusterFollower(Struct, frozen=True, kw_only=True):
    """A follower of a partition as its leader sees it."""

    name: str
    stage: str
    match: int
    """The last entry that it is known to have."""
    lag: int
    waits: str = ""
    """Why it does not have the leader's last entry; empty if it has."""
    in_flight_messages: int = 0
    in_flight_bytes: int = 0
    heard: bool = True
    paused: bool = False


class ClusterPartition(Struct, frozen=True, kw_only=True):
    """The group of a partition on the node that answers: its role and the indexes of its log."""

    partition: int
    role: str
    term: int
    leader: str
    """The name of the member that leads; empty if none is known."""
    serving: bool = False
    last: int = 0
    synced: int = 0
    committed: int = 0
    applied: int = 0
    snapshot: int = 0
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    stopped: str | None = None
    """Why the group does not run on this node."""
    followers: tuple[ClusterFollower, ...] = ()
    """On the leader only."""


class ClusterState(Struct, frozen=True, kw_only=True):
    """How the cluster stands as one node sees it. Counters are since the node's start."""

    cluster: str
    member: str
    """The name of the node that answers."""
    members: tuple[ClusterMember, ...]
    entries: ClusterEntries | None = None
    underway: str = ""
    """The change of members that is under way; empty if none is."""
    partitions: tuple[ClusterPartition, ...]
    links: dict[str, int] = {}
    snapshots: dict[str, int] = {}
    elections: dict[str, int] = {}
    calls: dict[str, int] = {}
    performance: dict[str, float] = {}


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What a node says of itself."""

    version: str
    now_ms: int
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    log: str = ""
    """Why its log takes no writes; empty if it does."""
    failed_partitions: tuple[int, ...] = ()
    newer_partitions: tuple[int, ...] = ()
    """Those of them that a newer release wrote: they are not damaged."""


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """What the node that was asked says of itself."""

    node: NodeFacts
    performance: dict[str, float] = {}


class NodeCheck(Struct, frozen=True, kw_only=True):
    """What is known of a node, or why nothing is; `ahead_ms` by the clock of the asking one."""

    name: str
    facts: NodeFacts | None = None
    ahead_ms: int = 0
    round_trip_ms: float = 0.0
    problem: str = ""


class ClusterChecks(Struct, frozen=True, kw_only=True):
    """Every node, and what is wrong, one sentence each."""

    nodes: tuple[NodeCheck, ...]
    problems: tuple[str, ...] = ()
    performance: dict[str, float] = {}


class MemberFile(Struct, frozen=True, kw_only=True):
    """The content of a new member's `cluster.json`."""

    file: dict[str, Any]
    performance: dict[str, float] = {}


class MemberRemoval(Struct, frozen=True, kw_only=True):
    """A member was taken out."""

    member: str
    removed: bool = True
    performance: dict[str, float] = {}


class LeadershipTransfer(Struct, frozen=True, kw_only=True):
    """The leader of a partition was asked to hand over to a member."""

    partition: int
    member: str
    performance: dict[str, float] = {}


class MemberComparison(Struct, frozen=True, kw_only=True):
    """Whether a member has the same state of a partition as its leader."""

    name: str
    state: str
    """equal, different, away or failed."""
    problem: str | None = None
    """Why it was not compared."""
    differing: int = 0
    """How many topics differ."""
    differs_in: tuple[str, ...] = ()
    """The first of them by name."""


class PartitionComparison(Struct, frozen=True, kw_only=True):
    """The state of a partition on all members, at one index of its log."""

    partition: int
    index: int
    equal: bool
    """No member has another state."""
    complete: bool
    """Every member was compared."""
    topics: int
    records: int
    not_compared: tuple[str, ...] = ()
    """Topics with records that only the leader has."""
    members: tuple[MemberComparison, ...]
    performance: dict[str, float] = {}


class PartitionDigest(Struct, frozen=True, kw_only=True):
    """A partition's state on one node. `topics` has a digest for each topic that is compared."""

    partition: int
    index: int
    records: int
    topics: dict[str, str]
    not_compared: tuple[str, ...] = ()
    """Topics with records that only the leader has."""


class DigestAnswer(Struct, frozen=True, kw_only=True):
    """The index at which a partition was captured, or with `take` the digest made of it."""

    index: int | None = None
    digest: PartitionDigest | None = None
    performance: dict[str, float] = {}
