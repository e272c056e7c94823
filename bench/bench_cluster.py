"""Three nodes on this machine against one: writes, delivery, reads, processors; NATS R3 and etcd"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterable
from functools import partial

from bench import cluster_peers, servers
from bench.bench_delivery import Delays, Drive, over_http, watching
from bench.bench_write import RECORD, body
from bench.cluster_peers import PARTITIONS, Nodes
from bench.cpu import Meter
from bench.load import Outcome, closed_loop, connect, http_is_whole, paced, post
from bench.peers import take_turns
from bench.report import Report

CONNECTIONS = 64
SECONDS = 2.0
IDLE_S = 10.0
DELIVERY_S = 3.0
ROUNDS = 3
TOPICS = 64
NATS = "NATS JetStream R3, sync always"
ETCD = "etcd, three nodes"
TINY = {
    "CONNECTIONS": 4, "SECONDS": 0.1, "IDLE_S": 0.2, "DELIVERY_S": 0.1, "ROUNDS": 1, "TOPICS": 4,
}  # fmt: skip

Found = dict[str, float]


def run(report: Report) -> None:
    ours = {"single": single, "cluster": cluster}
    rounds = take_turns(ROUNDS, ours, {NATS: nats, ETCD: etcd})
    best: Found = {}
    for found in (each for many in rounds.values() for each in many):
        for name, value in found.items():
            better = max if name.startswith("rate") else min
            best[name] = better(best.get(name, value), value)
    tell_writes(report, best)
    tell_peers(report, best)
    tell_processors(report, best)
    tell_latency(report, best)


def tell_writes(report: Report, best: Found) -> None:
    for count, goal in ((1, 0.5), (100, 0.4)):
        alone, three = best[f"rate single {count}"], best[f"rate cluster {count}"]
        report.row(f"one node, {count} a request", alone, "records/s")
        report.row(f"three nodes, {count} a request", three, "records/s", ratio=three / alone,
                   against="one node", goal=f"at least {goal}×",
                   met=three / alone >= goal)  # fmt: skip


def tell_peers(report: Report, best: Found) -> None:
    goals = {(NATS, 1): 1.2, (NATS, 100): 4.0, (ETCD, 1): 1.8, (ETCD, 100): 12.0}
    for (peer, count), goal in goals.items():
        theirs = best.get(f"rate {peer} {count}")
        if theirs is None:
            continue
        ratio = best[f"rate cluster {count}"] / theirs
        name = f"{peer}, {count} a request"
        report.row(name, theirs, "records/s")
        report.row(f"three nodes against {name}", best[f"rate cluster {count}"], "records/s",
                   ratio=ratio, against=peer, goal=f"at least {goal}×",
                   met=ratio >= goal)  # fmt: skip


def tell_processors(report: Report, best: Found) -> None:
    for count, lead_goal, follow_goal in ((1, 1.25, 0.5), (100, 1.35, 0.75)):
        alone, lead = best[f"cpu single {count}"], best[f"cpu leader {count}"]
        follow = best[f"cpu follower {count}"]
        report.row(f"leader's processor time a record, {count} a request", lead, "µs",
                   ratio=lead / alone, against="one node", goal=f"at most {lead_goal}×",
                   met=lead / alone <= lead_goal)  # fmt: skip
        report.row(f"follower's processor time a record, {count} a request", follow, "µs",
                   ratio=follow / lead, against="the leader", goal=f"at most {follow_goal}×",
                   met=follow / lead <= follow_goal)  # fmt: skip
    report.row(f"idle, {PARTITIONS} partitions: the busiest node", best["idle"], "% of a core",
               goal="at most 1 %", met=best["idle"] <= 1)  # fmt: skip


def tell_latency(report: Report, best: Found) -> None:
    for what, limit in (("p50", None), ("p99", 3.0)):
        alone, three = best[f"{what} single"], best[f"{what} cluster"]
        ratio = three / alone
        report.row(f"one node at half of its most: {what}", alone, "ms")
        report.row(f"three nodes at half of their most: {what}", three, "ms", ratio=ratio,
                   against="one node", goal=limit and f"at most {limit:g}×",
                   met=None if limit is None else ratio <= limit)  # fmt: skip
    for what, limit_ms in (("p50", 3), ("p99", 15)):
        value = best[f"delivery {what}"]
        report.row(f"write at the leader to a watcher on a follower, 1,000/s: {what}", value, "ms",
                   goal=f"at most {limit_ms} ms", met=value <= limit_ms)  # fmt: skip
    local, sure = best["rate local reads"], best["rate sure reads"]
    report.row("reads on a follower of what it has", local, "1/s")
    report.row("linearizable reads on a follower", sure, "1/s", ratio=sure / local,
               against="local reads", goal="at least 0.3×", met=sure / local >= 0.3)  # fmt: skip


def single() -> Found:
    with servers.penstock_process(PENSTOCK_WAL_SHARDS=str(PARTITIONS)) as (port, pid):
        topics(port)
        return measured("single", port, {"single": [pid]})


def cluster() -> Found:
    with cluster_peers.penstock() as nodes:
        topics(nodes.ports[0])
        groups: dict[str, Iterable[int]] = {"leader": nodes.pids[:1], "follower": nodes.pids[1:2]}
        found = measured("cluster", nodes.ports[0], groups)
        found |= delivery(nodes)
        found |= reads(nodes.ports[1])
        return found | idle(nodes)


def topics(port: int) -> None:
    """A topic for each connection, every write of which is synced on one node too."""
    connection = connect(port, 1)[0]
    for number in range(TOPICS):
        request = post(f"/v0/topics/t{number}", b'{"durability":"fsync"}')
        connection.sendall(request.replace(b"POST", b"PUT", 1))
        answer = b""
        while not (answer and http_is_whole(answer)):
            answer += connection.recv(1 << 16)
    connection.close()


def measured(name: str, port: int, groups: dict[str, Iterable[int]]) -> Found:
    found: Found = {}
    for count in (1, 100):
        meter = Meter(groups)
        outcome = writes(port, count)
        used = meter.read()
        found[f"rate {name} {count}"] = outcome.a_second * count
        records = max(1.0, outcome.a_second * count * used.wall_s)
        for group, spent_s in used.by_group_s.items():
            found[f"cpu {group} {count}"] = spent_s / records * 1e6
        if count == 1:
            half = partial(paced, a_second=outcome.a_second / 2, seconds=SECONDS)
            at_half = half(connect(port, CONNECTIONS), write_of(1), http_is_whole)
            found |= {f"p50 {name}": at_half.p50_ms, f"p99 {name}": at_half.p99_ms}
    return found


def writes(port: int, count: int) -> Outcome:
    connections = connect(port, CONNECTIONS)
    return closed_loop(connections, write_of(count), http_is_whole, seconds=SECONDS)


def write_of(count: int) -> Callable[[int], bytes]:
    content = body(count)
    return lambda number: post(f"/v0/topics/t{number % TOPICS}", content)


def delivery(nodes: Nodes) -> Found:
    """From a write at the leader until a watcher on a follower has the record."""
    watchers = watching(nodes.ports[1], 1)
    delays: Delays = Drive(over_http(nodes.ports[0], watchers), DELIVERY_S).run()
    return {"delivery p50": delays.p50_ms, "delivery p99": delays.p99_ms}


def reads(port: int) -> Found:
    found: Found = {}
    for name, query in (("local", "?consistency=local"), ("sure", "")):
        outcome = closed_loop(
            connect(port, CONNECTIONS), partial(read_of, query), http_is_whole, seconds=SECONDS
        )
        found[f"rate {name} reads"] = outcome.a_second
    return found


def read_of(query: str, number: int) -> bytes:
    path = f"/v0/topics/t{number % TOPICS}{query}"
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def idle(nodes: Nodes) -> Found:
    meter = Meter({str(pid): [pid] for pid in nodes.pids})
    threading.Event().wait(IDLE_S)
    used = meter.read()
    return {"idle": max(used.by_group_s.values()) / used.wall_s * 100}


def nats() -> Found:
    found: Found = {}
    with cluster_peers.nats() as port:
        for count in (1, 100):
            connections = [
                servers.nats_connect(port, b"in%d" % number) for number in range(CONNECTIONS)
            ]
            outcome = closed_loop(
                connections,
                partial(published, count),
                lambda data, count=count: data.count(b'"seq"') >= count,  # type: ignore[misc]
                seconds=SECONDS,
            )
            found[f"rate {NATS} {count}"] = outcome.a_second * count
    return found


def published(count: int, number: int) -> bytes:
    """Messages that are sent together; each is answered."""
    return b"PUB bench in%d %d\r\n%b\r\n" % (number, len(RECORD), RECORD) * count


def etcd() -> Found:
    """The better of version 2 and version 3, through its gateway, and transactions of 100."""
    value = base64.b64encode(RECORD).decode()

    def put(number: int, place: int = 0) -> dict[str, str]:
        return {"key": base64.b64encode(b"%d/%d" % (number, place)).decode(), "value": value}

    def old(number: int) -> bytes:
        content = b"value=" + RECORD
        head = b"PUT /v2/keys/%d HTTP/1.1\r\nHost: 127.0.0.1\r\n" % number
        kind = b"Content-Type: application/x-www-form-urlencoded\r\n"
        return head + kind + b"Content-Length: %d\r\n\r\n%b" % (len(content), content)

    def new(number: int) -> bytes:
        return post("/v3/kv/put", json.dumps(put(number)).encode())

    def many(number: int) -> bytes:
        puts = [{"request_put": put(number, place)} for place in range(100)]
        return post("/v3/kv/txn", json.dumps({"success": puts}).encode())

    with cluster_peers.etcd() as port:
        rates = [
            closed_loop(
                connect(port, CONNECTIONS), request, http_is_whole, seconds=SECONDS
            ).a_second
            for request in (old, new, many)
        ]
    return {f"rate {ETCD} 1": max(rates[:2]), f"rate {ETCD} 100": rates[2] * 100}
