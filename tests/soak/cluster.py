"""Faults on nodes under load: `python -m tests.soak.cluster --kills 20 --seed 7`.

A seed decides the order of faults and what each of them hits; times are the machine's. What was
acknowledged must be on all nodes, once and in order; watchers must have seen every seq once. It
ends with 1 where that is so, but less was done than was asked for, or slower. With `--keep-results`
the totals are kept for the docs.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

from bench.trial import Trial
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
    wanted = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes end as well
    place = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"seed {wanted.seed} in {place}", flush=True)
    name = wanted.keep_results or f"faults-{wanted.nodes}-nodes"
    title = f"Faults of {wanted.nodes} nodes under load"
    title += f": {wanted.keep_results}" if wanted.keep_results else ""
    trial = Trial.begin(name, title, seed=wanted.seed)
    try:
        with cluster(
            place,
            *"abcdefg"[: wanted.nodes],
            partitions=wanted.partitions,
            is_cut=True,
            environ=SMALL,
        ) as made:
            run(made, wanted, trial)
    except BaseException:
        if not wanted.keep:
            shutil.rmtree(place)
        raise
    shutil.rmtree(place)
    trial.show()
    if wanted.keep_results is not None:
        print(f"kept in {trial.keep()}")
    return 1 if trial.shortfalls() else 0


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
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
    parser.add_argument(
        "--keep-results", nargs="?", const="", metavar="NAME",
        help="write the totals to bench/trials/NAME.json",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the directory where it failed")
    return parser


def run(made: Processes, wanted: argparse.Namespace, trial: Trial) -> None:
    """Load, faults, and the checks; the trial is told what they came to."""
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
    count_faults(trial, wanted, faults.counts)
    count_outages(trial, wanted, faults.outages_s)
    trial.at_least(
        "records acknowledged, and on all nodes once and in order", acknowledged,
        wanted.require_records,
    )  # fmt: skip
    trial.row("records lost", 0)
    trial.row("records twice", 0)
    trial.row("calls given up and repeated", sum(each.tries_failed for each in writers))
    trial.row("watchers that saw every seq once", len(watchers.all))
    trial.row("their moves between nodes", sum(each.moves for each in watchers.all))
    if workers:
        trial.row("leases of jobs, never two at a time", check_jobs(workers, wanted.jobs))
        trial.row("jobs acknowledged once each", wanted.jobs)
    if callers:
        registers, operations = check_histories(callers)
        trial.row("registers, all linearizable", registers)
        trial.row("operations on them", operations)


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


def count_faults(trial: Trial, wanted: argparse.Namespace, counts: Mapping[str, int]) -> None:
    """How many faults of each kind were made, of those that were asked for."""
    for verb in VERBS:
        # A change of members is counted twice: one leaves, and one joins.
        asked = getattr(wanted, verb) * (2 if verb == "member" else 1)
        if asked or counts.get(verb):
            trial.at_least(f"faults: {verb}", counts.get(verb, 0), asked)
    for name in sorted(set(counts) - set(VERBS)):
        trial.row(name, counts[name])


def count_outages(
    trial: Trial, wanted: argparse.Namespace, outages_s: Mapping[str, list[float]]
) -> None:
    """How long after a fault the first write was acknowledged."""
    limits = (("median", wanted.outage_p50_s, 0.5), ("worst", wanted.outage_worst_s, 1.0))
    for name, spans in outages_s.items():
        for word, most_s, share in limits:
            if spans:
                said = f"first write acknowledged after a {name}: {word} of {len(spans)}"
                trial.at_most(said, at_share(spans, share), most_s, "s")


def at_share(spans: list[float], share: float) -> float:
    """The value below which this share of the values is: the median for a half."""
    return sorted(spans)[min(len(spans) - 1, int(len(spans) * share))]


if __name__ == "__main__":
    sys.exit(main())
