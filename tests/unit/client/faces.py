"""The two faces of the client, called the same way by tests."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.client import AsyncClient, Client, ClientSettings


class Blocking:
    """Calls the blocking client."""

    def call(self, settings: ClientSettings, name: str, *args: Any, **options: Any) -> Any:
        return self.calls(settings, (name, args, options))[0]

    def calls(
        self, settings: ClientSettings, *steps: tuple[str, tuple[Any, ...], Any]
    ) -> list[Any]:
        with Client(settings) as client:
            return [getattr(client, name)(*args, **options) for name, args, options in steps]

    def gathered(
        self, settings: ClientSettings, name: str, *args: Any, **options: Any
    ) -> list[Any]:
        with Client(settings) as client:
            return list(getattr(client, name)(*args, **options))

    def watched(self, settings: ClientSettings, enough: Any, *args: Any, **options: Any) -> Any:
        with Client(settings) as client, client.watch(*args, **options) as watch:
            events: list[Any] = []
            for event in watch:
                events.append(event)
                if has_enough(events, enough):
                    break
            return events, watch


class Async:
    """Calls the async client."""

    def call(self, settings: ClientSettings, name: str, *args: Any, **options: Any) -> Any:
        return self.calls(settings, (name, args, options))[0]

    def calls(
        self, settings: ClientSettings, *steps: tuple[str, tuple[Any, ...], Any]
    ) -> list[Any]:
        async def run() -> list[Any]:
            async with AsyncClient(settings) as client:
                return [
                    await getattr(client, name)(*args, **options) for name, args, options in steps
                ]

        return asyncio.run(run())

    def gathered(
        self, settings: ClientSettings, name: str, *args: Any, **options: Any
    ) -> list[Any]:
        async def run() -> list[Any]:
            async with AsyncClient(settings) as client:
                return [item async for item in getattr(client, name)(*args, **options)]

        return asyncio.run(run())

    def watched(self, settings: ClientSettings, enough: Any, *args: Any, **options: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(settings) as client, client.watch(*args, **options) as watch:
                events: list[Any] = []
                async for event in watch:
                    events.append(event)
                    if has_enough(events, enough):
                        break
                return events, watch

        return asyncio.run(run())


def has_enough(events: list[Any], enough: Any) -> bool:
    """Whether so many events came, or the last one is what was waited for."""
    return enough(events[-1]) if callable(enough) else len(events) == enough


FACES = [Blocking(), Async()]


def named(face: object) -> str:
    return type(face).__name__.lower()
