"""What is made once for a machine is made by one process, however many want it."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.spark.jvm.cache import one_at_a_time


def test_those_who_come_while_a_file_is_made_find_it_made(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "classes.jsa"
    begun, made = threading.Barrier(4), []

    def want() -> None:
        begun.wait()
        with one_at_a_time(target):
            if not target.exists():
                made.append(threading.get_ident())
                target.write_text("whole")

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
