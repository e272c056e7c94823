from __future__ import annotations

import gzip

import pytest

from penstock.kernel.errors import Rejected
from penstock.web.assets import Assets

FILES = {
    "css/app.css": b'@font-face{src:url("../fonts/a.woff2")}b{background:url(../icons.svg#x)}'
    + b"p{}" * 50,
    "fonts/a.woff2": b"font" * 100,
    "icons.svg": b"<svg/>",
    "js/main.js": b'import { h } from "../vendor/h.js";\nimport "./side.js";\n'
    b"const w = new URL('./work.js', import.meta.url);\n"
    b'const later = () => import("./late.js");\nconst text = "from ./nothing.js";\n',
    "js/side.js": b'export * from "../vendor/h.js";export{a as b}from"./late.js";\n',
    "js/late.js": b"export const a = 1;\n",
    "js/work.js": b"postMessage(1);\n",
    "vendor/h.js": b"export const h = 1;\n",
    "vendor/h.LICENSE": b"MIT",
}


def test_names_are_hashes_of_contents_and_imports_lead_to_them():
    assets = Assets(FILES)
    main = assets["js/main.js"].body.decode()
    for name in ("vendor/h.js", "js/side.js", "js/work.js", "js/late.js"):
        assert f'"{assets.path_of(name)}"' in main.replace("'", '"')
    assert '"from ./nothing.js"' in main, "a text is not an import"
    css = assets["css/app.css"].body.decode()
    assert assets.path_of("fonts/a.woff2") in css
    assert f"{assets.path_of('icons.svg')}#x" in css


def test_a_changed_file_renames_everything_that_uses_it_and_nothing_else():
    before = Assets(FILES)
    after = Assets({**FILES, "vendor/h.js": b"export const h = 2;\n"})
    renamed = {
        name for name in FILES if name in before and before.path_of(name) != after.path_of(name)
    }
    assert renamed == {"vendor/h.js", "js/side.js", "js/main.js"}


def test_a_browser_is_told_of_static_imports_only():
    assets = Assets(FILES)
    assert assets.closure("js/main.js") == ["js/main.js", "vendor/h.js", "js/side.js", "js/late.js"]


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
        (
            {"a.js": b'import "./b.js"', "b.js": b'import "./a.js"'},
            "in a circle: a.js > b.js > a.js",
        ),
        ({"a.js": b'import "./b.js"'}, "a.js uses b.js, which is not among"),
        ({"js/a.js": b'import "../../x.js"'}, "outside of the static files"),
    ],
)
def test_files_that_cannot_be_named_are_refused_at_start(files, said):
    with pytest.raises(Rejected, match=said.replace(".", r"\.")):
        Assets(files)
