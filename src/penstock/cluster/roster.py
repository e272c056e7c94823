"""Who is in the cluster, and what a group still has to change to be like that.

The roster is the members of partition 0, as its log has them, with their names and addresses. The
leader of each other group brings its group to it, one change at a time; a member becomes a voter of
partition 0 only when it is one everywhere else. `cluster.json` says which member a data directory
is, and how to reach the others before the log tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from penstock.cluster.handshake import UNTOLD
from penstock.kernel.errors import Corrupt, Rejected
from penstock.protocol.errors import NoMajorityLeft
from penstock.raft.members import ADD_LEARNER, PROMOTE, REMOVE, Change, Members, Named
from penstock.raft.quorum import majority

CLUSTER_FILE: Final = "cluster.json"
FORMAT: Final = 1
NAME_MAX: Final = 64
_NAME_EXTRA: Final = frozenset("._-")


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """Which member a data directory is. Never copied with a backup: a copy is not the member.

    `founders` are the members of a log without a change of them in it: this member alone where it
    made the cluster, none where it joined one. `has_log` says that the directory was in use: one
    whose log is gone since then is not this member any more.
    """

    format: int = FORMAT
    cluster: str
    member: Named
    partitions: int
    identity: int
    """What is added to the epochs told to readers: the same on all members, so cursors may move."""
    founders: Members = Members(())
    known: tuple[Named, ...] = ()
    """The other members when this was written."""
    has_log: bool = False
    entries: int = UNTOLD.written
    """The version of the log's entries that the cluster was last known to write."""


def encode_cluster_file(file: ClusterFile) -> bytes:
    """The content of `cluster.json`."""
    return msgspec.json.format(msgspec.json.encode(file)) + b"\n"


def decode_cluster_file(content: bytes, where: str) -> ClusterFile:
    """What `cluster.json` says, or `Corrupt`."""
    try:
        found = msgspec.json.decode(content, type=ClusterFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{where} does not say which member this directory is: {error}; take the member out "
            "and a new directory in with `penstock cluster replace`",
            file=where,
        ) from error
    if found.format != FORMAT:
        raise Rejected(f"{where} has format {found.format}: this version knows {FORMAT}")
    return found


def check_member_name(name: str) -> str:
    """The name of a member: letters, digits, dots, dashes and underscores."""
    is_valid = name.isascii() and all(each.isalnum() or each in _NAME_EXTRA for each in name)
    if not is_valid or not 0 < len(name) <= NAME_MAX:
        raise Rejected(
            f"{name!r} is not the name of a member: use 1 to {NAME_MAX} letters, digits, dots, "
            "dashes or underscores"
        )
    return name


def check_address(address: str) -> str:
    """The address of a member, as `host:port`."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65_536):
        raise Rejected(f"{address!r} is not an address that peers can reach: say HOST:PORT")
    return address


def find(roster: Members, name: str) -> Named:
    """The member of a name, or of an id in hexadecimal."""
    for each in roster.named:
        if name in (each.name, f"{each.id:016x}"):
            return each
    known = ", ".join(each.name for each in roster.named)
    raise Rejected(
        f"there is no member {name!r} in the cluster: there are {known}; if a `replace` has taken "
        f"it out and broke off, say its address as well: `penstock cluster replace {name} "
        "HOST:PORT`",
        member=name,
    )


def has_no(roster: Members, name: str) -> bool:
    """Whether no member has this name or id."""
    return all(name not in (each.name, f"{each.id:016x}") for each in roster.named)


def check_addition(roster: Members, named: Named) -> None:
    """Refuse a member whose name or address another one has."""
    check_member_name(named.name)
    check_address(named.address)
    for each in roster.named:
        if each.name == named.name:
            raise Rejected(
                f"{each.name} is in the cluster already, at {each.address}: choose another name, "
                "or take its place with `penstock cluster replace`"
            )
        if each.address == named.address:
            raise Rejected(f"{each.name} is at {each.address} already")


def check_removal(roster: Members, leaving: int, reached: Collection[int]) -> None:
    """Refuse to remove a member without whom no majority of the voters can be reached."""
    voters = [voter for voter in roster.voters if voter != leaving]
    if not voters:
        raise Rejected("the last voter cannot be removed: it is the cluster")
    alive = sum(voter in reached for voter in voters)
    if alive < majority(len(voters)):
        raise NoMajorityLeft(
            f"of the {len(voters)} voters that would stay only {alive} can be reached: nothing "
            "could be written until others are back. With --force the member is removed all the "
            "same; if those that are away never come back, what only they have synced is lost",
            voters=len(voters),
            reached=alive,
        )


def next_change(group: Members, roster: Members, ready: Collection[int]) -> Change | None:
    """What the leader of another group than partition 0 changes next to follow the roster.

    `ready` are the learners that have kept up for long enough.
    """
    for named in roster.named:
        if named.id not in group:
            return Change(ADD_LEARNER, named.id, named)
    for member in group.everyone():
        if member not in roster:
            return Change(REMOVE, member)
    return _promotion(group, ready)


def next_promotion(
    roster: Members, others: Sequence[Members], ready: Collection[int]
) -> Change | None:
    """The learner of partition 0 that is a voter of every other group, and kept up here too."""
    everywhere = [member for member in ready if all(member in group.voters for group in others)]
    return _promotion(roster, everywhere)


def underway(roster: Members, groups: Iterable[Members]) -> str:
    """The change that the cluster has not finished, in words; empty if there is none."""
    names = {each.id: each.name for each in roster.named}
    for learner in roster.learners:
        return f"{names.get(learner, f'{learner:016x}')} is being added"
    for number, group in enumerate(groups):
        for member in group.everyone():
            if member not in roster:
                return f"member {member:016x} is being removed from partition {number}"
        if group.voters != roster.voters:
            return f"partition {number} is being brought to the members of the cluster"
    return ""


def _promotion(group: Members, ready: Collection[int]) -> Change | None:
    for learner in group.learners:
        if learner in ready:
            return Change(PROMOTE, learner)
    return None


class KeptUp:
    """For how long each learner has kept up with the leader."""

    def __init__(self, span_ms: int = 3_000) -> None:
        self._span_ms = span_ms
        self._since_ms: dict[int, int] = {}

    def look(self, near: Collection[int], now_ms: int) -> set[int]:
        """The members that were near at every look of the last span."""
        self._since_ms = {member: self._since_ms.get(member, now_ms) for member in near}
        return {
            member
            for member, since_ms in self._since_ms.items()
            if now_ms - since_ms >= self._span_ms
        }
