"""A server on a data directory that has lost something: what it says, and what it still serves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from tests.conformance.servers import ServerProcess
from tests.conformance.wire import Api

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
    assert "found no file there" in refused(tmp_path)
