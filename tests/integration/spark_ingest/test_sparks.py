"""The Spark of a pipeline: one that is killed is followed by another before anybody asks for it."""

from __future__ import annotations

import gc
import os
import signal

from penstock.spark.ingest.sparks import Sparks
from tests.integration.spark.one import OPTIONS
from tests.integration.tables.node import children_of
from tests.integration.tables.place import wait_until


def test_a_jvm_that_was_killed_is_followed_by_another_at_once() -> None:
    sparks = Sparks(OPTIONS)
    try:
        assert sparks.session().range(3).count() == 3
        killed = sparks.pid
        assert killed is not None
        before = set(children_of(os.getpid()))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: set(children_of(os.getpid())) - before, "another JVM")
        sparks.interrupt()
        sparks.drop()
        assert sparks.session().range(4).count() == 4
        assert sparks.pid not in (None, killed)
        (again,) = set(children_of(os.getpid())) - before
        assert sparks.pid == again, "one JVM was started, not two"
    finally:
        sparks.close()
        gc.collect()  # what the session of a Spark that is gone leaves, is collected here
    wait_until(lambda: again not in children_of(os.getpid()), "it to be gone")


def test_a_jvm_that_ends_when_nobody_uses_it_is_not_followed() -> None:
    sparks = Sparks(OPTIONS)
    try:
        sparks.session()
        before = set(children_of(os.getpid()))
        sparks.drop()
        pid = sparks.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        sparks.close()
        assert set(children_of(os.getpid())) <= before
    finally:
        sparks.close()
