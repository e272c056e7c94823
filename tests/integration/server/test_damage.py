"""A server on a data directory that has lost something: what it says, and what it still serves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.topics.core.registry import partition_of
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Address, Api, payloads, until

FSYNC = {"durability": "fsync"}
SEGMENT = "0000000001.segment"


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(directory: Path) -> str:
    """What a server says that does not start."""
    server = ServerProcess(directory)
    try:
        server.launch()
        assert server.wait() == 1
        assert "Traceback" not in server.log
        return server.log
    finally:
        server.discard()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server has left that answered 200 records as synced and was killed."""
    directory = tmp_path_factory.mktemp("killed")
    server = ServerProcess(directory, LOG_SEGMENT_BYTES="1 MiB")
    try:
        api = Api(server.start().address)
        for number in range(200):
            assert api.write("t", number, config=FSYNC)["last_seq"] == number + 1
        server.kill()
    finally:
        server.discard()
    return directory / "data"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server has left that ended well."""
    directory = tmp_path_factory.mktemp("ended")
    server = ServerProcess(directory, LOG_SEGMENT_BYTES="1 MiB")
    try:
        Api(server.start().address).write("t", 1, 2, 3, config=FSYNC)
        server.close()
    finally:
        server.discard()
    return directory / "data"


def test_a_log_that_was_cut_short_is_damage_with_file_and_offset(
    killed: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    with (data / "log" / SEGMENT).open("r+b") as file:
        file.truncate(10_000)
    said = refused(tmp_path)
    assert f"{SEGMENT} at offset 10000" in said
    assert f"penstock salvage {data}" in said
    looked = penstock("inspect", data, "verify")
    assert looked.exit_code == 1
    assert f"{SEGMENT} at offset 10000" in looked.stderr
    assert (data / "log" / SEGMENT).stat().st_size == 10_000, "nothing was written to it"


def without_its_file(log: Path) -> None:
    (log / SEGMENT).unlink()


def zeroed(log: Path) -> None:
    size_bytes = (log / SEGMENT).stat().st_size
    with (log / SEGMENT).open("r+b") as file:
        file.truncate(64)
        file.truncate(size_bytes)


def missing(log: Path) -> None:
    shutil.rmtree(log)


@pytest.mark.parametrize("lose", [without_its_file, zeroed, missing])
def test_a_log_that_is_gone_is_not_begun_anew(
    ended: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(ended, data)
    lose(data / "log")
    assert f"penstock salvage {data}" in refused(tmp_path)
    assert penstock("inspect", data, "verify").exit_code == 1
    backed_up = penstock("backup", tmp_path / "backup", "--data-dir", data)
    assert backed_up.exit_code == 1
    assert "Traceback" not in backed_up.output


def test_a_log_without_files_is_not_begun_anew_after_a_kill_either(
    killed: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    without_its_file(data / "log")
    assert "has no files" in refused(tmp_path)


def topics_of_partitions(count: int) -> dict[int, str]:
    """One topic for each partition."""
    found: dict[int, str] = {}
    for number in range(1_000):
        found.setdefault(partition_of(f"t{number}", count), f"t{number}")
    assert len(found) == count
    return found


def damage_record(data: Path, text: str) -> tuple[str, int]:
    """Change one byte of a record in the log; which file, and where."""
    for path in sorted((data / "log").glob("*.segment")):
        offset = path.read_bytes().find(text.encode())
        if offset >= 0:
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(b"X")
            return path.name, offset
    raise AssertionError(f"{text} is in no segment")


def test_a_damaged_partition_fails_alone_says_where_and_the_others_serve(tmp_path: Path) -> None:
    topics, bad = topics_of_partitions(8), 3
    server = ServerProcess(tmp_path, WAL_SHARDS=8)
    try:
        api = Api(server.start().address)
        for turn in range(3):
            for number, topic in topics.items():
                api.write(topic, f"record-{number}-{turn}", config=FSYNC)
        server.close()
    finally:
        server.discard()
    name, offset = damage_record(tmp_path / "data", f"record-{bad}-1")
    for life in range(2):  # it says so in every life, until it is repaired
        server = ServerProcess(tmp_path, WAL_SHARDS=8)
        try:
            api = Api(server.start().address)
            for number, topic in topics.items():
                body = {"records": [{"data": f"life {life}"}]}
                written = api.post(f"/v0/topics/{topic}", body)
                read = api.post(f"/v0/topics/{topic}/diff", {"from_seq": 0})
                if number != bad:
                    assert written.status in (200, 201), written.json
                    kept = [f"record-{number}-{turn}" for turn in range(3)]
                    assert payloads(read.json)[:3] == kept
                    continue
                for answer in (written, read, api.get(f"/v0/topics/{topic}")):
                    error = answer.json["error"]
                    assert (answer.status, error["code"]) == (503, "partition_failed")
                    assert name in error["message"]
            ready = api.get("/readyz")
            assert (ready.status, ready.json["status"]) == (200, "degraded")
            (failed,) = ready.json["failed_partitions"]
            assert (failed["partition"], failed["file"]) == (bad, name)
            assert abs(failed["offset"] - offset) < 200
            view = api.get("/v0/scheduler").json["partitions"]
            assert (view["total"], view["serving"], view["failed"][0]["file"]) == (8, 7, name)
            check_place_is_told(api, server.address, bad, name, failed["offset"])
            server.close()
        finally:
            server.discard()
    looked = penstock("inspect", tmp_path / "data", "verify")
    assert looked.exit_code == 1
    assert name in looked.stderr


def check_place_is_told(api: Api, address: Address, bad: int, name: str, offset: int) -> None:
    """Metrics, the verdict and `penstock status` name the damaged file and the position."""
    text = api.get("/v0/metrics").body.decode()
    assert "topics_partitions_failed 1\n" in text
    labels = f'partition="{bad}",file="{name}"'
    assert f"topics_partition_failed_offset{{{labels}}} {offset}\n" in text
    json_metrics = api.get("/v0/metrics", headers={"accept": "application/json"}).json
    assert json_metrics["storage"][f"failed_offset_{bad}_{name}"] == offset
    fact = api.get("/v0/verdict").json["facts"][0]
    assert fact["failed"]["partition"] == bad
    assert (fact["failed"]["file"], fact["failed"]["offset"]) == (name, offset)
    status = penstock("status", "--url", f"http://{address.host}:{address.port}")
    assert status.exit_code == 1, "a partition is out of service"
    told = " ".join(status.stdout.split())
    assert f"Partition {bad} is out of service: {name} is damaged at offset {offset}." in told


COLD = {"COMPACT_LOG_BYTES": 20_000, "SEGMENT_MAX_EVENTS": 40, "HOT_RETAIN_SEGMENTS": 1}


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed server has left that made snapshots and cold files."""
    directory = tmp_path_factory.mktemp("compacted")
    server = ServerProcess(directory, LOG_SEGMENT_BYTES="1 MiB", WAL_SHARDS=1, **COLD)
    try:
        api = Api(server.start().address)
        for snapshots in (1, 2, 3):
            for number in range(40):
                api.write("t", *[f"{number}" + "x" * 100] * 10)
                api.write("other", number)

            def made(wanted: int = snapshots) -> bool:
                view = api.get("/v0/scheduler").json["compaction"]
                return view["done_total"] >= wanted and not view["running"]

            until(made, "a snapshot")
        server.kill()
    finally:
        server.discard()
    return directory / "data"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_a_cold_file_that_is_gone_or_damaged_fails_only_reads_of_its_records(
    compacted: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    shutil.copytree(compacted, tmp_path / "data")
    server = ServerProcess(tmp_path, **COLD)
    cold = min((tmp_path / "data" / "cold").iterdir())
    first = next(
        json.loads(line)["record"]
        for line in penstock(
            "inspect", tmp_path / "data", "--json", "record", "t", 1
        ).stdout.splitlines()
    )
    assert first["$seq"] == 1
    harm(cold)
    try:
        api = Api(server.start().address)
        head = api.state("t")["head_seq"]
        assert head == 1_200
        answer = api.post("/v0/topics/t/diff", {"from_seq": 0})
        assert answer.status == 500
        error = answer.json["error"]
        assert error["code"] == "records_unreadable"
        assert error["detail"]["first_seq"] == 1
        assert str(tmp_path) not in error["message"]
        assert payloads(api.diff("other")), "other topics are read as ever"
        at, lost, seen = 0, 0, 0
        while at < head:  # as a reader may: it passes over what is lost, and gets all else
            answer = api.post("/v0/topics/t/diff", {"from_seq": at, "limit": 1000})
            if answer.status == 500:
                detail = answer.json["error"]["detail"]
                lost += detail["last_seq"] - detail["first_seq"] + 1
                at = detail["last_seq"]
            else:
                seen += len(answer.json["records"])
                at = answer.json["next_from_seq"]
        assert 0 < lost <= 40
        assert seen + lost == head
        assert api.write("t", "more")["last_seq"] == head + 1
        text = api.get("/v0/metrics").body.decode()
        assert f"topics_storage_missing_segments {int(harm is Path.unlink)}" in text
        assert "topics_storage_unreadable_reads_total 0" not in text
    finally:
        server.discard()


@pytest.mark.parametrize("harm", [flip, cut])
def test_a_damaged_snapshot_is_replaced_by_the_one_before_it_and_told(
    compacted: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    shutil.copytree(compacted, tmp_path / "data")
    newest = max((tmp_path / "data" / "snapshots").iterdir())
    harm(newest)
    server = ServerProcess(tmp_path, **COLD)
    try:
        api = Api(server.start().address)
        assert api.state("t")["count"] == 1_200
        assert f"snapshot {newest} is damaged" in server.log
        assert "topics_storage_damaged_snapshots 1" in api.get("/v0/metrics").body.decode()
    finally:
        server.discard()


def test_damage_in_the_middle_of_the_log_is_refused_with_its_place(
    killed: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    with (data / "log" / SEGMENT).open("r+b") as file:
        file.seek(10_000)
        found = file.read(1)
        file.seek(10_000)
        file.write(bytes([found[0] ^ 0xFF]))
    said = refused(tmp_path)
    assert f"{SEGMENT} at offset 9" in said
    assert f"penstock salvage {data}" in said


def test_a_layout_that_cannot_be_read_names_the_way_out(ended: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(ended, data)
    (data / "layout.json").write_bytes(b"{")
    said = refused(tmp_path)
    assert "layout.json is not a layout" in said
    assert f"penstock salvage {data}" in said
    saved = penstock("salvage", data, "--into", tmp_path / "saved")
    assert saved.exit_code == 1
    assert "3 records of 1 topics can be read, 0 are lost" in saved.stdout
