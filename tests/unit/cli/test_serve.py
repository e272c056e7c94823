from __future__ import annotations

import pytest
from click.testing import CliRunner

from penstock.cli import main


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--host", "0.0.0.0"], {}, "expected API keys"),
        (["--port", "70000"], {}, "expected port from 0 to 65535"),
        ([], {"PENSTOCK_STOER": "x"}, "did you mean PENSTOCK_STORE"),
        ([], {"PENSTOCK_API_KEYS": "k:reed"}, "found 'reed'"),
        (["--config", "absent.toml"], {}, "found none at absent.toml"),
        (["--tls-cert", "absent.pem"], {}, "both tls_cert and tls_key"),
    ],
)
def test_what_is_wrong_with_the_settings_is_said_in_one_line(
    tmp_path, monkeypatch, arguments, environment, said
):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, ["serve", *arguments], env=environment)
    assert found.exit_code == 1
    assert said in found.output
    assert "Traceback" not in found.output


def test_help_names_every_flag():
    found = CliRunner().invoke(main, ["serve", "--help"])
    assert found.exit_code == 0
    for flag in ("--host", "--port", "--data-dir", "--config", "--log", "--store"):
        assert flag in found.output
