from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def names(lock: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+)==", lock.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").iterdir()), ids=lambda p: p.name)
def test_a_lock_names_no_address(path):
    text = path.read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--extra-index-url" not in text
    assert "--find-links" not in text


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_requirement_is_pinned_and_has_hashes(lock):
    logical = lock.read_text().replace("\\\n", " ").splitlines()
    requirements = [line for line in logical if line.strip() and not line.lstrip().startswith("#")]
    assert requirements
    for line in requirements:
        assert re.match(r"[a-z0-9._-]+==\S+ ", line), line
        assert "--hash=sha256:" in line, line


@pytest.mark.parametrize("kind", ["run", "dev"])
def test_the_lock_holds_everything_the_project_asks_for(kind):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"run": ["demo", "spark"], "dev": ["dev", "rocksdb", "postgres", "spark"]}[kind]
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    wanted = {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in asked}
    assert wanted <= names(ROOT / "requirements" / f"{kind}.txt"), "run: make lock"
