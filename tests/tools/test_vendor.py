"""What the dashboard brings along is fetched once, checked, and changed as little as possible."""

from __future__ import annotations

import pytest

from tools import vendor

PREACT = vendor.PACKAGES[0]


def test_a_bare_import_becomes_a_relative_one():
    source = b'import{options as n}from"preact";import * as h from \'preact/hooks\';x="from preact"'
    assert vendor.module(source) == (
        b'import{options as n}from"./preact.js";import * as h from "./hooks.js";x="from preact"'
    )


def test_a_relative_import_stays():
    assert vendor.module(b'import x from"./y.js"') == b'import x from"./y.js"'


def test_a_source_map_that_is_not_served_is_not_named():
    assert vendor.module(b"x\n//# sourceMappingURL=x.js.map\n") == b"x\n"


def test_a_classic_script_exports_its_global():
    assert vendor.module_of_global("uPlot")(b"var uPlot=1;\n").endswith(b"export default uPlot;\n")


def test_icons_become_symbols_of_one_sprite():
    icon = b'<!-- @license -->\n<svg\n  class="x"\n  width="24"\n>\n  <path d="m1 1" />\n</svg>\n'
    sprite = vendor.sprite({"b": icon, "a": icon}).decode()
    assert sprite.index('id="a"') < sprite.index('id="b"')
    assert '<symbol id="a" viewBox="0 0 24 24"><path d="m1 1"/></symbol>' in sprite


def manifest(tmp_path, monkeypatch, **files: str) -> None:
    monkeypatch.setattr(vendor, "MANIFEST", tmp_path / "VENDOR.toml")
    vendor.MANIFEST.write_text(vendor.entry(PREACT, {"preact.js": "aa", **files}))


def test_the_same_contents_again_are_taken(tmp_path, monkeypatch):
    manifest(tmp_path, monkeypatch)
    vendor.check(PREACT, {"preact.js": "aa"})


def test_other_contents_of_the_same_version_are_refused(tmp_path, monkeypatch):
    manifest(tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match=r"preact 11\.2\.0 has other contents.*preact\.js"):
        vendor.check(PREACT, {"preact.js": "bb"})


def test_a_new_version_may_have_other_contents(tmp_path, monkeypatch):
    manifest(tmp_path, monkeypatch)
    vendor.check(PREACT._replace(version="11.3.0"), {"preact.js": "bb"})
