"""Variables that are for the tests, taken out of the environment when the first test is collected.

A program refuses a variable `PENSTOCK_…` that is none of its settings, so no program that a test
starts may see them.
"""

from __future__ import annotations

import os
from typing import Final

E2E_REQUIRED: Final = os.environ.pop("PENSTOCK_E2E", "") == "required"
"""Whether tests that need a browser fail where there is none."""
CHROMIUM: Final = os.environ.pop("PENSTOCK_CHROMIUM", "")
"""The browser to use; empty: look for one."""
