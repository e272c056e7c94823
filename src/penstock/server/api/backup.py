"""The handler that copies everything to a directory of the server's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.protocol import answers, requests
from penstock.protocol.errors import InvalidRequest
from penstock.protocol.routes import ADMIN
from penstock.server.api.call import Call
from penstock.server.api.routes import ROUTES
from penstock.server.http.message import Answer


@ROUTES.post("/v0/backup", answer=answers.BackupMade, scope=ADMIN, body=requests.BackupBody)
async def make_backup(call: Call) -> Answer:
    """Copy everything to a directory of the server."""
    call.check_unbounded()
    dest = place_of(call.body().get("directory"), call.context.backup_dir)
    made = await call.context.engine.backup(dest)
    return call.answer(directory=str(dest), files=len(made.files), bytes=made.size_bytes)


def place_of(wanted: Any, root: Path | None) -> Path:
    """Where a backup goes: below the one directory that the server's owner has named for it."""
    if root is None:
        raise InvalidRequest(
            "expected the setting backup_dir to name where backups may go, found none"
        )
    if not isinstance(wanted, str) or not wanted or "\0" in wanted:
        raise InvalidRequest(f"expected directory to be a path, found {wanted!r}")
    allowed = root.resolve()
    dest = (allowed / wanted).resolve()
    if dest == allowed or not dest.is_relative_to(allowed):
        raise InvalidRequest(f"expected a directory below the server's backup_dir, found {wanted}")
    return dest
