from __future__ import annotations

import gzip

import pytest

from penstock.kernel.errors import Rejected
from penstock.web.assets import Assets

FILES = {
    "css/app.css": b'@font-face{src:url("../fonts/a.woff2")}b{background:url(../icons.svg#x)}'
    + b"p{}" * 50,
    "fonts/a.woff2": bytes(range(256)),
    "icons.svg": b"<svg/>",
    "js/main.js": b'import { h } from "../vendor/h.js";\nimport "./side.js";\n'
    b"const w = new URL('./work.js', import.meta.url);\n"
    b'const later = () => import("./late.js");\nconst text = "from ./nothing.js";\n',
    "js/side.js": b'export * from "../vendor/h.js";\nimport {\n  a,\n} from "./inner.js";\n',
    "js/inner.js": b'import "./side.js";\nexport const a = 1;\n',
    "js/late.js": b"export const a = 1;\n",
    "js/work.js": b"postMessage(1);\n",
    "vendor/h.js": b"export const h = 1;\n",
    "vendor/h.LICENSE": b"MIT",
}


def test_a_changed_file_moves_all_of_them_and_the_same_files_stay():
    before, same = Assets(FILES), Assets(dict(reversed(FILES.items())))
    after = Assets({**FILES, "vendor/h.js": b"export const h = 2;\n"})
    assert before.path_of("js/main.js") == same.path_of("js/main.js")
    assert before.path_of("js/main.js") != after.path_of("js/main.js")
    assert before.path_of("js/main.js").endswith("/js/main.js"), "relative imports lead on"


def test_a_file_that_is_not_served_moves_nothing():
    other = Assets({**FILES, "vendor/h.LICENSE": b"BSD"})
    assert other.path_of("icons.svg") == Assets(FILES).path_of("icons.svg")


def test_a_browser_is_told_of_static_imports_only():
    assets = Assets(FILES)
    expected = ["js/main.js", "vendor/h.js", "js/side.js", "js/inner.js"]
    assert assets.closure("js/main.js") == expected


def test_what_shrinks_is_kept_compressed_and_what_does_not_is_not():
    assets = Assets(FILES)
    css = assets["css/app.css"]
    assert css.gzipped is not None
    assert gzip.decompress(css.gzipped) == css.body
    assert assets["fonts/a.woff2"].gzipped is None
    assert assets["icons.svg"].gzipped is None, "six bytes do not shrink"


def test_an_asset_is_found_by_its_path_alone():
    assets = Assets(FILES)
    assert assets.find(assets.path_of("icons.svg")) == assets["icons.svg"]
    assert assets.find("/assets/icons.svg") is None
    assert assets.find("/assets/../pages.py") is None
    assert "vendor/h.LICENSE" not in assets


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.js": b'import "./b.js"'}, "a.js uses b.js, which is not among"),
        ({"a.css": b"p{background:url(./b.svg)}"}, "a.css uses b.svg, which is not among"),
        ({"js/a.js": b'import "../../x.js"'}, "outside of the static files"),
    ],
)
def test_files_that_a_browser_would_not_find_are_refused_at_start(files, said):
    with pytest.raises(Rejected, match=said.replace(".", r"\.")):
        Assets(files)
