"""What can be wrong with a payload of readings and with a tariff."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.kernel.errors import Rejected, Unavailable


class BadPayload(Rejected):
    """A message whose payload cannot be decoded as readings; `reason` is a stable word."""

    code = "bad_payload"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)
        self.reason = reason


class BadTariff(Rejected):
    """A tariff, or the assignment of one to a meter, that cannot be priced with."""

    code = "bad_tariff"


class NoTariffs(Unavailable):
    """A space that holds no tariff yet, or none for any meter: wait until they are loaded."""

    code = "no_tariffs"


@contextmanager
def about(what: str) -> Iterator[None]:
    """Prefix the message of a `BadTariff` with its subject or location."""
    try:
        yield
    except BadTariff as error:
        raise BadTariff(f"{what}: {error.message}") from None
