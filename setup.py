"""Build Penstock; with PENSTOCK_COMPILE=1 compile the hot modules with mypyc.

The same source is the pure fallback: a compiled module and its `.py` behave alike.
"""

import os
from pathlib import Path

from setuptools import setup

COMPILED = (
    "src/penstock/flow/fairqueue.py",
    "src/penstock/flow/histogram.py",
    "src/penstock/log/queues.py",
    "src/penstock/log/shell/groups.py",
    "src/penstock/log/shell/loopwal.py",
    "src/penstock/log/shell/wal.py",
    "src/penstock/log/shell/workers.py",
    "src/penstock/log/stores/segment/catalog.py",
    "src/penstock/log/stores/segment/format.py",
    "src/penstock/log/stores/segment/staging.py",
    "src/penstock/log/stores/segment/store.py",
    "src/penstock/server/api/answers.py",
    "src/penstock/server/api/app.py",
    "src/penstock/topics/core/batch.py",
    "src/penstock/topics/core/partition.py",
    "src/penstock/topics/core/registry.py",
    "src/penstock/topics/engine/engine.py",
    "src/penstock/topics/engine/gather.py",
    "src/penstock/topics/engine/lane.py",
    "src/penstock/topics/core/slots.py",
    "src/penstock/topics/core/topic.py",
)


def extensions() -> list:
    """The extension modules to build: none unless asked for."""
    if os.environ.get("PENSTOCK_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify([path for path in COMPILED if Path(path).exists()], opt_level="3")


setup(ext_modules=extensions())
