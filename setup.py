"""Build Penstock; with PENSTOCK_COMPILE=1 compile the hot modules with mypyc.

The same source is the pure fallback: a compiled module and its `.py` behave alike. The Java classes
are compiled wherever the build finds a Java compiler and pyspark, so that a machine with a runtime
only has them too; without, they are compiled on first use.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

COMPILED = (
    "src/penstock/flow/fairqueue.py",
    "src/penstock/flow/histogram.py",
    "src/penstock/log/executor.py",
    "src/penstock/log/queues.py",
    "src/penstock/log/stores/segment/catalog.py",
    "src/penstock/log/stores/segment/format.py",
    "src/penstock/log/stores/segment/staging.py",
    "src/penstock/log/stores/segment/store.py",
    "src/penstock/log/stores/segment/tail.py",
    "src/penstock/log/wal.py",
    "src/penstock/server/api/answers.py",
    "src/penstock/server/api/app.py",
    "src/penstock/topics/core/batch.py",
    "src/penstock/topics/core/partition.py",
    "src/penstock/topics/core/registry.py",
    "src/penstock/topics/core/record_row.py",
    "src/penstock/topics/core/topic.py",
    "src/penstock/topics/engine/admission.py",
    "src/penstock/topics/engine/engine.py",
    "src/penstock/topics/engine/writers.py",
)


def extensions() -> list:
    """The extension modules to build: none unless asked for."""
    if os.environ.get("PENSTOCK_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify([path for path in COMPILED if Path(path).exists()], opt_level="3")


class BuildWithClasses(build_py):
    """Adds a jar of our Java classes to what is built."""

    def run(self) -> None:
        """Build the package, then the jar."""
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, "src")
        from penstock.kernel.errors import PenstockError
        from penstock.spark.jvm.cache import build_jar
        from penstock.spark.jvm.embedded import pyspark_home
        from penstock.spark.jvm.java import find_java

        target = Path(self.build_lib, "penstock", "spark", "jvm")
        try:
            compiler = find_java().compiler
            if compiler is None:
                raise FileNotFoundError("Java has no compiler")
            build_jar(compiler, pyspark_home() / "jars", target)
        except (PenstockError, OSError, subprocess.SubprocessError) as error:
            self.announce(f"penstock: built without its Java classes: {error}", level=3)


setup(ext_modules=extensions(), cmdclass={"build_py": BuildWithClasses})
