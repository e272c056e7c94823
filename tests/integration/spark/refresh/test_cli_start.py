"""What a person sees while a command starts a Spark of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.integration.spark.one import ENVIRON

QUERY = "SELECT 1 AS a"


def test_create_and_wait_says_that_spark_is_started(tmp_path):
    command = [sys.executable, "-m", "penstock", "table", "create", "t", QUERY, "--wait"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | ENVIRON, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("starting Spark with Java ")
    assert any(line.startswith("Spark is ready after ") for line in lines)
    assert "refreshed" in done.stdout
