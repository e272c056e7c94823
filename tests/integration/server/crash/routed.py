"""Routers under one client: every destination has each copy it must have, once and in order.

The source lives on one partition, destinations on both; one is fed by another, one only gets some
tags, and one router comes and goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.integration.server.crash.model import TopicModel
from tests.integration.server.crash.names import placed
from tests.integration.server.crash.payloads import Payloads, Wanted, write_body
from tests.integration.server.crash.wire import Record, Wire

KEEP = 300


@dataclass
class _Dest:
    """A destination and what was seen in it."""

    name: str
    router: str
    source: str
    guarantee: str
    filter: str | None = None
    start_seq: int = 0
    confirmed_seq: int = 0  # every source seq up to this was checked already
    seen: dict[int, int] = field(default_factory=dict)  # seq -> seq of the first source
    head: int = 0

    @property
    def body(self) -> dict[str, Any]:
        body = {"source": self.source, "dest": self.name, "guarantee": self.guarantee}
        return body if self.filter is None else {**body, "filter": self.filter}


class Routed:
    """A source, its destinations, and the client that does everything to them."""

    def __init__(self, name: str, seed: int) -> None:
        self._random = Random(seed)
        self._payloads = Payloads(name)
        self._source = placed(f"{name}-src", 0)
        near, far = placed(f"{name}-near", 0), placed(f"{name}-far", 1)
        self._dests = {
            "far": _Dest(far, f"{name}>1", self._source, "at_least_once"),
            "next": _Dest(placed(f"{name}-next", 0), f"{name}>2", far, "exactly_once"),
            "near": _Dest(near, f"{name}>3", self._source, "exactly_once", "a*"),
        }
        self._guest = _Dest(placed(f"{name}-guest", 1), f"{name}>4", self._source, "at_least_once")
        self._guest_is = False
        self._guest_op: str | None = None
        self._model = TopicModel()
        self._unknown: TopicModel | None = None
        self._history: dict[int, Wanted] = {}
        self._is_set_up = False
        self.answered = 0

    async def act(self, wire: Wire) -> None:
        roll = self._random.random()
        if roll < 0.75:
            await self._write(wire)
        elif roll < 0.83:
            await self._delete(wire)
        elif roll < 0.92:
            await self._change_guest(wire)
        else:
            dest = self._random.choice(list(self._dests.values()))
            await self._check_dest(wire, dest)
        self.answered += 1

    async def check(self, wire: Wire) -> None:
        if not self._is_set_up:
            await self._set_up(wire)
        whole = await wire.whole(self._source)
        assert whole is not None, f"{self._source} is gone"
        reasons = []
        for model in filter(None, (self._model, self._unknown)):
            reason = model.differs(whole)
            if reason is None:
                self._model, self._unknown = model, None
                break
            reasons.append(reason)
        else:
            raise AssertionError(f"{self._source}: " + " / if the last did happen: ".join(reasons))
        self._history |= self._model.live
        for dest in self._dests.values():
            await self._check_dest(wire, dest)
            await self._trim(wire, dest)
        await self._check_guest(wire)

    async def finish(self, wire: Wire) -> None:
        await self.check(wire)
        for dest in self._dests.values():
            told = (await wire.ask("GET", f"/v0/routers/{dest.router}")).ok()
            assert told["guarantee"] == dest.guarantee

    async def _set_up(self, wire: Wire) -> None:
        (await wire.ask("PUT", f"/v0/topics/{self._source}", {"durability": "disk"})).ok()
        for dest in self._dests.values():
            (await wire.ask("PUT", f"/v0/routers/{dest.router}", dest.body)).ok()
        self._is_set_up = True

    async def _write(self, wire: Wire) -> None:
        records = self._payloads.some(self._random)
        after = self._model.copy()
        first, last = after.append(records, None)
        self._unknown = after
        reply = await wire.call("POST", f"/v0/topics/{self._source}", write_body(records))
        told = reply.ok()
        assert (told["first_seq"], told["last_seq"]) == (first, last)
        self._model, self._unknown = after, None
        self._history |= zip(range(first, last + 1), records, strict=True)

    async def _delete(self, wire: Wire) -> None:
        """Delete at the source: never at a destination, unless it came before the copy."""
        after = self._model.copy()
        tag = None if len(after.live) > KEEP else self._random.choice(("a", "b:2", "ab"))
        before_seq = after.head - KEEP // 2 if tag is None else None
        after.delete(before_seq, tag)
        self._unknown = after
        body = {"match": tag} if tag is not None else {"before_seq": before_seq}
        (await wire.ask("POST", f"/v0/topics/{self._source}/delete", body)).ok()
        self._model, self._unknown = after, None

    async def _check_dest(self, wire: Wire, dest: _Dest) -> None:
        """Everything the source had before this look is there, and nothing else."""
        must = {
            seq
            for seq, record in self._model.live.items()
            if seq > max(dest.start_seq, dest.confirmed_seq)
            and (dest.filter is None or (record.tag or "").startswith("a"))
        }
        upto_seq = self._model.head
        whole = await wire.whole(dest.name)
        assert whole is not None, f"{dest.name} is gone"
        assert whole.head_seq >= dest.head, f"{dest.name}: the head went back"
        dest.head = whole.head_seq
        origin = {record.data: seq for seq, record in self._history.items()}
        seen: dict[int, int] = {}
        last = 0
        for seq, record in whole.records.items():
            source_seq = origin[bytes(record.data)]
            assert source_seq > last, f"{dest.name}: a copy of {source_seq} comes after {last}"
            last = source_seq
            self._compare(dest, record, source_seq)
            seen[seq] = source_seq
        changed = {seq for seq in dest.seen if seen.get(seq) != dest.seen[seq]}
        assert not changed, f"{dest.name}: seqs {sorted(changed)[:9]} are not what was read before"
        missing = must - set(seen.values())
        assert not missing, f"{dest.name}: copies of {sorted(missing)[:9]} are missing"
        dest.seen, dest.confirmed_seq = seen, max(dest.confirmed_seq, upto_seq)

    def _compare(self, dest: _Dest, record: Record, source_seq: int) -> None:
        wanted = self._history[source_seq]
        assert (record.tag, record.node) == (wanted.tag, wanted.node)
        meta = record.meta_bytes
        if dest.guarantee != "exactly_once":
            assert meta == wanted.meta, f"{dest.name}: meta {meta!r}, expected {wanted.meta!r}"
        elif dest.source == self._source:
            assert meta is not None
            assert b'"source_seq":%d}' % source_seq in meta, f"{dest.name}: {meta!r}"

    async def _trim(self, wire: Wire, dest: _Dest) -> None:
        """Delete old copies, so that long runs stay quick."""
        if len(dest.seen) > 2 * KEEP:
            before_seq = sorted(dest.seen)[-KEEP]
            path = f"/v0/topics/{dest.name}/delete"
            (await wire.ask("POST", path, {"before_seq": before_seq})).ok()
            dest.seen = {seq: place for seq, place in dest.seen.items() if seq >= before_seq}

    # The router that comes and goes

    async def _change_guest(self, wire: Wire) -> None:
        guest = self._guest
        if not self._guest_is:
            self._guest_op = "put"
            guest.start_seq = self._model.head
            told = (await wire.ask("PUT", f"/v0/routers/{guest.router}", guest.body)).ok()
            assert told["created"] is True
            self._guest_is = True
        elif self._random.random() < 0.6:
            self._guest_op = "remove"
            told = (await wire.ask("DELETE", f"/v0/routers/{guest.router}")).ok()
            assert told["deleted"] is True
            self._guest_is = False
        else:
            self._guest_op = "drop"
            told = (await wire.ask("DELETE", f"/v0/topics/{guest.name}")).ok()
            assert told["routers_removed"] == [guest.router]
            self._forget_guest()
        self._guest_op = None

    def _forget_guest(self) -> None:
        self._guest_is = False
        self._guest.seen, self._guest.head, self._guest.confirmed_seq = {}, 0, 0

    async def _check_guest(self, wire: Wire) -> None:
        guest = self._guest
        found = (await wire.ask("GET", f"/v0/routers/{guest.router}")).status == 200
        topic = (await wire.ask("GET", f"/v0/topics/{guest.name}")).status == 200
        assert topic or not found, f"{guest.router} leads to a topic that is gone"
        if self._guest_op is None:
            assert found == self._guest_is, f"{guest.router}: there is {found}"
        if self._guest_op == "drop":
            assert found == topic, f"{guest.name} was dropped in part"
            if not found:
                self._forget_guest()
        self._guest_is, self._guest_op = found, None
        if found:
            await self._check_dest(wire, guest)
            await self._trim(wire, guest)
