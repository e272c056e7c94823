"""Real DuckDB in a process of its own: two copies of SQLite in one process would not see each
other's locks, so a test that shares a catalog file must not load both.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

EXTENSIONS = ("ducklake", "sqlite_scanner", "postgres_scanner")
IDLE: list[subprocess.Popen[bytes]] = []
"""Processes without a lake: to load DuckDB and its extensions takes longer than most tests."""


class DuckError(Exception):
    """What DuckDB said."""


class Duck:
    """A connection to a lake by DuckDB."""

    def __init__(self, address: str, *, options: str = "") -> None:
        self._child = IDLE.pop() if IDLE else start()
        source = (
            address if address.startswith("sqlite:") else f"postgres:{address.split(':', 1)[1]}"
        )
        quoted = source.replace("'", "''")
        self.run(f"ATTACH 'ducklake:{quoted}' AS lake ({options})" if options else
                 f"ATTACH 'ducklake:{quoted}' AS lake")  # fmt: skip
        self.run("USE lake")

    def send(self, sql: str) -> None:
        """Start a statement; `receive` waits for it."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(sql).encode() + b"\n")
        self._child.stdin.flush()

    def receive(self) -> pa.Table:
        assert self._child.stdout is not None
        kind, size = self._child.stdout.readline().decode().split()
        body = self._child.stdout.read(int(size))
        if kind == "error":
            raise DuckError(body.decode())
        return pa.ipc.open_stream(body).read_all()

    def run(self, sql: str) -> pa.Table:
        self.send(sql)
        return self.receive()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return list(self.run(sql).to_pylist())

    def value(self, sql: str) -> Any:
        return self.run(sql).column(0)[0].as_py()

    def close(self) -> None:
        """Let go of the lake; the process is kept for the next one, if it is well."""
        try:
            with suppress(DuckError):  # there may be no transaction
                self.run("ROLLBACK")
            self.run("USE memory")
            self.run("DETACH lake")
        except (DuckError, OSError, ValueError):
            end(self._child)
        else:
            IDLE.append(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    child.wait(10)
    child.stdout.close()


@atexit.register
def end_idle() -> None:
    while IDLE:
        end(IDLE.pop())


def extension_paths() -> list[Path]:
    """Where the Python packages of the extensions keep them."""
    found = []
    for name in EXTENSIONS:
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        assert spec.origin is not None
        found += Path(spec.origin).parent.glob(f"extensions/*/{name}.duckdb_extension")
    return found


def serve() -> None:
    """The child: statements in, Arrow or errors out."""
    import duckdb

    connection = duckdb.connect(config={"threads": 2})
    for path in extension_paths():
        connection.execute(f"LOAD '{path}'")
    connection.execute("SET TimeZone = 'UTC'")
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        try:
            table = connection.execute(json.loads(line)).to_arrow_table()
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            kind, body = "rows", sink.getvalue().to_pybytes()
        except duckdb.Error as error:
            kind, body = "error", str(error).encode()
        out.write(f"{kind} {len(body)}\n".encode() + body)
        out.flush()


if __name__ == "__main__":
    serve()
