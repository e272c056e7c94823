"""Settings for every test: a failing property prints what replays it, and no test is timed."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("penstock", print_blob=True, deadline=None)
settings.load_profile("penstock")
