"""A PostgreSQL server of our own for tests, where PostgreSQL is installed."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
KINDS = ("sqlite", "postgres") if PROGRAMS else ("sqlite",)
"""Databases that a catalog can be in, on this machine."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """The connection words of a new server, on a socket in a directory of its own."""
    programs = PROGRAMS[-1].parent
    root = os.geteuid() == 0
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    if root:
        shutil.chown(directory, "postgres", "postgres")

    def run(*command: object) -> None:
        run_as_owner(directory, *command)

    run(programs / "initdb", "-D", directory / "data", "-A", "trust")
    options = f"-c listen_addresses='' -k {directory} -c fsync=off"
    control = (programs / "pg_ctl", "-D", directory / "data", "-w")
    run(*control, "-l", directory / "log", "-o", options, "start")
    try:
        yield f"host={directory} dbname=postgres user={'postgres' if root else getpass.getuser()}"
    finally:
        run(*control, "-m", "immediate", "stop")
        shutil.rmtree(directory)


def run_as_owner(directory: Path, *command: object) -> None:
    """Run a program of PostgreSQL's, which root may not.

    It is `runuser` that changes the user: Python would fork for that, and a process in which Spark
    was used hangs in a fork for a minute.
    """
    owner = ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
    words = [str(word) for word in (*owner, *command)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=directory)


def new_database(words: str, name: str) -> str:
    """The connection words of a new database of a server."""
    import psycopg

    with psycopg.connect(words, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return words.replace("dbname=postgres", f"dbname={name}")
