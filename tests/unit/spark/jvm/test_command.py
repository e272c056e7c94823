from __future__ import annotations

from pathlib import Path

from penstock.spark.jvm.command import (
    JvmFiles,
    class_path,
    cluster_conf,
    jvm_command,
    jvm_flags,
    server_conf,
)
from penstock.spark.jvm.embedded import own_address
from penstock.spark.options import SparkOptions


def place(tmp_path: Path, **more: Path) -> JvmFiles:
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    return JvmFiles(tmp_path / "work", tmp_path, **more)


def test_our_jar_stands_last_so_that_an_archive_fits_with_and_without_it(tmp_path: Path) -> None:
    bare = class_path(place(tmp_path))
    with_jar = class_path(place(tmp_path, jar=tmp_path / "fs" / "ours.jar"))
    assert [Path(entry).name for entry in bare.split(":")] == ["a.jar", "b.jar"]
    assert with_jar == f"{bare}:{tmp_path}/fs/ours.jar"


def test_without_the_jar_checkpoints_are_kept_another_way(tmp_path: Path) -> None:
    bare = server_conf(place(tmp_path), "local[1]")
    assert "spark.hadoop.fs.file.impl" not in bare
    assert "spark.sql.streaming.checkpointFileManagerClass" in bare
    with_jar = server_conf(place(tmp_path, jar=tmp_path / "ours.jar"), "local[1]")
    assert with_jar["spark.hadoop.fs.file.impl"] == "penstock.fs.PlainLocalFileSystem"
    assert "spark.sql.streaming.checkpointFileManagerClass" not in with_jar


def test_an_archive_is_written_or_used_never_both(tmp_path: Path) -> None:
    there, new = tmp_path / "there.jsa", tmp_path / "new.jsa"
    used = jvm_flags(place(tmp_path, archive=there))
    assert f"-XX:SharedArchiveFile={there}" in used
    written = jvm_flags(place(tmp_path, archive=there, archive_to_write=new))
    assert f"-XX:ArchiveClassesAtExit={new}" in written
    assert not [flag for flag in written if "SharedArchiveFile" in flag]


def test_a_persons_settings_go_over_ours(tmp_path: Path) -> None:
    command = jvm_command(
        Path("/java"), place(tmp_path), master="local[1]", memory_mb=700,
        conf={"spark.ui.enabled": "true", "spark.mine": "x y"},
    )  # fmt: skip
    assert command[0] == "/java"
    assert "-Xmx700m" in command
    assert "spark.ui.enabled=true" in command
    assert "spark.ui.enabled=false" not in command
    assert "spark.mine=x y" in command
    assert command[-1] == "pyspark-shell"


def test_sockets_are_used_only_where_their_names_are_short_enough() -> None:
    key = "spark.python.unix.domain.socket.enabled"
    near = JvmFiles(Path("/tmp/penstock-spark-abcdefgh"), Path("/jars"))
    far = JvmFiles(Path("/tmp") / ("far" * 20) / "penstock-spark-abcdefgh", Path("/jars"))
    assert (server_conf(near, "local")[key], server_conf(far, "local")[key]) == ("true", "false")


def test_flags_of_the_jvm_go_to_java_itself(tmp_path: Path) -> None:
    flags = "-XX:TieredStopAtLevel=1 -Dname='two words'"
    command = jvm_command(
        Path("/java"), place(tmp_path), master="local[1]", memory_mb=700,
        conf={"spark.driver.extraJavaOptions": flags},
    )  # fmt: skip
    before = command[: command.index("org.apache.spark.deploy.SparkSubmit")]
    assert before[-2:] == ["-XX:TieredStopAtLevel=1", "-Dname=two words"]


def test_a_cluster_is_told_where_the_driver_is_and_nothing_of_our_classes(tmp_path: Path) -> None:
    with_jar = place(tmp_path, jar=tmp_path / "ours.jar")
    here, there = (server_conf(with_jar, master) for master in ("local[2]", "spark://h:7077"))
    assert here["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in there
    assert any("penstock.fs" in value for value in here.values())
    assert not any("penstock.fs" in value for value in there.values())
    options = SparkOptions(master="spark://h:7077", cores=4)
    assert cluster_conf(options, "10.0.0.5") == {
        "spark.driver.host": "10.0.0.5",
        "spark.cores.max": "4",
    }
    named = SparkOptions(master="yarn", driver_host="driver.example")
    assert cluster_conf(named, None) == {"spark.driver.host": "driver.example"}
    assert cluster_conf(SparkOptions(cores=4), None) == {}


def test_the_way_to_a_master_on_this_machine_is_loopback() -> None:
    assert own_address("spark://127.0.0.1:7077") == "127.0.0.1"
    assert own_address("yarn") is None
