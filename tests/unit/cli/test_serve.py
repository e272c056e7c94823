from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from penstock.cli import main


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--host", "0.0.0.0"], {}, "needs API keys"),
        (["--port", "70000"], {}, "port must be from 0 to 65535"),
        ([], {"PENSTOCK_STOER": "x"}, "did you mean PENSTOCK_STORE"),
        ([], {"PENSTOCK_API_KEYS": "k:reed"}, "unknown scope 'reed'"),
        (["--config", "absent.toml"], {}, "there is no settings file absent.toml"),
        (["--allowed-origin", "app.example"], {}, "write allowed_origins like https://"),
        (["--allowed-host", "http://a/"], {}, "write allowed_hosts like example.org"),
        (["--tls-cert", "absent.pem"], {}, "tls_cert and tls_key go together"),
        (["--catalog", "foo:bar"], {}, "catalog must be sqlite:<path> or postgres:<words>"),
        (
            ["--catalog", "sqlite:none/a"],
            {},
            "the lake 'none/a' cannot be made: there is no directory",
        ),
        (
            [
                "--catalog",
                "sqlite:a",
                "--port",
                "0",
                "--host",
                "192.0.2.1",
                "--allow-insecure-no-auth",
            ],
            {},
            "there is no warehouse at sqlite:a: a new one is made",
        ),
    ],
)
def test_what_is_wrong_with_the_settings_is_said_in_one_line(
    tmp_path, monkeypatch, arguments, environment, said
):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, ["serve", *arguments], env=environment)
    is_of_the_world = "directory" in said or "new one" in said  # wrong usage is 2
    assert found.exit_code == (1 if is_of_the_world else 2)
    assert said in " ".join(found.output.split())
    assert "Traceback" not in found.output


def test_help_names_every_flag():
    found = CliRunner().invoke(main, ["serve", "--help"])
    assert found.exit_code == 0
    for flag in (
        "--host",
        "--port",
        "--allowed-origin",
        "--allowed-host",
        "--data-dir",
        "--config",
        "--log",
        "--store",
    ):
        assert flag in found.output


def test_a_backup_is_not_served_but_restored(tmp_path):
    (tmp_path / "backup.json").write_text("{}")
    found = CliRunner().invoke(main, ["serve", "--port", "0", "--data-dir", str(tmp_path)])
    assert found.exit_code == 1
    assert f"penstock restore {tmp_path} --data-dir" in found.output
    assert [path.name for path in tmp_path.iterdir()] == ["backup.json"]


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--port", "0", "--data-dir", "{data}"),
        ("inspect", "{data}"),
        ("backup", "{data}/../copy", "--data-dir", "{data}"),
    ],
)
def test_a_layout_of_another_version_is_named_with_the_one_that_is_known(tmp_path, words):
    data = tmp_path / "data"
    data.mkdir()
    layout = {"version": 7, "store": "segment", "partitions": 1, "id": "a"}
    (data / "layout.json").write_text(json.dumps(layout))
    found = CliRunner().invoke(main, [word.format(data=data) for word in words])
    assert found.exit_code in (1, 2)
    assert "layout 1, the one this version knows, found 7" in found.output
    assert [path.name for path in data.iterdir()] == ["layout.json"]
