from __future__ import annotations

import subprocess
import sys


def test_nothing_of_penstock_needs_pyspark_to_be_imported() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['py4j'] = None\n"
        "from penstock.spark import link, options, probes, progress, query_errors, refresh\n"
        "from penstock.spark.jvm import cache, command, embedded, java\n"
        "from penstock.spark.lake import (collect, difference, evolution, object_store, reading,\n"
        "    task_files, types, views, writing)\n"
        "from penstock.spark.topics import http, options, pages, source\n"
        "try: link.new_session('sc://localhost:1')\n"
        "except link.SparkNotStarted: raise\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'penstock[spark]'" in done.stdout
