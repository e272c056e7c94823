"""A real browser for the dashboard: Playwright drives a Chromium that it did not bring.

Without one the group is not run, and says so; `PENSTOCK_E2E=required` makes that a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.conformance.servers import ServerProcess
from tests.e2e.visiting import PATIENCE_MS, ask
from tests.environment import CHROMIUM, E2E_REQUIRED
from tools import chromium

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = CHROMIUM or chromium.find(os.environ)
    if found is None:
        if E2E_REQUIRED:
            pytest.fail(chromium.WHAT_TO_DO)
        pytest.skip(f"not run: {chromium.WHAT_TO_DO}")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield running
        running.close()


def url_of(server: ServerProcess) -> str:
    return f"http://{server.address.host}:{server.address.port}"


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[str]:
    """The address of a server with something of every kind that needs no Spark."""
    directory: Path = tmp_path_factory.mktemp("filled")
    server = ServerProcess(directory).start()
    base = url_of(server)
    fill(base)
    yield base
    server.close()


EVIL = "<img src=x onerror=window.__evil=1>"


def fill(base: str) -> None:
    """Topics, a queue with leases and dead letters, a space; evil text wherever text can be."""
    records = [{"data": {"meter": n, "note": EVIL}, "tag": f"m{n % 5}"} for n in range(60)]
    records.append({"data": EVIL, "tag": EVIL, "node": EVIL})
    ask(base, "/v0/topics/meters", {"records": records})
    ask(base, "/v0/topics/other", {"records": [{"data": n} for n in range(3)]})
    queue = {"type": "queue", "max_deliveries": 1, "dead_letter": "jobs.dead"}
    ask(base, "/v0/topics/jobs", {"records": [{"data": n} for n in range(9)], "config": queue})
    claimed = ask(base, "/v0/topics/jobs/claim", {"node": EVIL, "max": 2})["claimed"]
    settle = {"node": EVIL, "seqs": [each["$seq"] for each in claimed]}
    settle |= {"lease_ids": [each["lease_id"] for each in claimed]}
    ask(base, "/v0/topics/jobs/nack", {**settle, "reason": EVIL})
    ask(base, "/v0/topics/jobs/claim", {"node": EVIL, "max": 2})
    for seq, price in enumerate((31, 32), start=1):
        write = {"entity": "flat", "set": {"name": EVIL, "cents_per_kwh": price}}
        change = {"session": "e2e", "local_seq": seq, "writes": [write]}
        ask(base, "/v0/spaces/prices/commits", change)
