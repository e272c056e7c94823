"""Engines on a running loop, and short ways to drive them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.log.store import Store
from penstock.topics.core.batch import parse_write
from penstock.topics.core.read import Diff, ReadRequest
from penstock.topics.core.topic import Written
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.views import EngineOptions
from tests.integration.topics.gated import GatedStore

DEADLINE_S = 20.0


@asynccontextmanager
async def engine_on(
    store: Store | GatedStore | None = None, **options: Any
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


async def write(engine: Engine, topic: str, *values: object, **fields: object) -> Written:
    return await engine.append(topic, parse_write(body(*values, **fields)))


async def data(engine: Engine, topic: str) -> list[bytes]:
    return records(await engine.diff(topic, ReadRequest(limit=1000)))


def records(diff: Diff) -> list[bytes]:
    return [bytes(slot.record.data) for slot in diff.records]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), DEADLINE_S)
