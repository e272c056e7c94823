"""What is said on standard error while a command starts a Spark of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

_STARTS: Final = "penstock.spark.jvm.embedded"


class _Said(logging.Handler):
    """Shows what the start of Spark tells, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(record.getMessage(), err=True)


@contextmanager
def spark_said() -> Iterator[None]:
    """Say that Spark is being started, for as long as this lasts: it takes seconds."""
    logger = logging.getLogger(_STARTS)
    level, handler = logger.level, _Said(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
