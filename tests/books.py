"""Books of prices from documents, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.metering.price_book import Book, Books


def make_book(documents: Mapping[str, Any]) -> Book:
    """The book of these documents."""
    books = Books()
    books.update(documents, documents)
    return books.book
