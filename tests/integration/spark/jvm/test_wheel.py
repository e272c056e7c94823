"""A wheel brings the dashboard and our Java classes, compiled for a Java without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.spark.jvm.java import find_java

ROOT = Path(__file__).parents[4]
BUILT_FROM = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")

USE = """
import logging, sys
from pathlib import Path
import penstock
from penstock.spark.jvm.embedded import start_spark
from penstock.spark.link import connect
from penstock.spark.options import Archive, SparkOptions

logging.basicConfig(level=logging.WARNING)
jre, scratch = Path(sys.argv[1]), Path(sys.argv[2])
options = SparkOptions(
    cores=1, memory_mb=512, java_home=jre, cache_dir=scratch / "cache", archive=Archive.OFF,
    conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
)
with start_spark(options) as spark, connect(spark.url) as session:
    session.range(3).write.parquet(str(scratch / "rows"))
    print(penstock.__file__)
    print(session.conf.get("spark.hadoop.fs.file.impl"))
    print(session.read.parquet(str(scratch / "rows")).count())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of a wheel, built of a copy: a build leaves files beside its sources."""
    home = tmp_path_factory.mktemp("wheel")
    source = home / "source"
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    command = ["-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        (sys.executable, *command, "--wheel-dir", home, source), check=True, cwd=home,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )  # fmt: skip
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(home / "installed")
    return home / "installed"


def test_a_wheel_brings_every_file_of_the_dashboard(installed: Path) -> None:
    static = Path("penstock", "web", "static")
    source, there = ROOT / "src" / static, installed / static
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert {path.relative_to(there) for path in there.rglob("*") if path.is_file()} == wanted


@pytest.mark.slow
def test_a_java_without_a_compiler_uses_the_classes_of_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    java, jre = find_java(), tmp_path / "jre"
    (jre / "bin").mkdir(parents=True)
    (jre / "bin" / "java").symlink_to(java.program)
    shutil.copy(java.home / "release", jre / "release")
    done = subprocess.run(
        (sys.executable, "-c", USE, jre, tmp_path), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(installed), "PATH": "/nowhere"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    place, filesystem, rows = done.stdout.split()
    assert Path(place).is_relative_to(installed)
    assert (filesystem, rows) == ("penstock.fs.PlainLocalFileSystem", "3")
    assert "more slowly" not in done.stderr
    assert not list((tmp_path / "rows").glob(".*")), "Hadoop's own file system leaves checksums"
    assert not list((tmp_path / "cache").glob("*.jar")), "nothing was compiled"
