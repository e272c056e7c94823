"""A server finds the warehouse beside its data."""

from __future__ import annotations

from pathlib import Path

from penstock.app.server import with_warehouse
from penstock.config import Settings


def test_a_warehouse_beside_the_data_is_found(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "topics-data")
    assert with_warehouse(settings).catalog == ""
    (tmp_path / "warehouse.sqlite").touch()
    assert with_warehouse(settings).catalog == f"sqlite:{tmp_path}/warehouse.sqlite"


def test_a_catalog_that_is_named_stays(tmp_path: Path) -> None:
    (tmp_path / "warehouse.sqlite").touch()
    settings = Settings(data_dir=tmp_path / "topics-data", catalog="sqlite:/other.sqlite")
    assert with_warehouse(settings).catalog == "sqlite:/other.sqlite"


def test_a_relative_directory_is_looked_for_from_where_the_server_starts(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "warehouse.sqlite").touch()
    assert with_warehouse(Settings()).catalog == f"sqlite:{tmp_path}/warehouse.sqlite"
