from __future__ import annotations

from pathlib import Path

import pytest

from tools import markdown

ROOT = Path(__file__).resolve().parents[2]
PAGES = markdown.pages(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_points_to_something(page):
    for link in markdown.links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.relative_to(ROOT)} links to {link}, which is not there"
        if anchor and path.suffix == ".md":
            assert anchor in markdown.anchors(path), f"{link} names no heading"
