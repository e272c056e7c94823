"""The fair queue: what a mark, a pop and a done cost, from ten waiting keys to a million."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench.report import Report

TITLE = "Fair queue: cost of one service against the number of waiting keys"
KEYS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
ROUNDS = 200_000
WEIGHTS = (1, 1, 2, 4, 8)
COMPILED = Path("build/compiled")
TINY = {"KEYS": (10, 1_000), "ROUNDS": 2_000}


def run(report: Report) -> None:
    from penstock.flow.ageing import AgeingQueue
    from penstock.flow.fairqueue import FairQueue
    from penstock.flow.priority import Urgency

    floor_us = best_us(lambda: dict_and_deque(ROUNDS))
    report.row("dict insert, deque append, popleft, dict delete", floor_us, "µs")
    curve = {keys: service_us(FairQueue, keys) for keys in KEYS}
    for keys, (cost_us, with_done_us) in curve.items():
        report.row(
            f"mark + pop, {keys:,} keys wait",
            cost_us,
            "µs",
            ratio=cost_us / curve[10][0],
            against="10 keys",
            goal="at most 1.5 µs",
            met=cost_us <= 1.5,
        )
        report.row(f"mark + pop + done, {keys:,} keys wait", with_done_us, "µs")
    urgency = Urgency(priority=0)
    aged_us = best_us(lambda: ageing_services(AgeingQueue(lambda _: urgency), ROUNDS))
    report.row("with priority and ageing: mark + pop + done", aged_us, "µs",
               ratio=aged_us / curve[10][1], against="plain queue")  # fmt: skip
    compiled = load_compiled("penstock.flow.fairqueue")
    if compiled is not None:
        fast_us = service_us(compiled.FairQueue, 1_000)[0]
        report.row("compiled by mypyc: mark + pop, 1,000 keys wait", fast_us, "µs",
                   ratio=fast_us / curve[1_000][0], against="pure Python")  # fmt: skip


def service_us(queue_type: Callable[..., Any], waiting: int) -> tuple[float, float]:
    """The cost of mark + pop, and of mark + pop + done, while so many keys wait."""
    queue = queue_type(WEIGHTS)
    for key in range(waiting):
        queue.mark(key, key % 5, 0)
    gc.collect()
    gc.freeze()
    both = [timed_services(queue, waiting + repeat * ROUNDS) for repeat in range(3)]
    only = [timed_mark_and_pop(queue, waiting + 10 * ROUNDS) for _ in range(9)]
    gc.unfreeze()
    return min(only), min(both)


def timed_services(queue: Any, first: int) -> float:
    mark, pop, done = queue.mark, queue.pop, queue.done
    began = perf_counter_ns()
    for key in range(first, first + ROUNDS):
        mark(key, 2, 1)
        done(pop(), 1)
    return (perf_counter_ns() - began) / ROUNDS / 1_000


def timed_mark_and_pop(queue: Any, first: int) -> float:
    """Chunks of services; ending them is not part of the time."""
    mark, pop, done = queue.mark, queue.pop, queue.done
    spent, chunk = 0, 1_000
    for start in range(first, first + ROUNDS // 2, chunk):
        served = []
        began = perf_counter_ns()
        for key in range(start, start + chunk):
            mark(key, 2, 1)
            served.append(pop())
        spent += perf_counter_ns() - began
        for key in served:
            done(key, 1)
    return spent / (ROUNDS // 2) / 1_000


def ageing_services(queue: Any, count: int) -> float:
    began = perf_counter_ns()
    for key in range(count):
        queue.mark(key, 1)
        queue.done(queue.pop(), 1)
        if not key % 10_000:
            queue.tick(key // 200)
    return (perf_counter_ns() - began) / count / 1_000


def dict_and_deque(count: int) -> float:
    """What any queue with membership must do at the least."""
    from collections import deque

    members: dict[int, int] = {}
    line: deque[int] = deque()
    began = perf_counter_ns()
    for key in range(count):
        if key not in members:
            members[key] = 1
            line.append(key)
        del members[line.popleft()]
    return (perf_counter_ns() - began) / count / 1_000


def best_us(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(3))


def load_compiled(name: str) -> Any:
    """The module as `make compiled` built it, or None."""
    found = sorted(COMPILED.rglob(name.rpartition(".")[2] + ".*.so"))
    helpers = sorted(COMPILED.rglob("*__mypyc.*.so"))
    if not found:
        return None
    for path in (*helpers, found[0]):
        module_name = path.name.split(".")[0] if path in helpers else name
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            return None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(module_name, module) if path in helpers else None
        spec.loader.exec_module(module)
    return module
