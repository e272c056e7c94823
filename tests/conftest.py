"""Settings for every test: a failing property prints what replays it, and no test is timed."""

from __future__ import annotations

import signal

from hypothesis import settings

import tests.environment  # noqa: F401 - before anything is started

settings.register_profile("penstock", print_blob=True, deadline=None)
settings.load_profile("penstock")

# A shell's background is deaf to Ctrl-C, and so is whatever is started there; tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
