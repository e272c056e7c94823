"""`python -m tools.reference` writes every page and removes pages that are no longer made."""

from __future__ import annotations

from pathlib import Path

from tools.reference.pages import DIRECTORY, pages
from tools.reference.readme import with_numbers
from tools.reference.trials import PAGE, with_trials

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Bring docs/reference and the numbers of other pages in step with code and results."""
    directory = ROOT / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    wanted = pages(ROOT)
    for stale in {path.name for path in directory.glob("*.md")} - set(wanted):
        (directory / stale).unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text)
    readme = ROOT / "README.md"
    readme.write_text(with_numbers(readme.read_text(), ROOT / "bench" / "results"))
    record = ROOT / PAGE
    record.write_text(with_trials(record.read_text(), ROOT / "bench" / "trials"))


if __name__ == "__main__":
    main()
