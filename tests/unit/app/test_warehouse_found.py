"""A server finds the warehouse beside its data."""

from __future__ import annotations

from pathlib import Path

from penstock.app.server import catalog_of, hiding
from penstock.config import Settings


def test_a_warehouse_beside_the_data_is_found(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "topics-data")
    assert catalog_of(settings) == ""
    (tmp_path / "warehouse.sqlite").touch()
    assert catalog_of(settings) == f"sqlite:{tmp_path}/warehouse.sqlite"


def test_a_catalog_that_is_named_stays(tmp_path: Path) -> None:
    (tmp_path / "warehouse.sqlite").touch()
    settings = Settings(data_dir=tmp_path / "topics-data", catalog="sqlite:/other.sqlite")
    assert catalog_of(settings) == "sqlite:/other.sqlite"


def test_a_relative_directory_is_looked_for_from_where_the_server_starts(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "warehouse.sqlite").touch()
    assert catalog_of(Settings()) == f"sqlite:{tmp_path}/warehouse.sqlite"


def test_a_path_that_a_warehouse_may_come_to_is_hidden_before_it_is_there(tmp_path: Path) -> None:
    hide = hiding(Settings(data_dir=tmp_path / "topics-data"))
    assert str(tmp_path) not in hide(f"{tmp_path}/warehouse.sqlite cannot be read", 503)
