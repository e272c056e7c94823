from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from penstock.protocol.pages import PAGES, find_page, page_of, parse_address, sources
from penstock.web.pages import CSP, HEADERS, Dashboard, read_dashboard
from penstock.web.twin_html import ROWS_MAX, html_of, is_own_path, sections_html

EVIL = "<img src=x onerror=1>\"'&</script><!--"
FILES = {
    "shell.json": b'{"css":["a.css"],"js":{"topic":"t.js"},"classic":["c.js"],'
    b'"preload":["f.woff2"],"icon":"i.svg"}',
    "a.css": b"p{}",
    "t.js": b'import "./u.js"',
    "u.js": b"",
    "c.js": b"",
    "f.woff2": b"f",
    "i.svg": b"<svg/>",
}


class Elements(HTMLParser):
    """What a browser would make of a document: elements with attributes, and their text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._script: str | None = None
        self.twin = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id") if tag == "script" else None

    def handle_data(self, data):
        if self._script == "twin":
            self.twin += data
        self.text += data

    def handle_endtag(self, tag):
        self._script = None

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def twin(**more: object) -> dict:
    return {"page": "topic", "title": EVIL, "sections": {"topic": {"topic": EVIL}}, **more}


def test_a_page_holds_its_twin_and_shows_it():
    page = Elements(Dashboard(FILES).page(twin()).decode())
    assert json.loads(page.twin) == twin()
    assert page.of("main") == [{"id": "main", "data-page": "topic", "tabindex": "0"}]
    assert page.of("title")
    assert page.of("img") == [], "data is never markup"
    assert EVIL in page.text


def test_a_page_loads_only_its_own_module_and_what_that_imports():
    dashboard = Dashboard(FILES)
    page = Elements(dashboard.page(twin()).decode())
    of = dashboard.assets.path_of
    assert [each.get("src") for each in page.of("script")] == [of("c.js"), of("t.js"), None]
    preloads = {each["rel"]: each["href"] for each in page.of("link")}
    assert preloads["modulepreload"] == of("u.js")
    assert preloads["stylesheet"] == of("a.css")
    assert preloads["preload"] == of("f.woff2")
    assert preloads["icon"].startswith("data:image/svg+xml;base64,")
    other = Elements(dashboard.page({**twin(), "page": "lake"}).decode())
    assert [each.get("src") for each in other.of("script")] == [of("c.js"), None]


def test_nothing_in_a_page_is_inline_script_or_style():
    text = Dashboard(FILES).page(twin()).decode()
    page = Elements(text)
    assert not page.of("style")
    assert all(each.get("src") or each["type"] == "application/json" for each in page.of("script"))
    attributes = {name for _, found in page.tags for name in found}
    assert not {name for name in attributes if name.startswith("on") or name == "style"}


def test_without_a_key_a_page_says_to_sign_in_and_has_no_data():
    page = Elements(Dashboard(FILES).page(twin(sign_in=True, sections={})).decode())
    assert "Sign in with an API key" in page.text
    assert json.loads(page.twin)["sections"] == {}


def test_the_policy_is_the_one_that_was_agreed():
    assert dict(HEADERS)[b"content-security-policy"].decode() == CSP
    assert "unsafe" not in CSP
    assert CSP.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert dict(HEADERS)[b"x-content-type-options"] == b"nosniff"
    assert dict(HEADERS)[b"referrer-policy"] == b"same-origin"
    assert dict(HEADERS)[b"cross-origin-opener-policy"] == b"same-origin"


def test_the_installed_files_make_a_dashboard():
    dashboard = read_dashboard()
    for page in PAGES:
        assert b"<main" in dashboard.page({"page": page.name, "title": "x", "sections": {}})


def test_long_tables_are_counted_beyond_their_limit():
    rows = [{"n": n} for n in range(ROWS_MAX + 3)]
    assert "<p>and 3 more</p>" in html_of(rows)
    assert "more" not in html_of(rows[:ROWS_MAX])


def test_values_are_told_as_people_write_them():
    assert html_of(None) == "–"
    assert html_of(0) == "0", "zero is not unknown"
    assert html_of([1, None, 2.5]) == "1, –, 2.5"
    assert html_of(list(range(12))).startswith("… 2, 3")
    assert html_of([{"a": 1}, [2]]) == "<ol><li><dl><dt>a</dt><dd>1</dd></dl></li><li>2</li></ol>"


def test_very_deep_data_is_shown_as_json():
    deep: object = EVIL
    for _ in range(20):
        deep = {"in": deep}
    shown = Elements(html_of(deep))
    assert not shown.of("img")
    assert '{"in":' in shown.text


def test_links_lead_to_pages_of_this_server_only():
    shown = Elements(
        sections_html({"waiting": {"rows": [{"link": "/topics/a?tag=b"}, {"link": "//evil"}]}})
    )
    assert shown.of("a") == [{"href": "/topics/a?tag=b"}]
    assert not is_own_path("/\\evil.example")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_is_found_at_its_path(page):
    names = {"name": "a:b.c-d", "id": "x"} if "{id}" in page.path else {"name": "a:b.c-d"}
    names = names if "{name}" in page.path else {}
    assert find_page(page.path_of(names)) == (page, names)
    assert page_of(page.name) is page
    assert page.title_of(names)


@pytest.mark.parametrize(
    "path", ["/nothing", "/topics/", "x", "", "x/topics", "/topics/a/b", "/entities/a", "/v0", "//"]
)
def test_other_paths_are_no_pages(path):
    assert find_page(path) is None


def test_names_are_unquoted_once():
    found = find_page("/topics/%3Cimg%3E")
    assert found is not None
    assert found[1] == {"name": "<img>"}


def test_only_what_counts_of_a_query_is_kept():
    found = parse_address("/topics?prefix=a%26b&range=15m&sort=rate")
    assert found is not None
    assert found[2] == {"prefix": "a&b", "sort": "rate"}
    page, names, query = found
    queries = {each.section.name: each.query for each in sources(page, names, query)}
    assert queries["topics"] == "prefix=a%26b&sort=rate&page_size=50&sort=rate"


def test_a_section_needs_the_words_of_its_route():
    page = page_of("entities")
    assert page is not None
    assert "entities" not in [each.section.name for each in sources(page, {}, {})]
    assert "entities" in [each.section.name for each in sources(page, {}, {"space": "s"})]


def test_a_name_cannot_change_the_route_of_a_section():
    page = page_of("topic")
    assert page is not None
    for each in sources(page, {"name": "a/../b?touch=true#&x"}, {}):
        assert re.fullmatch(r"[\w/%.:&-]+", each.path), each.path
        assert "touch=true" not in each.query
        assert each.query.count("&") <= 1
