"""Reading topics back: pages of JSON and of Arrow through the Python client, against writing"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from bench import servers
from bench.load import connect, http_is_whole, pin, post
from bench.report import Report
from penstock.client import Client

RECORDS = 200_000
RECORD = b'{"data":{"meter":17,"kwh":1.25,"at":"2026-01-01T00:00:00Z"}}'
ROUNDS = 9
ARROW_PAGE = 50_000
TINY = {"RECORDS": 2_000, "ROUNDS": 1}


def run(report: Report) -> None:
    pin(1)
    with servers.penstock() as port:
        writes = max(write(port, f"w{number}", RECORDS // 4) for number in range(3))
        fill(port, "t")
        with Client(f"http://127.0.0.1:{port}") as client:
            raw = best(lambda: pages(port))
            json_rate = best(lambda: read_json(client))
            first_rate = max(read_arrow(client, f"w{n}", RECORDS // 4) for n in range(3))
            arrow_rate = best(lambda: read_arrow(client, "t", RECORDS))
    report.row("written, 100 a request", writes, "records/s")
    ratio = raw / writes
    report.row("JSON, 1,000 a page, as bytes", raw, "records/s", ratio=ratio,
               against="written, 100 a request", goal="at least 3×", met=ratio >= 3)  # fmt: skip
    report.row("JSON, 1,000 a page, as objects of the client", json_rate, "records/s")
    report.row(f"Arrow, {ARROW_PAGE:,} a page, when no client has read them before", first_rate,
               "records/s", ratio=first_rate / json_rate,
               against="JSON, as objects of the client")  # fmt: skip
    ratio = arrow_rate / json_rate
    report.row(f"Arrow, {ARROW_PAGE:,} a page, as a table of the client", arrow_rate, "records/s",
               ratio=ratio, against="JSON, as objects of the client", goal="at least 10×",
               met=ratio >= 10)  # fmt: skip


def best(measure: Callable[[], float]) -> float:
    """The best of several rounds: the machine is shared."""
    return max(measure() for _ in range(ROUNDS))


def write(port: int, topic: str, count: int) -> float:
    """Write so many records, 100 in a request, one request after another; records a second."""
    request = post(f"/v0/topics/{topic}", b'{"records":[%b]}' % b",".join([RECORD] * 100))
    connection = connect(port, 1)[0]
    began = time.perf_counter()
    for _ in range(count // 100):
        connection.sendall(request)
        receive(connection)
    spent = time.perf_counter() - began
    connection.close()
    return count / spent


def fill(port: int, topic: str) -> None:
    """Write the records that are read: not all alike, or compressing them would tell nothing."""
    draw = Random(7)
    connection = connect(port, 1)[0]
    for _ in range(RECORDS // 100):
        records = [
            b'{"data":{"meter":%d,"kwh":%.2f,"at":"2026-01-%02dT%02d:%02d:%02dZ"}}'
            % (
                draw.randrange(10, 100),
                draw.uniform(1, 10),
                draw.randrange(1, 32),
                draw.randrange(24),
                draw.randrange(60),
                draw.randrange(60),
            )
            for _ in range(100)
        ]
        connection.sendall(post(f"/v0/topics/{topic}", b'{"records":[%b]}' % b",".join(records)))
        receive(connection)
    connection.close()


def receive(connection) -> bytes:  # type: ignore[no-untyped-def]
    answer = b""
    while not (answer and http_is_whole(answer)):
        answer += connection.recv(1 << 20)
    return answer


def pages(port: int) -> float:
    """Every page as bytes: what the server alone does."""
    connection = connect(port, 1)[0]
    began = time.perf_counter()
    for from_seq in range(0, RECORDS, 1_000):
        connection.sendall(post("/v0/topics/t/diff", b'{"from_seq":%d,"limit":1000}' % from_seq))
        receive(connection)
    spent = time.perf_counter() - began
    connection.close()
    return RECORDS / spent


def read_json(client: Client) -> float:
    began = time.perf_counter()
    from_seq = count = 0
    while count < RECORDS:
        page = client.diff("t", from_seq=from_seq, limit=1_000)
        count += len(page.records)
        from_seq = page.next_from_seq
    return count / (time.perf_counter() - began)


def read_arrow(client: Client, topic: str, records: int) -> float:
    began = time.perf_counter()
    from_seq = count = 0
    while count < records:
        table = client.diff_arrow(topic, from_seq=from_seq, limit=ARROW_PAGE)
        count += table.num_rows
        from_seq = int(table.schema.metadata[b"next_from_seq"])
    return count / (time.perf_counter() - began)
