from __future__ import annotations

import gzip
import json

import pytest

from penstock.protocol.pages import PAGES
from penstock.server.http.message import Sender
from penstock.web.pages import HEADERS, Dashboard
from tests.unit.server.fakes import FakeExchange, run, serving

BODY = b"export const text = 1;\n" * 100
SITE = Dashboard({"shell.json": b'{"js":{"overview":"a.js"}}', "a.js": BODY})
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def twin_in(page: FakeExchange) -> dict:
    _, _, rest = page.body.decode().partition('id="twin">')
    return json.loads(rest.partition("</script>")[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_has_a_twin_with_the_same_sections(page):
    path = page.path_of({"name": "x", "id": "y"})

    async def test() -> None:
        async with serving(site=SITE) as client:
            await client.write("x", 1)
            html = await client.ask("GET", path, accept=BROWSER)
            twin = await client.ask("GET", path, accept="application/json")
            also = await client.ask("GET", f"{path}?format=json", accept=BROWSER)
            assert html.content_type == b"text/html; charset=utf-8"
            assert twin.content_type == also.content_type == b"application/json"
            assert twin_in(html)["page"] == twin.json["page"] == page.name
            assert list(twin_in(html)["sections"]) == list(twin.json["sections"])
            assert list(also.json["sections"]) == list(twin.json["sections"])

    run(test)


def test_pages_and_assets_say_what_a_browser_may_do_with_them():
    async def test() -> None:
        async with serving(site=SITE) as client:
            page = await client.ask("GET", "/", accept=BROWSER)
            asset = await client.ask("GET", SITE.assets.path_of("a.js"))
            for answer in (page, asset):
                assert set(HEADERS) <= set(answer.headers.items())
            assert page.headers[b"cache-control"] == b"no-store"
            assert b"immutable" in asset.headers[b"cache-control"]
            assert asset.content_type == b"text/javascript; charset=utf-8"

    run(test)


def test_an_asset_is_sent_as_it_was_compressed_at_the_start():
    async def test() -> None:
        async with serving(site=SITE) as client:
            path = SITE.assets.path_of("a.js")
            small = await client.ask("GET", path, accept_encoding="gzip, br")
            plain = await client.ask("GET", path)
            assert small.headers[b"content-encoding"] == b"gzip"
            assert gzip.decompress(small.body) == plain.body == BODY
            assert b"content-encoding" not in plain.headers

    run(test)


@pytest.mark.parametrize("path", ["/assets/none.js", "/assets/../pages.py", "/assets/", "/nothing"])
def test_other_files_are_not_found(path):
    async def test() -> None:
        async with serving(site=SITE) as client:
            assert (await client.ask("GET", path)).status == 404

    run(test)


@pytest.mark.parametrize("path", ["/", "/topics/x", "/assets/a.js"])
def test_pages_can_only_be_read(path):
    async def test() -> None:
        async with serving(site=SITE) as client:
            answer = await client.ask("POST", path, {})
            assert answer.status == 405
            assert answer.headers[b"allow"] == b"GET, HEAD"

    run(test)


def test_without_a_key_there_is_a_shell_without_data_and_no_twin():
    async def test() -> None:
        async with serving(site=SITE, keys="k1:read:a.,w:write") as client:
            await client.engine.put_topic("secret", {})
            page = await client.ask("GET", "/topics/secret", accept=BROWSER)
            assert page.status == 200
            assert twin_in(page)["sign_in"] is True
            assert twin_in(page)["sections"] == {}
            assert (await client.ask("GET", "/topics", accept="application/json")).status == 401
            wrong = await client.ask("GET", "/topics?format=json", authorization="Bearer no")
            assert wrong.status == 401
            writer = await client.ask("GET", "/topics?format=json", authorization="Bearer w")
            assert writer.status == 403
            assert (await client.ask("GET", SITE.assets.path_of("a.js"))).status == 200

    run(test)


def test_a_twin_has_only_what_the_key_may_read():
    async def test() -> None:
        async with serving(site=SITE, keys="k1:read:a.") as client:
            await client.engine.put_topic("a.x", {})
            await client.engine.put_topic("b.x", {})
            twin = await client.ask("GET", "/topics", authorization="Bearer k1")
            names = [row["topic"] for row in twin.json["sections"]["topics"]["topics"]]
            assert names == ["a.x"]
            other = await client.ask("GET", "/topics/b.x", authorization="Bearer k1")
            assert other.json["sections"]["topic"]["error"]["code"] == "forbidden"
            assert other.json["sections"]["peek"]["error"]["code"] == "forbidden"

    run(test)


def test_a_page_that_comes_before_the_log_is_read_says_so():
    async def test() -> None:
        async with serving(site=SITE, opened=False) as client:
            page = await client.ask("GET", "/", accept=BROWSER)
            assert page.status == 200
            assert twin_in(page)["away"]
            assert (await client.ask("GET", "/")).status == 503

    run(test)


def test_a_page_under_a_foreign_host_is_refused():
    async def test() -> None:
        async with serving(site=SITE) as client:
            exchange = FakeExchange(
                client.start("GET", "/v0/health").request.__class__(
                    "GET", "/", "", {"accept": BROWSER}, b"", Sender(foreign_host="evil.example")
                )
            )
            client.application(exchange)
            assert exchange.status == 421

    run(test)


def test_names_in_pages_stay_text():
    evil = "%3Cimg%20src=x%20onerror=1%3E"

    async def test() -> None:
        async with serving(site=SITE) as client:
            for path in (f"/topics/{evil}", f"/tables/{evil}", f"/entities/{evil}/{evil}"):
                answer = await client.ask("GET", path, accept=BROWSER)
                assert answer.status == 200
                assert b"<img" not in answer.body

    run(test)


def test_a_server_without_a_dashboard_has_no_pages():
    async def test() -> None:
        async with serving() as client:
            assert (await client.ask("GET", "/")).status == 404
            assert (await client.ask("GET", "/v0/live?on=/")).status == 404

    run(test)
