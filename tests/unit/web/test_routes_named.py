"""Every route that a page's JavaScript or a page's section names is one that the server has."""

from __future__ import annotations

import re
from typing import Final

import pytest

from penstock.protocol.errors import CallError
from penstock.protocol.pages import PAGES, words_of
from penstock.server.api.app import ROUTES
from tests.javascript import STATIC

METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH")
NAMED: Final = re.compile(r"""["'`](/v0/(?:[^"'`$?]|\$\{[^}]*\})*)""")
"""A path in a text or a template, up to its query."""
ASKED: Final = re.compile(r"""\bapi\(\s*"([A-Z]+)",\s*["'`](/v0/(?:[^"'`$?]|\$\{[^}]*\})*)""")
"""A call of `api` with its method."""
BUILT: Final = {
    "/v0/spaces/x": ("/v0/spaces/x/commits", "/v0/spaces/x/entities/x"),
    "/v0/topics/x/diffx": ("/v0/topics/x/diff",),
    "/v0/pipeline/stages/x/x": ("/v0/pipeline/stages/x/hold", "/v0/pipeline/stages/x/go"),
}
"""Paths that code goes on from, and what it makes of them."""


def plain(path: str) -> str:
    """A path with a name in place of each value."""
    return re.sub(r"\$\{[^}]*\}", "x", path).rstrip("/")


def is_routed(method: str, path: str) -> bool:
    try:
        ROUTES.find(method, path)
    except CallError:
        return False
    return True


MODULES: Final = sorted((STATIC / "js").glob("*.js"))
FOUND: Final = sorted(
    {(module.name, plain(path)) for module in MODULES for path in NAMED.findall(module.read_text())}
)
CALLS: Final = sorted(
    {
        (module.name, method, plain(path))
        for module in MODULES
        for method, path in ASKED.findall(module.read_text())
    }
)


@pytest.mark.parametrize(("module", "path"), FOUND)
def test_a_path_that_a_module_names_has_a_route(module: str, path: str) -> None:
    for made in BUILT.get(path, (path,)):
        assert any(is_routed(method, made) for method in METHODS), f"{module}: {made}"


@pytest.mark.parametrize(("module", "method", "path"), CALLS)
def test_a_call_of_a_module_has_a_route_of_its_method(module: str, method: str, path: str) -> None:
    assert any(is_routed(method, made) for made in BUILT.get(path, (path,))), module


def test_the_paths_are_found_at_all() -> None:
    paths = {path for _, path in FOUND}
    assert {"/v0/queues/x/redrive", "/v0/queues/x/discard", "/v0/session", "/v0/live"} <= paths
    assert ("queue.js", "POST", "/v0/queues/x/redrive") in CALLS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_section_of_a_page_is_the_answer_of_a_route(page: object) -> None:
    for section in page.sections:  # type: ignore[attr-defined]
        path = section.route
        for word in words_of(path):
            path = path.replace(f"{{{word}}}", "x")
        assert is_routed("GET", path), section.name
