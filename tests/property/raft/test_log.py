"""The log with its runs of terms against a plain list."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.store import LogEntry
from penstock.raft.log import RaftLog
from penstock.raft.members import Members
from penstock.raft.messages import Mark


class Model:
    """Entries as a list; what was compacted is gone."""

    def __init__(self) -> None:
        self.terms = [0]
        self.boundary = 0

    def term_at(self, index: int) -> int:
        return self.terms[index] if self.boundary <= index < len(self.terms) else -1

    def last_at_most(self, index: int, term: int) -> int:
        last = min(index, len(self.terms) - 1)
        found = [i for i in range(self.boundary, last + 1) if self.terms[i] <= term]
        return max(found, default=self.boundary)


@given(st.integers(0, 2**32))
def test_the_log_answers_as_a_list_would(seed):
    random = Random(seed)
    log, model = RaftLog(Mark(0, 0, Members((1,)))), Model()
    applied = 0
    for _ in range(30):
        last = len(model.terms) - 1
        match random.choice(("append", "append", "cut", "compact", "evict")):
            case "append":
                term = model.terms[-1] + random.randint(0, 2)
                count = random.randint(1, 4)
                new = [
                    LogEntry(last + 1 + i, term, b"." * random.randint(0, 9)) for i in range(count)
                ]
                log.append(new)
                model.terms += [term] * count
            case "cut" if last > applied:
                index = random.randint(applied + 1, last)
                log.cut(index)
                del model.terms[index:]
            case "compact":
                applied = random.randint(applied, last)
                model.boundary = random.randint(model.boundary, applied)
                log.compact(model.boundary)
            case "evict":
                applied = random.randint(applied, last)
                log.evict(applied, random.randint(0, 40))
        check(random, log, model, applied)


def check(random: Random, log: RaftLog, model: Model, applied: int) -> None:
    last = len(model.terms) - 1
    assert (log.last_index, log.last_term, log.boundary) == (last, model.terms[-1], model.boundary)
    assert all(log.term_at(i) == model.term_at(i) for i in range(-1, last + 3))
    assert log.held_from <= applied + 1
    held = log.slice(log.held_from, last)
    assert [entry.index for entry in held] == list(range(log.held_from, last + 1))
    assert log.bytes_after(applied) == sum(len(e.payload) for e in held if e.index > applied)
    index, term = random.randint(model.boundary, last + 2), random.randint(0, model.terms[-1])
    if model.term_at(model.boundary) <= term:
        assert log.last_at_most(index, term) == model.last_at_most(index, term)
    if held:
        first, size = random.choice(held).index, random.randint(0, 20)
        taken = log.take(first, size)
        assert taken == held[first - log.held_from :][: len(taken)]
        assert len(taken) == 1 or sum(len(e.payload) for e in taken) <= size
