"""Faults on nodes under load: `python -m tests.soak.cluster --kills 20 --seed 7`.

A seed decides the order of faults and what each of them hits; times are the machine's. What was
acknowledged must be on all nodes, once and in order; watchers must have seen every seq once. It
ends with 1 where that is so, but less was done than was asked for, or slower.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from tests.integration.cluster.faults import Faults
from tests.integration.cluster.jobs import Worker, check_jobs, put_jobs, wait_done
from tests.integration.cluster.load import Watchers, Writer, check_records, make_topics, wait_equal
from tests.integration.cluster.processes import Processes, cluster
from tests.integration.cluster.registers import Caller, check_histories

SMALL = {
    "PENSTOCK_COMPACT_LOG_BYTES": "4 MiB",
    "PENSTOCK_LOG_SEGMENT_BYTES": "2 MiB",
    "PENSTOCK_SEGMENT_MAX_EVENTS": "20000",
    "PENSTOCK_SEGMENT_MAX_AGE_MS": "5000",
    "PENSTOCK_HOT_RETAIN_SEGMENTS": "1",
}
"""Snapshots and cold segments within a minute."""
VERBS = ("kill", "freeze", "cut", "one-way", "restart", "member", "flip")


def main() -> int:
    """Make faults until all are made or the time is over, then check."""
    parser = argparse.ArgumentParser(description=__doc__)
    for verb in VERBS:
        parser.add_argument(f"--{verb}s", type=int, default=0, dest=verb)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no fault after this")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--writers", type=int, default=2, help="of each partition")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="of a writer after a batch")
    parser.add_argument("--watchers", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=0, help="of a queue, with six workers")
    parser.add_argument("--registers", type=int, default=0, help="read and changed by six callers")
    parser.add_argument("--nodes", type=int, choices=range(3, 8), default=3)
    parser.add_argument(
        "--freeze-s", type=float, default=0.0, help="a freeze lasts at least so long"
    )
    parser.add_argument("--require-records", type=int, default=0, help="acknowledged, or it fails")
    parser.add_argument("--outage-p50-s", type=float, help="limit of the median, by kind of fault")
    parser.add_argument("--outage-worst-s", type=float, help="limit of the worst")
    parser.add_argument("--keep", action="store_true", help="keep the directory where it failed")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes end as well
    place = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"seed {wanted.seed} in {place}", flush=True)
    try:
        with cluster(
            place,
            *"abcdefg"[: wanted.nodes],
            partitions=wanted.partitions,
            is_cut=True,
            environ=SMALL,
        ) as made:
            short = run(made, wanted)
    except BaseException:
        if not wanted.keep:
            shutil.rmtree(place)
        raise
    shutil.rmtree(place)
    for each in short:
        print(f"NOT AS ASKED: {each}")
    return 1 if short else 0


def run(made: Processes, wanted: argparse.Namespace) -> list[str]:
    """Load, faults, and the checks; in what the run fell short of what was asked for."""
    random = Random(wanted.seed)
    topics = topics_of(made, wanted.partitions)
    make_topics(made, [*topics, "watched"])
    writers = [
        Writer(made.urls, topic, f"w{number}-{each}", batch=wanted.batch, first=each,
               pause_s=wanted.pause_ms / 1e3)
        for number, topic in enumerate(topics)
        for each in range(wanted.writers)
    ]  # fmt: skip
    writers.append(Writer(made.urls, "watched", "slow", batch=1, pause_s=0.02))
    third = max(1, wanted.watchers // 3)
    watchers = Watchers(made.urls, "watched", stay=third, move=third, page=third)
    if wanted.jobs:
        put_jobs(made.urls, "q", wanted.jobs)
    workers = [
        Worker(made.urls, "q", number, 6_000, seed=wanted.seed)
        for number in range(6 if wanted.jobs else 0)
    ]
    callers = [
        Caller(made.urls, "s", number, registers=wanted.registers, seed=wanted.seed)
        for number in range(6 if wanted.registers else 0)
    ]
    for thread in (*writers, *workers, *callers, watchers):
        thread.start()
    faults = Faults(made, random, writers, freeze_s=wanted.freeze_s)
    make_faults(faults, wanted, watchers)
    if workers:
        wait_done(made, "q", workers)
    for ending in (*writers, *workers, *callers):
        ending.end()
    faults.wait_healthy()
    acknowledged = check_records(made, writers)
    watchers.end(wait_equal(made, ["watched"])["watched"])
    report(faults, writers, watchers, acknowledged)
    if workers:
        leases = check_jobs(workers, wanted.jobs)
        print(f"{wanted.jobs} jobs acknowledged once each, {leases} leases, never two at a time")
    if callers:
        registers, operations = check_histories(callers)
        print(f"{registers} registers, {operations} operations, all linearizable")
    return list(shortfalls(wanted, faults.counts, faults.outages_s, acknowledged))


def topics_of(made: Processes, partitions: int) -> list[str]:
    """A topic of each partition."""
    found: dict[int, str] = {}
    for number in range(1_000):
        found.setdefault(made.partition_of(f"t{number}"), f"t{number}")
    return [found[each] for each in range(partitions)]


def make_faults(faults: Faults, wanted: argparse.Namespace, watchers: Watchers) -> None:
    """All that is wanted, in an order that the seed decides."""
    plan = [verb for verb in VERBS for _ in range(getattr(wanted, verb))]
    faults.random.shuffle(plan)
    verbs, began_s = faults.verbs(), time.monotonic()
    for number, verb in enumerate(plan):
        if time.monotonic() - began_s > wanted.seconds:
            print(f"the time is over after {number} of {len(plan)} faults")
            return
        at_s = time.monotonic()
        verbs[verb]()
        watchers.check()
        for writer in faults._writers:
            if writer.error is not None:
                raise writer.error
        print(f"{at_s - began_s:6.1f} s  {verb} took {time.monotonic() - at_s:.1f} s", flush=True)


def shortfalls(
    wanted: argparse.Namespace,
    counts: Mapping[str, int],
    outages_s: Mapping[str, list[float]],
    acknowledged: int,
) -> Iterator[str]:
    """What is less or slower than was asked for, in words."""
    for verb in VERBS:
        # A change of members is counted twice: one leaves, and one joins.
        made, asked = counts.get(verb, 0), getattr(wanted, verb) * (2 if verb == "member" else 1)
        if made < asked:
            yield f"{made} of {asked} faults of the kind {verb!r}: give it more --seconds"
    if acknowledged < wanted.require_records:
        yield f"{acknowledged} of {wanted.require_records} records"
    limits = (("median", wanted.outage_p50_s, 0.5), ("worst", wanted.outage_worst_s, 1.0))
    for name, spans in outages_s.items():
        for word, most_s, share in limits:
            if spans and most_s is not None and (found_s := at_share(spans, share)) > most_s:
                yield f"the {word} outage after a {name} was {found_s:.2f} s: above {most_s:g} s"


def at_share(spans: list[float], share: float) -> float:
    """The value below which this share of the values is: the median for a half."""
    return sorted(spans)[min(len(spans) - 1, int(len(spans) * share))]


def report(faults: Faults, writers: list[Writer], watchers: Watchers, acknowledged: int) -> None:
    """What was done and measured."""
    print(f"faults: {dict(faults.counts)}")
    for name, spans in faults.outages_s.items():
        if spans:
            print(f"first write acknowledged after a {name}: p50 {at_share(spans, 0.5):.2f} s, "
                  f"worst {at_share(spans, 1):.2f} s of {len(spans)}")  # fmt: skip
    print(
        f"{acknowledged} records acknowledged and on all nodes: 0 lost, 0 twice, in order; "
        f"{sum(each.tries_failed for each in writers)} calls were given up and repeated"
    )
    print(f"{len(watchers.all)} watchers moved {sum(each.moves for each in watchers.all)} times: "
          "every seq once")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
