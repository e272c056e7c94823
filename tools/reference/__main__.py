"""`python -m tools.reference` writes every page and removes pages that are no longer made."""

from __future__ import annotations

from pathlib import Path

from tools.reference.pages import DIRECTORY, pages

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Bring docs/reference in step with the code."""
    directory = ROOT / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    wanted = pages(ROOT)
    for stale in {path.name for path in directory.glob("*.md")} - set(wanted):
        (directory / stale).unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    main()
