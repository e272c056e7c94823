"""The members of a group and one change of them at a time, as data.

A change is an entry of the log like any other, recognised by its first byte, and holds from the
moment it is in a member's log. Because it adds or removes at most one voter, every majority before
it shares a member with every majority after it; that is why a second change waits for the first to
be committed.

>>> Members((1, 2)).after(Change(ADD_LEARNER, 3))
Members(voters=(1, 2), learners=(3,))
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from penstock.kernel.errors import Corrupt, Rejected

ADD_LEARNER: Final = "add"
PROMOTE: Final = "promote"
REMOVE: Final = "remove"

ENTRIES: Final = "entries"
"""Changes no member: see `Entries`."""

Verb = Literal["add", "promote", "remove", "entries"]

MARK: Final = b"\xc1\x01"
"""The first bytes of a change in the log: a byte that MessagePack never writes, and a version.

Entries of topics begin with the version of their codec, which is a small number.
"""


REMOVED_MAX: Final = 256
"""How many members that left are remembered, so that they are refused."""


class ChangeRefused(Rejected):
    """The change of members makes no sense for the members as they are."""

    code = "change_refused"


class Named(msgspec.Struct, frozen=True, array_like=True):
    """A member as people and connections know it."""

    id: int
    name: str
    address: str


class Entries(msgspec.Struct, frozen=True, array_like=True):
    """In which version members write entries, and which members are known to read up to what.

    `active` never goes down. 0 and no versions: nothing was said of it yet.
    """

    active: int = 0
    reads: tuple[tuple[int, int], ...] = ()
    """The id of a member and the newest version that it reads, by id."""


class Change(msgspec.Struct, frozen=True, array_like=True, repr_omit_defaults=True):
    """One change of the members of a group; one that adds a member says where it is."""

    verb: Verb
    member: int = 0
    named: Named | None = None
    entries: Entries = Entries()


class Members(msgspec.Struct, frozen=True, array_like=True, repr_omit_defaults=True):
    """Voters decide; learners only receive. `removed` are the last ones that left."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    named: tuple[Named, ...] = ()
    removed: tuple[int, ...] = ()
    entries: Entries = Entries()

    def __contains__(self, member: int) -> bool:
        return member in self.voters or member in self.learners

    def everyone(self) -> tuple[int, ...]:
        """Voters and learners."""
        return self.voters + self.learners

    def after(self, change: Change) -> Members:
        """The members after a change, or `ChangeRefused`."""
        member, voters, learners = change.member, self.voters, self.learners
        if change.verb == ADD_LEARNER:
            _require(member not in self, f"member {member} is in the group already")
            named = self.named if change.named is None else (*self.named, change.named)
            learners = _with(learners, member)
            return Members(voters, learners, named, self.removed, self.entries)
        if change.verb == PROMOTE:
            _require(member in learners, f"member {member} is not a learner of the group")
            voters, learners = _with(voters, member), _without(learners, member)
            return Members(voters, learners, self.named, self.removed, self.entries)
        if change.verb == ENTRIES:
            active = self.entries.active
            _require(change.entries.active >= active, f"version {active} of entries is in the log")
            return replace(self, entries=change.entries)
        _require(member in self, f"member {member} is not in the group")
        _require(voters != (member,), f"member {member} is the last voter: a group needs one")
        named = tuple(each for each in self.named if each.id != member)
        removed = (*self.removed, member)[-REMOVED_MAX:] if self.named else ()
        voters, learners = _without(voters, member), _without(learners, member)
        reads = tuple(each for each in self.entries.reads if each[0] != member)
        entries = Entries(self.entries.active, reads)
        return Members(voters, learners, named, removed, entries)


FORGOTTEN: Final = Members(())
"""What a node alone logs over the members of a cluster that its directory was copied from: the
members are those who found the log, from here on."""


def encode_members(members: Members) -> bytes:
    """The payload of the entry that makes these the members."""
    return MARK + msgspec.msgpack.encode(members)


def decode_members(payload: bytes) -> Members:
    """The members of a payload that begins with `MARK`, or `Corrupt`."""
    try:
        return msgspec.msgpack.decode(payload[len(MARK) :], type=Members)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"malformed members in the log: {error}") from error


def _with(members: tuple[int, ...], member: int) -> tuple[int, ...]:
    return tuple(sorted((*members, member)))


def _without(members: tuple[int, ...], member: int) -> tuple[int, ...]:
    return tuple(other for other in members if other != member)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ChangeRefused(otherwise)
