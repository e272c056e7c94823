"""A backup of a running server through its own command, and a server on what was restored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from penstock.cli import main
from penstock.client import Client, ClientSettings
from penstock.client.watching import Position
from penstock.protocol.events import Records, Tombstone
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api, payloads


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


def test_a_reader_that_was_further_than_the_backup_is_told_and_misses_nothing(
    tmp_path: Path,
) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    with served(tmp_path / "one", BACKUP_DIR=backups) as api:
        api.write("t", *range(20))
        run("backup", str(backups / "b"), "--url", api.address.url)
        api.write("t", *(f"lost {number}" for number in range(10)))
        page = api.diff("t", limit=100)
        assert page["next_from_seq"] == 30
        session = api.post("/v0/watch", {"topics": {"t": {"from_seq": 30}}}).json
        assert session["topics"]["t"]["epoch"] == page["epoch"]
    for copy in ("two", "three"):  # each of them is another one
        data = tmp_path / copy / "data"
        data.parent.mkdir()
        run("restore", str(backups / "b"), "--data-dir", str(data))
        with served(tmp_path / copy) as api:
            wanted = [*range(20), *(f"{copy} {number}" for number in range(15))]
            api.write("t", *wanted[20:])
            again = api.diff("t", page["next_from_seq"], epoch=page["epoch"], limit=100)
            assert again["tombstone"]["reason"] == "recreated"
            assert payloads(again) == wanted
            place = {"from_seq": page["next_from_seq"], "epoch": page["epoch"]}
            with (
                Client(ClientSettings(api.address.url)) as client,
                client.watch({"t": Position(**place)}) as watch,
            ):
                events = iter(watch)
                told = next(events)
                assert isinstance(told, Tombstone)
                assert told.reason in ("recreated", "from_seq_too_old")
                seen: list[object] = []
                while len(seen) < len(wanted):
                    event = next(events)
                    if isinstance(event, Records):
                        seen += [record.data for record in event.records]
                assert seen == wanted
            page = api.diff("t", 30, epoch=again["epoch"])
            assert page["tombstone"] is None, "a reader of this one goes on"
            page = api.diff("t", 35, epoch=again["epoch"])


def test_a_directory_from_before_identities_tells_the_epochs_its_readers_know(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as api:
        api.write("t", 1, 2)
        told = api.diff("t")["epoch"]
    layout = tmp_path / "data" / "layout.json"
    known = json.loads(layout.read_text())
    epoch = told - (int(known["id"], 16) >> 12)
    assert 0 < epoch < told
    del known["mixes_epochs"]
    layout.write_text(json.dumps(known))
    with served(tmp_path) as api:
        assert api.diff("t", 2, epoch=epoch)["tombstone"] is None
        assert payloads(api.diff("t")) == [1, 2]
