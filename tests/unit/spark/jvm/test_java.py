from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.errors import SparkMissing
from penstock.spark.jvm.java import find_java


def install(home: Path, version: str | None) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    if version:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = install(tmp_path / "new", "21.0.2")
    found = find_java(environ={"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version, found.compiler) == (home, "21.0.2", None)
    (home / "bin" / "javac").touch()
    assert found.compiler == home / "bin" / "javac"


@pytest.mark.parametrize(
    ("version", "said"), [("11.0.1", "there is 11.0.1"), (None, "nothing that runs")]
)
def test_a_java_that_will_not_do_is_named(tmp_path: Path, version: str | None, said: str) -> None:
    home = install(tmp_path / "old", version)
    with pytest.raises(SparkMissing, match=f"Spark needs Java 17 or newer.*{said}.*JAVA_HOME"):
        find_java(home)
