"""A link whose JVM is killed in the middle of work has another before the session asks for it."""

from __future__ import annotations

import gc
import os
import signal

import pytest

from penstock.spark.link import SparkLink
from tests.integration.spark.one import OPTIONS
from tests.integration.tables.node import children_of
from tests.waiting import wait_until


@pytest.mark.slow
def test_a_jvm_that_was_killed_is_followed_by_another_at_once() -> None:
    link = SparkLink(OPTIONS)
    try:
        assert link.session().range(3).count() == 3
        killed = link.pid
        assert killed is not None
        before = set(children_of(os.getpid()))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: set(children_of(os.getpid())) - before, "another JVM")
        link.interrupt()
        link.drop()
        assert link.session().range(4).count() == 4
        assert link.pid not in (None, killed)
        (again,) = set(children_of(os.getpid())) - before
        assert link.pid == again, "one JVM was started, not two"
    finally:
        link.close()
        gc.collect()  # what the session of a Spark that is gone leaves, is collected here
    wait_until(lambda: again not in children_of(os.getpid()), "it to be gone")


def test_a_jvm_that_ends_when_nobody_uses_it_is_not_followed() -> None:
    link = SparkLink(OPTIONS)
    try:
        link.session()
        before = set(children_of(os.getpid()))
        link.drop()
        pid = link.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        link.close()
        assert set(children_of(os.getpid())) <= before
    finally:
        link.close()
