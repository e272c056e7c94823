from __future__ import annotations

import subprocess
import sys


def test_nothing_of_penstock_needs_pyspark_to_be_imported() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['py4j'] = None\n"
        "from penstock.spark import (cache, collect, command, embedded, java, options, progress,\n"
        "    reading, refresh, session, shapes, types, views, writing)\n"
        "try: session.new_session('sc://localhost:1')\n"
        "except session.SparkNotStarted: raise\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'penstock[spark]'" in done.stdout
