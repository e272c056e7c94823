"""A backup of a running server through its own command, and a server on what was restored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from penstock.cli import main
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@contextmanager
def served(directory: Path, **settings: object) -> Iterator[Api]:
    directory.mkdir(exist_ok=True)
    server = ServerProcess(directory, **settings).start()
    try:
        yield Api(server.address)
    finally:
        server.close()


def test_a_running_server_is_backed_up_and_served_from_the_copy(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    with served(tmp_path / "one", BACKUP_DIR=backups) as api:
        for number in range(20):
            answer = api.request("POST", "/v0/topics/t", {"records": [{"data": number}]})
            assert answer.status in (200, 201)
        report = run("backup", str(backups / "b"), "--url", api.address.url, "--json")
        assert json.loads(report)["files"] > 0
        outside = api.request("POST", "/v0/backup", {"directory": str(tmp_path / "elsewhere")})
        assert (outside.status, outside.json["error"]["code"]) == (400, "invalid_request")
        assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "two").mkdir()
    run("restore", str(backups / "b"), "--data-dir", str(tmp_path / "two" / "data"))
    with served(tmp_path / "two") as api:
        page = api.request("POST", "/v0/topics/t/diff", {"limit": 100}).json
        assert [record["data"] for record in page["records"]] == list(range(20))
        refused = api.request("POST", "/v0/backup", {"directory": "x"})
        assert refused.status == 400
        assert "backup_dir" in refused.json["error"]["message"]
