"""Random queries and batches: old result and delta against the query itself, on DuckDB.

`PENSTOCK_DELTA_QUERIES` is how many (100), `PENSTOCK_DELTA_SEED` the first seed (0). A failure
prints its seed, the query and a batch from which nothing can be left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import duckdb
import pytest

from penstock.protocol.errors import NotDifferentiable
from tests.property.tables.delta.queries import TABLES, Maker, row
from tests.unit.tables.delta.duck import Duck

QUERIES = int(os.environ.get("PENSTOCK_DELTA_QUERIES", "100"))
SEED = int(os.environ.get("PENSTOCK_DELTA_SEED", "0"))
GROUP = 10
BATCHES = 3
Rows = dict[str, list[tuple[int | None, ...]]]


@pytest.mark.parametrize("first", range(SEED, SEED + QUERIES, GROUP))
def test_random_queries_are_brought_up_to_date(first: int) -> None:
    refused = 0
    for seed in range(first, first + GROUP):
        random = Random(seed)
        query = Maker(random).query()
        duck = Duck(TABLES)
        try:
            duck.compile(query)
            duck.run(query)
        except (NotDifferentiable, duckdb.Error):  # DuckDB cannot decorrelate everything
            refused += 1
            continue
        check(duck, seed, query, random)
    assert refused <= GROUP // 2, "the generator must not lose itself in what is refused"


def check(duck: Duck, seed: int, query: str, random: Random) -> None:
    """Check three batches; a failing one is made as small as it can be."""
    old = {name: [row(random, name) for _ in range(random.randint(0, 7))] for name in TABLES}
    for _ in range(BATCHES):
        new = {name: changed(random, name, rows) for name, rows in old.items()}
        error = failure(duck, query, old, new)
        if error is not None:
            least = shrunk(old, new, lambda one, two: failure(duck, query, one, two) is not None)
            said = failure(duck, query, *least)
            pytest.fail(f"seed {seed}\n{query}\nold {least[0]}\nnew {least[1]}\n{said}")
        old = new


def failure(duck: Duck, query: str, old: Rows, new: Rows) -> str | None:
    """What is wrong after one batch; None if nothing is."""
    for name in TABLES:
        duck.replace(name, old[name])
    duck.remember()
    for name in TABLES:
        duck.replace(name, new[name])
    try:
        duck.check_stages(query, duck.check(query))
    except Exception as error:  # an error of DuckDB is a failure too
        return f"{type(error).__name__}: {error}"
    return None


def changed(
    random: Random, table: str, rows: list[tuple[int | None, ...]]
) -> list[tuple[int | None, ...]]:
    """Rows after a batch: most tables change in most batches."""
    if random.random() < 0.3:
        return rows
    kept = [found for found in rows if random.random() < 0.7]
    return kept + [row(random, table) for _ in range(random.randint(0, 3))]


def shrunk(old: Rows, new: Rows, fails: Callable[[Rows, Rows], bool]) -> tuple[Rows, Rows]:
    """The same failure with no row that is not needed for it."""
    both = [old, new]
    progress = True
    while progress:
        progress = False
        for place in (0, 1):
            for name in TABLES:
                for index in reversed(range(len(both[place][name]))):
                    fewer = both[place][name][:index] + both[place][name][index + 1 :]
                    tried = [dict(rows) for rows in both]
                    tried[place][name] = fewer
                    if fails(*tried):
                        both, progress = tried, True
    return both[0], both[1]
