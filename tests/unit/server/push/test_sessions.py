from __future__ import annotations

from itertools import count

import pytest

from penstock.protocol.errors import Throttled
from penstock.server.push.watching import WatcherSessions, WatchRequest


def sessions(**more):
    numbers = count()
    return WatcherSessions(lambda: f"wid_{next(numbers)}", **more)


def test_a_session_without_a_stream_is_kept_for_a_while():
    kept = sessions(ttl_ms=100)
    session = kept.add(WatchRequest(), None, now_ms=0)
    assert kept.find(session.wid, 100) is session
    assert kept.find(session.wid, 101) is None


def test_a_session_with_a_stream_is_kept_whatever_its_age():
    kept = sessions(ttl_ms=100)
    session = kept.add(WatchRequest(), None, now_ms=0)
    session.streams = 1
    assert kept.find(session.wid, 10**9) is session


def test_old_sessions_make_room_for_new_ones():
    kept = sessions(ttl_ms=100, sessions_max=1)
    kept.add(WatchRequest(), None, now_ms=0)
    with pytest.raises(Throttled) as caught:
        kept.check_room(50)
    assert caught.value.detail == {"limit": "max_watch_sessions", "max": 1}
    kept.check_room(101)
    assert len(kept) == 0


def test_a_client_may_go_back_in_topics_it_watches_and_nowhere_else():
    session = sessions().add(WatchRequest(), None, now_ms=0)
    session.cursors = {"a": 5, "b": 5}
    session.resume({"a": 3, "b": 9, "c": 1}, {})
    assert session.cursors == {"a": 3, "b": 5}
