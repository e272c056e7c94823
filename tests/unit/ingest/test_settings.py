"""Settings of the edge: from flags, environment and file, beside those of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.ingest import read_tokens
from penstock.config import load, load_ingest
from penstock.kernel.errors import Rejected


def test_both_tables_stand_in_one_file(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text('[server]\nport = 1\n[ingest]\nport = 2\nhost = "127.0.0.1"\n')
    assert (load({}, file=file).port, load_ingest({}, file=file).port) == (1, 2)


def test_each_has_its_own_variables():
    environ = {"PENSTOCK_PORT": "1", "PENSTOCK_INGEST_PORT": "2", "PENSTOCK_INGEST_GROWTH": "cubic"}
    assert (load(environ).port, load_ingest(environ).port) == (1, 2)
    assert load_ingest(environ, flags={"port": 3}).port == 3
    assert load_ingest(environ).growth == "cubic"


@pytest.mark.parametrize(
    ("environ", "hint"),
    [
        ({"PENSTOCK_INGEST_PROT": "1"}, "PENSTOCK_INGEST_PORT"),
        ({"PENSTOCK_INGEST_GROWTH": "fast"}, "aimd, cubic"),
        ({"PENSTOCK_INGEST_HOST": "0.0.0.0"}, "PENSTOCK_INGEST_TOKENS_FILE"),
        ({"PENSTOCK_INGEST_TLS_CERT": "x"}, "tls_key"),
        ({"PENSTOCK_INGEST_MAX_MESSAGE_BYTES": "5 MiB"}, "4194304"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(environ, hint):
    with pytest.raises(Rejected, match=hint):
        load_ingest(environ)


def test_an_unknown_key_of_the_other_table_is_refused_too(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text("[ingest]\nprot = 2\n")
    with pytest.raises(Rejected, match="did you mean port"):
        load({}, file=file)


def test_limits_follow_the_largest_message():
    limits = load_ingest({"PENSTOCK_INGEST_MAX_MESSAGE_BYTES": "2 KiB"}).edge_limits()
    assert (limits.fragment_bytes_max, limits.message_bytes_max) == (2_048, 2_048)


def test_tokens_that_cannot_be_read_name_their_file(tmp_path: Path):
    assert read_tokens(None) is None
    with pytest.raises(Rejected, match="nowhere"):
        read_tokens(tmp_path / "nowhere")
    bad = tmp_path / "bad"
    bad.write_text("a b c")
    with pytest.raises(Rejected, match="bad: line 1"):
        read_tokens(bad)
