"""For every test that asks: databases of catalogs, on files and one PostgreSQL; a certificate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.postgres import KINDS, new_database, postgres_server

NUMBERS = count()


class Certificate(NamedTuple):
    """Files of a certificate for localhost that vouches for itself."""

    cert: Path
    key: Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    directory = tmp_path_factory.mktemp("tls")
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")  # RSA takes seconds
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    files = ("-keyout", made.key, "-out", made.cert)
    subprocess.run(
        [openssl, "req", "-x509", *curve, "-nodes", "-days", "2", *names, *files],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection words of the one PostgreSQL of this run, started by the first who asks."""
    with postgres_server() as words:
        yield words


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes the address of a catalog of some kind that does not exist yet."""

    def make(kind: str) -> str:
        number = next(NUMBERS)
        if kind == "sqlite":
            (tmp_path / str(number)).mkdir()
            return f"sqlite:{tmp_path}/{number}/catalog.sqlite"
        return f"postgres:{new_database(request.getfixturevalue('postgres'), f'test_{number}')}"

    return make
