from __future__ import annotations

from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import open_catalog
from penstock.lake.storage import has_credentials

NOWHERE = {"AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.parametrize(
    "found",
    [
        {"AWS_ACCESS_KEY_ID": "k"},
        {"AWS_PROFILE": "p"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/f"},
        {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/u"},
    ],
)
def test_credentials_may_stand_in_the_environment(found: dict[str, str], tmp_path: Path) -> None:
    nothing = NOWHERE | {"HOME": str(tmp_path)}
    assert not has_credentials("s3://bucket/lake", nothing)
    assert has_credentials("s3://bucket/lake", nothing | found)


def test_credentials_may_stand_in_the_path_or_in_a_file(tmp_path: Path) -> None:
    nothing = NOWHERE | {"HOME": str(tmp_path)}
    assert has_credentials("s3://key:secret@bucket/lake", nothing)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").touch()
    assert has_credentials("s3://bucket/lake", nothing)


def test_a_lake_on_s3_without_credentials_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Rejected, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_catalog(f"sqlite:{tmp_path}/catalog.sqlite", "s3://bucket/lake")
    assert not (tmp_path / "catalog.sqlite").exists()
