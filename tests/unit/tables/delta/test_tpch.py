"""All 22 TPC-H queries by delta, every table changed in each of five batches."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.unit.tables.delta.duck import Duck, Views, applied
from tests.unit.tables.delta.tpch import KEYS, change, generated, queries

BATCHES = 5


@pytest.fixture(scope="module")
def results() -> dict[int, list[str]]:
    """What is wrong with each query after five batches: nothing, one hopes."""
    duck, texts = generated(0.01), queries()
    wrong: dict[int, list[str]] = {number: [] for number in texts}
    compiled = {number: duck.compile(text) for number, text in texts.items()}
    duck.remember()
    contents = {number: duck.run(found.full(Views())) for number, found in compiled.items()}
    moved: Counter[int] = Counter()
    random = Random(19)
    for batch in range(BATCHES):
        change(duck, random)
        assert duck.changed() == set(KEYS)
        for number, found in compiled.items():
            text = found.delta(KEYS, Views(), broadcast=False)
            assert text is not None
            delta = duck.weighted(text)
            moved[number] += len(delta)
            contents[number] = applied(contents[number], delta)
            wanted = duck.now(texts[number], found)
            if contents[number] != wanted:
                wrong[number].append(f"batch {batch}: {duck.difference(contents[number], wanted)}")
        duck.remember()
    for number, count in moved.items():
        if not count:
            wrong[number].append("no batch changed its result, so it shows nothing")
    return wrong


@pytest.mark.parametrize("number", range(1, 23))
def test_a_query_of_tpch_is_brought_up_to_date(number: int, results: dict[int, list[str]]) -> None:
    assert results[number] == []


def test_the_compiled_text_is_the_query() -> None:
    duck = generated(0.01)
    duck.remember()
    for text in queries().values():
        found: Duck = duck
        assert found.run(duck.compile(text).full(Views())) == duck.run(text)
