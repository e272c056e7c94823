"""More than the log can take, on a running server: refused in time, and told when to come again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.kernel.units import MIB
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Answer, Api, at, done, until

RATE = 16 * MIB
LIMIT_MS = 1_000
WRITERS = 32
"""So many megabytes are under way: twice what the disk takes within the limit."""
SECONDS = 5.0
BODY = {"records": [{"data": "x" * 1_000_000}]}


class SlowDiskServer(ServerProcess):
    """A server whose log is on a slow disk."""

    command = (str(Path(__file__).with_name("slow_disk.py")), str(RATE), "serve")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = SlowDiskServer(tmp_path, MAX_LOG_WAIT_MS=LIMIT_MS)
    try:
        yield process.start()
    finally:
        process.close()


@dataclass
class Load:
    """Writers that go on until they are told to end, each with one write under way."""

    api: Api
    ends: threading.Event = field(default_factory=threading.Event)
    refused: list[Answer] = field(default_factory=list)
    took_ms: list[tuple[float, float]] = field(default_factory=list)  # when it began, how long
    failures: list[BaseException] = field(default_factory=list)

    def write(self) -> None:
        try:
            link = self.api.connect()
            while not self.ends.is_set():
                began = time.monotonic()
                answer = self.api.exchange(link, "POST", at("t"), BODY)
                if answer.status == 200:
                    self.took_ms.append((began, (time.monotonic() - began) * 1e3))
                else:
                    assert answer.status == 429, str(answer)
                    self.refused.append(answer)
                    self.ends.wait(0.1)  # sooner than it was told: the load stays too much
            link.close()
        except BaseException as error:
            self.failures.append(error)

    def run(self) -> float:
        """Load the server for a while; when it had refused its first write."""
        writers = [threading.Thread(target=self.write) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            until(lambda: self.refused or self.failures, "a refusal", 30)
            refused_at = time.monotonic()
            self.ends.wait(SECONDS)
        finally:
            self.ends.set()
            for writer in writers:
                writer.join(60)
        assert not self.failures
        return refused_at


def test_more_than_the_log_can_take_is_refused_in_time_and_told_when_to_come_again(server):
    api = Api(server.address)
    api.make("t", durability="fsync")
    load = Load(api)
    refused_at = load.run()

    waits_ms = []
    for answer in load.refused:
        error = answer.json["error"]
        assert error["code"] == "throttled"
        assert "limit" not in error["detail"], "no cap was the cause"
        wait_ms = error["detail"]["retry_after_ms"]
        assert int(answer.headers["retry-after"]) == math.ceil(wait_ms / 1_000)
        waits_ms.append(wait_ms)
    assert min(waits_ms) >= LIMIT_MS
    assert max(waits_ms) < 10 * LIMIT_MS
    assert len(set(waits_ms)) > 1, "the wait follows from what waits"

    later_ms = sorted(took for began, took in load.took_ms if began > refused_at)
    assert later_ms, "some are still taken"
    assert later_ms[len(later_ms) * 99 // 100] < 3 * LIMIT_MS

    assert api.state("t")["head_seq"] == len(load.took_ms), "what was refused was not appended"
    until(lambda: not done(api.get("/v0/scheduler"))["refusing"], "the end of it", 30)
    api.write("t", "afterwards")
