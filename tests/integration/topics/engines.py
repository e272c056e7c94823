"""Engines on a running loop, and short ways to drive them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.log.store import LogStore
from penstock.topics.core.batch import parse_write
from penstock.topics.core.read import DiffPage, ReadRequest
from penstock.topics.core.topic import AppendResult
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.options import EngineOptions
from tests.integration.topics.gated import GatedStore

DEADLINE_S = 20.0


@asynccontextmanager
async def engine_on(
    store: LogStore | GatedStore | None = None, **options: Any
) -> AsyncIterator[Engine]:
    engine = Engine(store or GatedStore(), EngineOptions(**options))  # type: ignore[arg-type]
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def body(*values: object, **fields: object) -> bytes:
    import json

    return json.dumps({"records": [{"data": value} for value in values], **fields}).encode()


async def write(engine: Engine, topic: str, *values: object, **fields: object) -> AppendResult:
    return await engine.append(topic, parse_write(body(*values, **fields)))


async def data(engine: Engine, topic: str) -> list[bytes]:
    return records(await engine.diff(topic, ReadRequest(limit=1000)))


def records(diff: DiffPage) -> list[bytes]:
    return [bytes(slot.record.data) for slot in diff.records]
