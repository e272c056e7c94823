from __future__ import annotations

from decimal import Decimal
from typing import Any

from penstock.metering.hours import cell, instant_of
from penstock.metering.price_book import Books
from tests.books import make_book


def flat(price: str, since: str) -> dict[str, Any]:
    return {"kind": "flat", "valid_from": since, "price_per_kwh": price}


def tariff(*versions: dict[str, Any]) -> dict[str, Any]:
    return {"versions": list(versions)}


def meter(*assigned: tuple[str, str]) -> dict[str, Any]:
    return {"assignments": [{"tariff": t, "valid_from": since} for t, since in assigned]}


def month(number: int) -> str:
    return f"2026-{number:02}-01T00:00:00Z"


def test_spans_are_cut_where_the_tariff_or_the_assignment_changes() -> None:
    book = make_book(
        {
            "tariff:a": tariff(flat("1", month(1)), flat("2", month(3))),
            "tariff:b": tariff(flat("3", month(2))),
            "meter:7": meter(("a", month(1)), ("b", month(5))),
            "meter:8": meter(("a", month(2))),
        }
    )
    lists = book.lists.to_pylist()
    found = [
        (s["meter"], s["valid_from"].month, s["valid_to"].year, lists[s["list"]]["prices"][0])
        for s in book.spans.to_pylist()
    ]
    assert found == [
        ("7", 1, 2026, Decimal(1)), ("7", 3, 2026, Decimal(2)), ("7", 5, 9999, Decimal(3)),
        ("8", 2, 2026, Decimal(1)), ("8", 3, 9999, Decimal(2)),
    ]  # fmt: skip
    assert book.problems == ()


def test_a_reading_before_the_first_version_of_its_tariff_is_told_so() -> None:
    book = make_book({"tariff:b": tariff(flat("3", month(4))), "meter:7": meter(("b", month(1)))})
    early, late = book.spans.to_pylist()
    assert (early["valid_to"], late["valid_from"]) == (instant_of(month(4)),) * 2
    problems = book.lists["problem"].to_pylist()
    assert problems[early["list"]].startswith("unknown_tariff: tariff 'b' begins later")
    assert problems[late["list"]] is None


def test_what_is_wrong_with_one_tariff_concerns_its_meters_alone() -> None:
    book = make_book(
        {
            "tariff:good": tariff(flat("1", month(1))),
            "tariff:bad": tariff({"kind": "flatt", "valid_from": month(1)}),
            "meter:1": meter(("good", month(1))),
            "meter:2": meter(("bad", month(1))),
            "meter:3": meter(("gone", month(1))),
            "meter:4": {"assignments": "none"},
            "meter:a_b": meter(("good", month(1))),
        }
    )
    lists = book.lists.to_pylist()
    found = {s["meter"]: lists[s["list"]]["problem"] for s in book.spans.to_pylist()}
    assert found == {
        "1": None,
        "2": "bad_tariff: tariff:bad: version 1: expected kind flat, time_of_use or seasonal, "
        "found 'flatt'",
        "3": "unknown_tariff: there is no tariff 'gone'",
        "4": "bad_tariff: meter:4: expected a list of assignments, found 'none'",
    }
    assert sorted(book.problems) == sorted(
        [text for text in found.values() if text]
        + ["bad_tariff: 'meter:a_b' is not the id of a meter or a tariff"]
    )


def test_a_book_is_made_anew_only_when_tariffs_or_meters_have_changed() -> None:
    books = Books()
    documents: dict[str, Any] = {
        "tariff:a": tariff(flat("1", month(1))), "meter:1": meter(("a", month(1))), "note": "x",
    }  # fmt: skip
    assert books.update(documents, documents)
    first = books.book
    assert not books.update(documents, {"note"})
    assert books.book is first
    documents["tariff:a"] = tariff(flat("2", month(1)))
    del documents["meter:1"]
    assert books.update(documents, {"tariff:a", "meter:1"})
    assert books.book.spans.num_rows == 0
    documents["meter:1"] = meter(("a", month(1)))
    books.update(documents, {"meter:1"})
    (row,) = books.book.spans.to_pylist()
    assert books.book.lists["prices"][row["list"]].as_py()[cell(3, 3, 3)] == Decimal(2)


def test_a_book_knows_the_zones_that_it_needs() -> None:
    here = tariff(flat("1", month(1))) | {"zone": "Europe/Berlin"}
    there = tariff(flat("1", month(1))) | {"zone": "Asia/Tokyo"}
    documents = {"tariff:a": here, "tariff:b": there, "tariff:c": tariff(flat("1", month(1)))}
    assert make_book(documents).zones == ()
    documents |= {"meter:1": meter(("a", month(1))), "meter:2": meter(("c", month(1)))}
    assert make_book(documents).zones == ("Europe/Berlin",)


def test_an_empty_book_has_its_columns() -> None:
    book = make_book({})
    assert (book.spans.num_rows, book.lists.num_rows) == (0, 0)
    assert book.spans.column_names == ["meter", "valid_from", "valid_to", "list"]


def test_a_space_that_is_half_loaded_says_what_it_has_none_of() -> None:
    books = Books()
    assert books.missing == "tariff"
    documents = {"tariff:a": tariff(flat("1", month(1)))}
    books.update(documents, documents)
    assert books.missing == "meter with a tariff"
    documents["meter:7"] = meter(("a", month(1)))
    books.update(documents, documents)
    assert books.missing is None
