"""Both token pools against one model, with holders that crash at any point."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kernel.errors import Rejected
from penstock.tables.coordinator.tokens import SqlTokenPool
from tests.tokens import Permits, TokenPool

SIZE = 5
HOLDERS = st.sampled_from("abcd")


class TokenMachine(RuleBasedStateMachine):
    """`held` is what must be true; a crashed holder never releases."""

    @initialize()
    def start(self) -> None:
        connection = sqlite3.connect(":memory:", isolation_level=None)

        @contextmanager
        def transact() -> Iterator[sqlite3.Cursor]:
            with connection:
                yield connection.cursor()

        self.connection = connection
        self.pools: list[Permits] = [TokenPool(SIZE), SqlTokenPool(transact, "p", SIZE)]
        self.held: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()

    @rule(holder=HOLDERS, count=st.integers(1, 3))
    def acquire(self, holder: str, count: int) -> None:
        fits = sum(self.held.values()) + count <= SIZE
        assert [pool.acquire(holder, count) for pool in self.pools] == [fits, fits]
        if fits:
            self.held[holder] = self.held.get(holder, 0) + count

    @rule(holder=HOLDERS, count=st.integers(1, 3))
    def release(self, holder: str, count: int) -> None:
        enough = self.held.get(holder, 0) >= count
        for pool in self.pools:
            try:
                pool.release(holder, count)
                assert enough
            except Rejected:
                assert not enough
        if enough:
            self.held[holder] -= count
            self.held = {name: n for name, n in self.held.items() if n}

    @rule(dead=st.sets(HOLDERS))
    def crash_and_reconcile(self, dead: set[str]) -> None:
        live = set("abcd") - dead
        lost = {name: n for name, n in self.held.items() if name in dead}
        for pool in self.pools:
            assert pool.reconcile(live) == lost
        self.held = {name: n for name, n in self.held.items() if name not in dead}

    @invariant()
    def no_permit_is_lost_or_made(self) -> None:
        for pool in getattr(self, "pools", ()):
            assert pool.held() == self.held
            assert pool.free == SIZE - sum(self.held.values())


TestTokens = TokenMachine.TestCase
TestTokens.settings = settings(max_examples=60, stateful_step_count=30)
