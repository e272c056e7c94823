"""A topic whose records leave by age: none before its time, none after, and none comes back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random

from tests.integration.server.crash.payloads import Payloads, write_body
from tests.integration.server.crash.wire import Wire

MARGIN_MS = 3
"""Clocks are read in whole milliseconds, on both sides."""


@dataclass
class _Aging:
    """A record and the two moments between which it was written."""

    data: bytes
    earliest_ms: int
    latest_ms: int
    is_gone: bool | None = False  # None: may be


class Fading:
    """A client that writes, and changes how long records live."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._random = Random(seed)
        self._payloads = Payloads(name)
        self._ttls = {1_500}  # how long records live, as far as known
        self._records: dict[int, _Aging] = {}
        self._unknown: dict[bytes, int] = {}  # data -> when it was sent
        self._is_made = False
        self._head = self._earliest = 0
        self.answered = 0

    async def act(self, wire: Wire) -> None:
        if self._random.random() < 0.1:
            await self._change(wire)
        else:
            await self._write(wire)
        self.answered += 1

    async def _write(self, wire: Wire) -> None:
        records = self._payloads.some(self._random)[:5]
        sent_ms = _now_ms()
        self._unknown |= {record.data: sent_ms for record in records}
        body = write_body(records)
        told = (await wire.call("POST", f"/v0/topics/{self._name}", body)).ok()
        now_ms = _now_ms()
        for seq, record in zip(
            range(told["first_seq"], told["last_seq"] + 1), records, strict=True
        ):
            assert seq > self._head, f"{self._name}: seq {seq} was given out twice"
            self._records[seq] = _Aging(record.data, sent_ms, now_ms)
            del self._unknown[record.data]
        self._head = told["head_seq"]

    async def _change(self, wire: Wire) -> None:
        ttl_ms = self._random.choice((100, 600, 1_500, 5_000))
        self._age(_now_ms(), sure=False)
        self._ttls.add(ttl_ms)
        body = {"ttl_ms": ttl_ms}
        (await wire.ask("PUT", f"/v0/topics/{self._name}", body)).ok()
        self._age(_now_ms(), sure=False)
        self._ttls = {ttl_ms}

    def _age(self, now_ms: int, *, sure: bool) -> None:
        """What may have left by now has maybe left; with `sure`, what must have left has."""
        for record in self._records.values():
            if record.is_gone:
                continue
            if sure and now_ms - record.latest_ms > max(self._ttls) + MARGIN_MS:
                record.is_gone = True
            elif now_ms - record.earliest_ms > min(self._ttls) - MARGIN_MS:
                record.is_gone = None

    async def check(self, wire: Wire) -> None:
        if not self._is_made:
            body = {"ttl_ms": 1_500, "durability": "disk"}
            (await wire.ask("PUT", f"/v0/topics/{self._name}", body)).ok()
            self._is_made = True
        self._age(_now_ms(), sure=True)
        whole = await wire.whole(self._name)
        assert whole is not None, f"{self._name} is gone"
        self._age(_now_ms(), sure=False)
        assert whole.head_seq >= self._head, f"{self._name}: the head went back"
        assert whole.earliest_seq >= self._earliest, f"{self._name}: the floor went back"
        self._head, self._earliest = whole.head_seq, whole.earliest_seq
        for seq, record in self._records.items():
            if seq in whole.records:
                assert record.is_gone is not True, f"{self._name}: seq {seq} came back"
                assert bytes(whole.records[seq].data) == record.data
            else:
                assert record.is_gone is not False, f"{self._name}: seq {seq} left too early"
        self._keep(whole.records)
        ttl_ms = whole.config["ttl_ms"]
        assert ttl_ms in self._ttls
        self._ttls = {ttl_ms}

    def _keep(self, found: dict) -> None:
        """Go on with what is there; only what was never answered may be new."""
        kept: dict[int, _Aging] = {}
        for seq, record in found.items():
            data = bytes(record.data)
            known = self._records.get(seq)
            if known is None:
                sent_ms = self._unknown[data]
                known = _Aging(data, sent_ms, record.ts)
            known.is_gone = False
            kept[seq] = known
        self._records = kept
        self._unknown = {}

    async def finish(self, wire: Wire) -> None:
        await self.check(wire)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
