"""Load in a process of its own: more requests than a cluster can take, each with its key.

`python -m tests.soak.pressing` reads one JSON object: `urls` (host:port of all nodes), `topics`,
`name`, `connections`, `window` (requests under way on a connection, 0: any number), `rate` (a
second, 0: as answers come), `seconds`, `record_bytes`, and the `path` for what became of each
request. It prints one JSON object.

SIGTERM ends the load before its time. With a rate, requests are sent when they are due, whatever is
under way: a connection whose peer reads no more holds `HELD_BYTES`, and what is due beyond that is
counted as turned away. A request whose outcome is unknown is sent again with its key until it is
known.
"""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, Final

from penstock.flow.histogram import LatencyHistogram

HELD_BYTES: Final = 64 * 1_024
STEP_S: Final = 0.002
PATIENCE_S: Final = 300.0
"""How long after the load everything that was sent may take to be answered."""
NOT_SENT, SENT, ACKNOWLEDGED, REFUSED = range(4)
"""What is known of a request; a refusal is definite: nothing of it may be in the log."""
NUMBER_DIGITS: Final = 10
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection:
    """One connection: what waits to be sent, and the numbers whose answers are to come."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self.waiting: deque[tuple[int, int]] = deque()  # number, when it was due
        self.open()

    def open(self) -> None:
        self.socket = socket.create_connection(self._address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HELD_BYTES)
        self.socket.setblocking(False)
        self.unsent, self.received = bytearray(), b""

    def put(self, number: int, due_ns: int, request: bytes) -> None:
        self.waiting.append((number, due_ns))
        self.unsent += request

    def flush(self) -> None:
        if self.unsent:
            try:
                del self.unsent[: self.socket.send(self.unsent)]
            except BlockingIOError:
                return


class Pressing:
    """The load of one process."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.states = bytearray()
        self.outcomes: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.turned_away = self.lost_connections = self.without_retry_after = 0
        self.latency = LatencyHistogram()
        self.is_over = False
        self._again: deque[int] = deque()  # their outcome is unknown
        self._unsure: set[int] = set()  # a refusal of these says nothing of an earlier try
        self._window = wanted["window"]
        self._filler = b"x" * wanted["record_bytes"]
        self._topics = [topic.encode() for topic in wanted["topics"]]
        self._poll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._all = [
            Connection(wanted["urls"][each % len(wanted["urls"])])
            for each in range(wanted["connections"])
        ]
        for connection in self._all:
            self._register(connection)

    def run(self) -> dict[str, Any]:
        """Press for a while, then wait until everything is known."""
        rate, began_s = self.wanted["rate"], time.monotonic()
        until_s = began_s + self.wanted["seconds"]
        due = 0
        while (now_s := time.monotonic()) < until_s and not self.is_over:
            if rate:
                came, due = due, int((now_s - began_s) * rate)
                for turn in range(came, due):
                    self._offer(self._all[turn % len(self._all)])
            else:
                for connection in self._all:
                    while len(connection.waiting) < self._window:
                        self._send_new(connection)
            self._pump()
        spent_s = time.monotonic() - began_s
        acknowledged = self.states.count(ACKNOWLEDGED)
        self._finish(time.monotonic() + PATIENCE_S)
        for connection in self._all:
            connection.socket.close()
        self._poll.close()
        Path(self.wanted["path"]).write_bytes(self.states)
        p50_ns, p99_ns = self.latency.quantiles((0.5, 0.99))
        return {
            "offered": len(self.states) + self.turned_away, "sent": len(self.states),
            "turned_away": self.turned_away, "acknowledged_in_time": acknowledged,
            "acknowledged": self.states.count(ACKNOWLEDGED),
            "refused": self.states.count(REFUSED), "unknown": self.states.count(SENT),
            "outcomes": self.outcomes, "examples": self.examples,
            "without_retry_after": self.without_retry_after,
            "lost_connections": self.lost_connections, "seconds": spent_s,
            "p50_ms": p50_ns / 1e6, "p99_ms": p99_ns / 1e6,
        }  # fmt: skip

    def _finish(self, until_s: float) -> None:
        """Wait for all answers, and send again what is unknown."""
        while any(each.waiting for each in self._all) or self._again:
            if time.monotonic() > until_s:
                return
            for connection in self._all:
                if self._again and not connection.waiting:
                    self._send(connection, self._again.popleft())
            self._pump()

    def _offer(self, connection: Connection) -> None:
        if len(connection.unsent) > HELD_BYTES:
            self.turned_away += 1
        elif self._again:
            self._send(connection, self._again.popleft())
        else:
            self._send_new(connection)

    def _send_new(self, connection: Connection) -> None:
        self.states.append(NOT_SENT)
        self._send(connection, len(self.states) - 1)

    def _send(self, connection: Connection, number: int) -> None:
        self.states[number] = SENT
        connection.put(number, time.monotonic_ns(), self._request(number))

    def _request(self, number: int) -> bytes:
        name = f"{self.wanted['name']}:{number:0{NUMBER_DIGITS}}".encode()
        body = b'{"records":[{"data":"%b:%b"}],"idempotency_key":"%b"}' % (name, self._filler, name)
        topic = self._topics[number % len(self._topics)]
        return (
            b"POST /v0/topics/%b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (topic, len(body), body)
        )

    # What the sockets say

    def _register(self, connection: Connection) -> None:
        fd = connection.socket.fileno()
        self._by_fd[fd] = connection
        self._poll.register(fd, select.EPOLLIN)

    def _pump(self) -> None:
        for connection in self._all:
            connection.flush()
        for fd, _ in self._poll.poll(STEP_S):
            connection = self._by_fd[fd]
            try:
                data = connection.socket.recv(1 << 18)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if data:
                self._take(connection, connection.received + data)
            else:
                self._reopen(fd, connection)

    def _reopen(self, fd: int, connection: Connection) -> None:
        """What was under way is unknown, even what was not sent: the same key tells."""
        self.lost_connections += 1
        del self._by_fd[fd]
        connection.socket.close()
        for number, _ in connection.waiting:
            self._repeat(number)
        connection.waiting.clear()
        connection.open()
        self._register(connection)

    def _take(self, connection: Connection, data: bytes) -> None:
        at = 0
        while (head_end := data.find(b"\r\n\r\n", at)) >= 0:
            head = data[at : head_end + 2]
            length = _LENGTH.search(head)
            assert length is not None, head
            end = head_end + 4 + int(length[1])
            if end > len(data):
                break
            self._answered(connection, head, data[head_end + 4 : end])
            at = end
        connection.received = data[at:]

    def _answered(self, connection: Connection, head: bytes, body: bytes) -> None:
        number, due_ns = connection.waiting.popleft()
        status = int(head[9:12])
        if status in (200, 201):
            self.states[number] = ACKNOWLEDGED
            self.latency.record(time.monotonic_ns() - due_ns)
            return
        error = json.loads(body)["error"]
        outcome = f"{status} {error['code']}"
        self.outcomes[outcome] += 1
        self.examples.setdefault(outcome, body.decode()[:300])
        if status in (429, 503):
            self.without_retry_after += b"\r\nretry-after:" not in head.lower()
        if error.get("outcome") == "unknown" or number in self._unsure:
            self._repeat(number)
        elif status in (429, 503):
            self.states[number] = REFUSED
        else:
            raise AssertionError(body.decode())

    def _repeat(self, number: int) -> None:
        self._unsure.add(number)
        self._again.append(number)


def main() -> None:
    """Press as the input says."""
    pressing = Pressing(json.load(sys.stdin))

    def end(*_: object) -> None:
        pressing.is_over = True

    signal.signal(signal.SIGTERM, end)
    print(json.dumps(pressing.run()))


if __name__ == "__main__":
    main()
