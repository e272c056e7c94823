"""Errors of a catalog whose database is temporarily unusable."""

from __future__ import annotations

from typing import ClassVar

from penstock.kernel.errors import Unavailable


class CatalogAway(Unavailable):
    """The catalog's database cannot be reached; nothing was changed, and it may come back."""

    code = "catalog_away"
    status: ClassVar[int] = 503


class CatalogLocked(CatalogAway):
    """Other writers held the catalog for longer than the timeout; nothing was changed."""

    code = "catalog_locked"
