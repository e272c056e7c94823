"""Jobs of a queue through changes of leaders: each is acknowledged once, by its only holder."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from penstock.client import Client
from penstock.kernel.errors import Rejected
from penstock.protocol.errors import CallError
from tests.integration.cluster.load import PATIENT_S, settings
from tests.integration.cluster.processes import Processes
from tests.waiting import wait_until


@dataclass
class Hold:
    """One lease of a job, from the answer to the claim until its holder acks or it has ended."""

    seq: int
    holder: str
    began_s: float
    ends_s: float
    acked: str = "no"


class Worker(threading.Thread):
    """Claims jobs and acknowledges them; now and then it forgets one or extends a lease."""

    def __init__(self, urls: str, topic: str, number: int, lease_ms: int, seed: int) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.holds: list[Hold] = []
        self.error: Exception | None = None
        self._topic, self._lease_ms = topic, lease_ms
        self._client = Client(settings(urls, number))
        self._random = Random(seed * 1_000 + number)
        self._ends = threading.Event()

    def run(self) -> None:
        try:
            with self._client:
                while not self._ends.is_set():
                    self._work()
        except Exception as error:
            self.error = error

    def _work(self) -> None:
        asked_s = time.monotonic()
        try:
            claims = self._client.claim(self._topic, self.name, count=4, lease_ms=self._lease_ms)
        except CallError as error:
            if isinstance(error, Rejected):
                raise
            return
        answered_s, span_s = time.monotonic(), self._lease_ms / 1e3
        for job in claims.claimed:
            hold = Hold(job.seq, self.name, answered_s, asked_s + span_s)
            self.holds.append(hold)
            if self._random.random() < 0.05:
                continue  # forgotten: it comes back when its lease has ended
            if self._random.random() < 0.2:
                self._extend(hold, job)
            self._ack(hold, job)
        if not claims.claimed:
            self._ends.wait(0.05)

    def _extend(self, hold: Hold, job: object) -> None:
        asked_s = time.monotonic()
        try:
            done = self._client.extend(self._topic, self.name, [job], lease_ms=self._lease_ms)
        except CallError:
            return
        if done.extended:
            hold.ends_s = asked_s + self._lease_ms / 1e3

    def _ack(self, hold: Hold, job: object) -> None:
        until_s = time.monotonic() + PATIENT_S
        hold.ends_s = min(hold.ends_s, time.monotonic())
        while True:
            try:
                acked = self._client.ack(self._topic, self.name, [job])
            except CallError:
                if time.monotonic() > until_s:
                    raise
                continue
            # An ack that is repeated is skipped if its first try took effect: that is not known.
            hold.acked = "yes" if acked.acked else "perhaps"
            return

    def end(self) -> None:
        self._ends.set()
        self.join(PATIENT_S + 60)
        assert not self.is_alive(), self.name
        if self.error is not None:
            raise self.error


def put_jobs(urls: str, topic: str, jobs: int) -> None:
    """Make a queue and put numbered jobs in."""
    with Client(settings(urls)) as client:
        client.put_topic(topic, type="queue", leases_durable=True, idempotency_window_ms=3_600_000)
        for start in range(0, jobs, 100):
            values = list(range(start, min(jobs, start + 100)))
            client.write(topic, values, idempotency_key=f"jobs {start}")


def wait_done(made: Processes, topic: str, workers: list[Worker]) -> None:
    """Wait until the queue is empty."""

    def is_empty() -> bool:
        for worker in workers:
            if worker.error is not None:
                raise worker.error
        with Client(settings(made.urls)) as client:
            state = client.get_topic(topic)
        left[:] = [state.count]
        return state.count == 0

    left: list[int] = []
    wait_until(is_empty, lambda: f"all jobs to be done: {left} are left", PATIENT_S)


def check_jobs(workers: list[Worker], jobs: int) -> int:
    """Each job was acknowledged once, and no two leases of it were valid at a time."""
    holds: dict[int, list[Hold]] = {}
    for worker in workers:
        for hold in worker.holds:
            holds.setdefault(hold.seq, []).append(hold)
    assert sorted(holds) == list(range(1, jobs + 1)), set(range(1, jobs + 1)) - holds.keys()
    for seq, leases in holds.items():
        leases.sort(key=lambda hold: hold.began_s)
        acked = [hold for hold in leases if hold.acked == "yes"]
        perhaps = [hold for hold in leases if hold.acked == "perhaps"]
        assert len(acked) == 1 or (not acked and perhaps), (seq, leases)
        for one, other in pairwise(leases):
            assert one.ends_s <= other.began_s, f"job {seq} has two holders: {one}, {other}"
    return sum(map(len, holds.values()))
