"""Queues under several workers: what was acked stays away, everything else comes back.

A job that was delivered too often is in the topic of dead letters, once. Leases that are durable
hold across a crash.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from tests.integration.server.crash.payloads import Payloads, write_body
from tests.integration.server.crash.wire import Record, Wire

LEASE_MS = 4_000
LIVE_MAX = 150
DRAIN_S = 30.0


@dataclass
class _Lease:
    """A job in someone's hands, as the answer to the claim said."""

    node: str
    lease_id: str
    deadline_ms: int


@dataclass
class Jobs:
    """A queue and all that is known of it."""

    name: str
    dead: str
    durable: bool
    near: bool  # whether dead letters live on the queue's own partition
    jobs: dict[int, bytes] = field(default_factory=dict)  # answered writes, less what is finished
    unknown: list[list[bytes]] = field(default_factory=list)
    given: set[int] = field(default_factory=set)  # every seq that a write was told
    finished: set[int] = field(default_factory=set)
    finishing: set[int] = field(default_factory=set)
    leases: dict[int, _Lease] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)
    letters: dict[int, int] = field(default_factory=dict)  # seq of the job -> seq of its letter
    is_set_up: bool = False

    async def set_up(self, wire: Wire) -> None:
        config = {
            "type": "queue",
            "leases_durable": self.durable,
            "lease_ms": LEASE_MS,
            "max_deliveries": 2,
            "dead_letter": self.dead,
            "durability": "fsync" if self.durable else "disk",
        }
        (await wire.ask("PUT", f"/v0/topics/{self.name}", config)).ok()
        self.is_set_up = True

    async def check(self, wire: Wire) -> None:
        if not self.is_set_up:
            await self.set_up(wire)
        whole = await wire.whole(self.name)
        assert whole is not None, f"{self.name} is gone"
        await self._read_letters(wire)
        live = whole.records
        self._settle_unknown(live)
        back = sorted(self.finished & live.keys())
        assert not back, f"{self.name}: jobs {back[:9]} were acked and are there"
        lost = sorted(self.jobs.keys() - live.keys() - self.letters.keys() - self.finishing)
        assert not lost, f"{self.name}: jobs {lost[:9]} are lost"
        if self.near:
            both = sorted(self.letters.keys() & live.keys())
            assert not both, f"{self.name}: jobs {both[:9]} are dead and alive"
        for seq, record in live.items():
            assert self.jobs[seq] == bytes(record.data), f"{self.name}: job {seq} is another"
        self.finished |= self.jobs.keys() - live.keys()
        self.jobs = {seq: self.jobs[seq] for seq in live}
        self.finishing.clear()
        if not self.durable:
            self.leases.clear()
            self.deliveries.clear()
        self._forget_leases()
        await self._check_leases(wire)

    def _forget_leases(self) -> None:
        """Forget leases on jobs that are gone, and those that are over.

        The holder of a lease that was over may have claimed its job again without hearing of it.
        Extended with no token, that lease goes on, and the old token is no longer its own.
        """
        now_ms = _now_ms()
        self.leases = {
            seq: lease
            for seq, lease in self.leases.items()
            if seq in self.jobs and lease.deadline_ms >= now_ms
        }

    def _settle_unknown(self, live: dict[int, Record]) -> None:
        """Writes without an answer: whole or not at all; burials and acks take only known jobs."""
        places = {bytes(record.data): seq for seq, record in live.items()}
        away = self.finished | self.finishing | self.letters.keys()
        for datas in self.unknown:
            starts = {places[data] - at for at, data in enumerate(datas) if data in places}
            assert len(starts) < 2, f"{self.name}: a write is torn"
            for first in starts:
                seqs = range(first, first + len(datas))
                missing = set(seqs) - live.keys() - away
                assert not missing, f"{self.name}: a write is torn: {missing} are missing"
                self.given.update(seqs)
                self.jobs |= zip(seqs, datas, strict=True)
        self.unknown.clear()

    async def _read_letters(self, wire: Wire) -> None:
        whole = await wire.whole(self.dead)
        for place, record in (whole.records if whole else {}).items():
            meta = msgspec.json.decode(record.meta_bytes or b"{}")
            assert meta["$dead_letter_from"] == self.name
            seq = int(meta["$dead_letter_src_seq"])
            old = self.letters.setdefault(seq, place)
            assert old == place, f"{self.dead}: job {seq} has letters {old} and {place}"
            if seq in self.jobs:
                assert bytes(record.data) == self.jobs[seq], f"{self.dead}: letter {place}"
        if whole and len(whole.records) > LIVE_MAX:
            body = {"before_seq": whole.head_seq + 1}
            (await wire.ask("POST", f"/v0/topics/{self.dead}/delete", body)).ok()

    async def _check_leases(self, wire: Wire) -> None:
        """Leases that are durable are still held: their holders, and only they, may use them."""
        for seq, lease in list(self.leases.items()):
            if lease.deadline_ms < _now_ms() + 1_000:
                continue
            body = {"node": lease.node, "seqs": [seq], "lease_ids": [lease.lease_id]}
            stranger = {**body, "node": "stranger"}
            told = (await wire.ask("POST", f"/v0/topics/{self.name}/ack", stranger)).ok()
            assert told["skipped"] == [seq]
            if seq % 2:
                told = (await wire.ask("POST", f"/v0/topics/{self.name}/ack", body)).ok()
                if _now_ms() <= lease.deadline_ms:
                    assert told["acked"] == 1, f"{self.name}: the lease on {seq} was lost: {lease}"
                if told["acked"]:
                    self.finish_job(seq)
                self.leases.pop(seq)

    def finish_job(self, seq: int) -> None:
        self.finished.add(seq)
        self.finishing.discard(seq)
        self.jobs.pop(seq, None)

    async def finish(self, wire: Wire) -> None:
        await self.check(wire)
        await self._drain(wire)

    async def _drain(self, wire: Wire) -> None:
        """Every job that is left comes to a worker, once all leases are over."""
        until = time.monotonic() + DRAIN_S
        left = set(self.jobs)
        while left:
            body = {"node": "end", "max": 1_000, "lease_ms": 60_000}
            told = (await wire.ask("POST", f"/v0/topics/{self.name}/claim", body)).ok()
            left -= {job["$seq"] for job in told["claimed"]}
            if left:
                await self._read_letters(wire)
                left -= self.letters.keys()
            assert time.monotonic() < until, f"{self.name}: jobs {sorted(left)[:9]} never come"
            if left and not told["claimed"]:
                await asyncio.sleep(0.05)


class Feeder:
    """Puts jobs into queues."""

    def __init__(self, name: str, seed: int, queues: list[Jobs]) -> None:
        self._random = Random(seed)
        self._payloads = Payloads(name)
        self._queues = queues
        self.answered = 0

    async def act(self, wire: Wire) -> None:
        queue = self._random.choice(self._queues)
        if len(queue.jobs) > LIVE_MAX:
            (await wire.ask("GET", f"/v0/topics/{queue.name}")).ok()
            return
        records = self._payloads.some(self._random)[:9]
        datas = [record.data for record in records]
        queue.unknown.append(datas)
        body = write_body(records)
        told = (await wire.call("POST", f"/v0/topics/{queue.name}", body)).ok()
        queue.unknown.remove(datas)
        seqs = range(told["first_seq"], told["last_seq"] + 1)
        taken = queue.given.intersection(seqs)
        assert not taken, f"{queue.name}: seqs {taken} were given out twice"
        queue.given.update(seqs)
        for seq, data in zip(seqs, datas, strict=True):
            if seq not in queue.finished:  # a worker may have been quicker than this answer
                queue.jobs[seq] = data
        self.answered += 1


class Worker:
    """Claims jobs and does one thing or another with them."""

    def __init__(self, node: str, seed: int, queues: list[Jobs]) -> None:
        self._node = node
        self._random = Random(seed)
        self._queues = queues
        self.answered = 0

    async def act(self, wire: Wire) -> None:
        queue = self._random.choice(self._queues)
        mine = [seq for seq, lease in queue.leases.items() if lease.node == self._node]
        if len(mine) < 4:
            await self._claim(wire, queue)
        else:
            seqs = self._random.sample(mine, self._random.randrange(1, len(mine) + 1))
            settle = self._random.choices((self._ack, self._nack, self._extend), (5, 3, 1))[0]
            await settle(wire, queue, seqs)
        self.answered += 1

    async def _claim(self, wire: Wire, queue: Jobs) -> None:
        lease_ms = self._random.choice((100, LEASE_MS, LEASE_MS))
        body = {"node": self._node, "max": self._random.choice((1, 3, 10)), "lease_ms": lease_ms}
        told = (await wire.ask("POST", f"/v0/topics/{queue.name}/claim", body)).ok()
        for job in told["claimed"]:
            seq = job["$seq"]
            assert seq not in queue.finished, f"{queue.name}: job {seq} was acked and came back"
            held = queue.leases.get(seq)
            assert held is None or held.deadline_ms < _now_ms(), f"{queue.name}: {seq} is held"
            before = queue.deliveries.get(seq, 0)
            assert job["deliveries"] > before, f"{queue.name}: {seq} forgot its deliveries"
            queue.deliveries[seq] = job["deliveries"]
            queue.leases[seq] = _Lease(self._node, job["lease_id"], job["deadline"])

    def _body(self, queue: Jobs, seqs: list[int], **more: Any) -> dict[str, Any]:
        """What is said of jobs; until it is answered, nothing is known of their leases."""
        leases = [queue.leases.pop(seq) for seq in seqs]
        fences = [self._random.choice((lease.lease_id, "")) for lease in leases]
        return {"node": self._node, "seqs": seqs, "lease_ids": fences, **more}

    async def _ack(self, wire: Wire, queue: Jobs, seqs: list[int]) -> None:
        queue.finishing.update(seqs)
        body = self._body(queue, seqs)
        told = (await wire.ask("POST", f"/v0/topics/{queue.name}/ack", body)).ok()
        assert told["acked"] + len(told["skipped"]) == len(seqs)
        queue.finishing.difference_update(seqs)
        for seq in set(seqs) - set(told["skipped"]):
            queue.finish_job(seq)

    async def _nack(self, wire: Wire, queue: Jobs, seqs: list[int]) -> None:
        body = self._body(queue, seqs, delay_ms=self._random.choice((0, 0, 30)))
        (await wire.ask("POST", f"/v0/topics/{queue.name}/nack", body)).ok()

    async def _extend(self, wire: Wire, queue: Jobs, seqs: list[int]) -> None:
        held = {seq: queue.leases[seq] for seq in seqs}
        body = self._body(queue, seqs, lease_ms=self._random.choice((100, LEASE_MS)))
        told = (await wire.ask("POST", f"/v0/topics/{queue.name}/extend", body)).ok()
        for seq in set(seqs) - set(told["skipped"]):
            lease = held[seq]
            queue.leases[seq] = _Lease(lease.node, lease.lease_id, told["deadlines"][str(seq)])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
