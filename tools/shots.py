"""Takes the pictures of README and docs from a running demo: `make shots`."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from playwright.async_api import Browser, async_playwright

from penstock.demo.plant import Plant
from tools import chromium

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURES: Final = ROOT / "docs" / "pictures"
RUN_S: Final = 60
"""For how many seconds the demo runs first, so that charts have something to show."""


class Shot(NamedTuple):
    """One picture of one page."""

    name: str
    path: str
    theme: str = "light"
    width: int = 1440
    height: int = 900


SHOTS: Final = (Shot("overview", "/"), Shot("tables", "/tables"))
"""The pictures that README and docs show."""


async def take(browser: Browser, base: str, shot: Shot) -> None:
    """Open a page, let it live for some seconds, and keep what it shows."""
    size = {"width": shot.width, "height": shot.height}
    page = await browser.new_page(viewport=size, color_scheme=shot.theme)
    await page.goto(base + shot.path)
    await page.wait_for_selector(".shell main h1")
    await page.wait_for_timeout(5_000)
    await page.screenshot(path=PICTURES / f"{shot.name}.png")
    await page.close()


async def main() -> None:
    """Run a demo, and take every picture."""
    found = chromium.find(os.environ)
    if found is None:
        sys.exit(chromium.WHAT_TO_DO)
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-shots-") as directory:
        plant = Plant(Path(directory), print)
        try:
            await plant.start()
            for _ in range(RUN_S):
                await plant.look()  # which also finds the load that this machine stores
                await asyncio.sleep(1)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=found, args=["--no-sandbox"]
                )
                for shot in SHOTS:
                    await take(browser, plant.up.server_url, shot)
        finally:
            await plant.end()


if __name__ == "__main__":
    asyncio.run(main())
