"""Permits never leak and never exceed the pool; the same tests for both faces."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.tables.coordinator.tokens import SqlTokenPool
from tests.tokens import Permits, TokenPool

MakePool = Callable[[int], Permits]


def sqlite_transactions(path: Path) -> Callable[[], object]:
    @contextmanager
    def transact() -> Iterator[sqlite3.Cursor]:
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        try:
            cursor = connection.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
        finally:
            connection.close()

    return transact


@pytest.fixture(params=["process", "sqlite"])
def make_pool(request: pytest.FixtureRequest, tmp_path: Path) -> MakePool:
    if request.param == "process":
        return TokenPool
    return lambda size: SqlTokenPool(sqlite_transactions(tmp_path / "tokens.db"), "spark", size)


def test_permits_are_all_or_nothing_and_bounded(make_pool: MakePool) -> None:
    pool = make_pool(3)
    assert pool.acquire("a", 2)
    assert not pool.acquire("b", 2)
    assert (pool.free, pool.held()) == (1, {"a": 2})
    assert pool.acquire("b")
    assert not pool.acquire("c")
    pool.release("a", 2)
    assert (pool.free, pool.held()) == (2, {"b": 1})


def test_giving_back_more_than_held_is_an_error_and_changes_nothing(make_pool: MakePool) -> None:
    pool = make_pool(2)
    pool.acquire("a")
    for holder, count in (("a", 2), ("b", 1)):
        with pytest.raises(Rejected, match="cannot give back"):
            pool.release(holder, count)
    assert pool.held() == {"a": 1}


def test_reconcile_restores_exactly_the_permits_of_the_dead(make_pool: MakePool) -> None:
    pool = make_pool(6)
    pool.acquire("dead", 3)
    pool.acquire("alive", 2)
    assert pool.reconcile({"alive", "someone else"}) == {"dead": 3}
    assert (pool.free, pool.held()) == (4, {"alive": 2})
    assert pool.reconcile({"alive"}) == {}


@pytest.mark.parametrize("count", [0, -1])
def test_moving_no_permit_is_refused(make_pool: MakePool, count: int) -> None:
    pool = make_pool(1)
    for move in (pool.acquire, pool.release):
        with pytest.raises(Rejected, match="at least one permit"):
            move("a", count)


def test_a_pool_without_permits_is_refused(make_pool: MakePool) -> None:
    with pytest.raises(Rejected, match="at least one permit"):
        make_pool(0)


def test_two_processes_share_one_pool_and_a_crash_between_them_loses_nothing(
    tmp_path: Path,
) -> None:
    transact = sqlite_transactions(tmp_path / "tokens.db")
    one, other = (SqlTokenPool(transact, "spark", 2) for _ in range(2))
    assert one.acquire("one")
    assert other.acquire("other")
    assert not one.acquire("one")
    del one  # the process is gone without giving anything back
    assert other.reconcile({"other"}) == {"one": 1}
    assert other.free == 1


def test_a_smaller_pool_takes_permits_away_only_when_given_back(tmp_path: Path) -> None:
    transact = sqlite_transactions(tmp_path / "tokens.db")
    assert SqlTokenPool(transact, "spark", 3).acquire("a", 3)
    smaller = SqlTokenPool(transact, "spark", 1)
    assert not smaller.acquire("b")
    smaller.release("a", 2)
    assert not smaller.acquire("b")
    smaller.release("a")
    assert smaller.acquire("b")
    assert smaller.free == 0


def test_many_threads_never_hold_more_than_the_pool(tmp_path: Path) -> None:
    race_for_permits(SqlTokenPool(sqlite_transactions(tmp_path / "tokens.db"), "spark", 3))


def race_for_permits(pool: Permits) -> None:
    """Six threads take and give back one of three permits; never more than three are out."""
    out, most, guard = 0, 0, threading.Lock()

    def work(name: str) -> None:
        nonlocal out, most
        for _ in range(20):
            if pool.acquire(name):
                with guard:
                    out += 1
                    most = max(most, out)
                with guard:
                    out -= 1
                pool.release(name)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 1 <= most <= 3
    assert pool.free == 3
