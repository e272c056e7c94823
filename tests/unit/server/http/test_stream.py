from __future__ import annotations

from penstock.server.http.message import TransportLimits, as_chunk
from tests.unit.server.http.fake_loop import Desk, Peer, all_overlap, get

LIMITS = TransportLimits(stream_buffer_bytes_max=20)
LAST = b"0\r\n\r\n"
OLD = b"GET /watch HTTP/1.0\r\n\r\n"


def stream_of(peer: Peer, desk: Desk, told: list[str] | None = None):
    stream = desk.exchanges[-1].stream(b"text/event-stream", [(b"Cache-Control", b"no-store")])
    if told is not None:
        stream.on_room = lambda: told.append("room")
        stream.on_gone = lambda: told.append("gone")
    return stream


def test_a_stream_is_sent_as_it_is_written_and_the_connection_goes_on_after_it():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/watch"))
    stream = stream_of(peer, desk)
    assert stream.write(b"one\n")
    assert stream.write(b"")  # would be the end
    assert stream.write(b"two\n")
    head, _, body = peer.sent.partition(b"\r\n\r\n")
    assert b"Content-Type: text/event-stream\r\n" in head
    assert b"Cache-Control: no-store" in head
    assert b"Transfer-Encoding: chunked" in head
    assert b"Connection: close" not in head
    assert b"Content-Length" not in head
    assert body == as_chunk(b"one\n") + as_chunk(b"two\n")
    peer.send(get("/next")[:10])  # it may ask on before the end
    stream.close()
    assert peer.sent.endswith(LAST)
    assert not stream.write(b"late")
    assert peer.service.counters.streams_open == 0
    peer.send(get("/next")[10:])
    peer.loop.run()
    assert not peer.transport.closing
    desk.exchanges[-1].reply_json(b"1")
    assert peer.sent.endswith(b"\r\n\r\n1")
    peer.send(get("/watch"))
    stream_of(peer, desk).write(b"again")
    assert peer.sent.endswith(as_chunk(b"again"))


def test_a_stream_ends_with_the_connection_where_the_peer_wants_that_or_knows_no_chunks():
    for request, body in (
        (get("/watch", "Connection: close"), as_chunk(b"one") + LAST),
        (OLD, b"one"),
    ):
        desk = Desk()
        peer = Peer(desk)
        peer.send(request)
        stream = stream_of(peer, desk)
        stream.write(b"one")
        assert stream.direct() is None or b"chunked" in peer.sent
        stream.close()
        head, _, sent = peer.sent.partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert (b"chunked" in head) == (request != OLD)
        assert sent == body
        assert peer.transport.closing


def test_a_stream_ends_with_the_connection_when_the_server_does():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/watch"))
    stream = stream_of(peer, desk)
    peer.service.drain()
    assert not peer.transport.closing, "the application ends its streams"
    stream.close()
    assert peer.transport.closing


def test_a_stream_is_never_compressed():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/watch", "Accept-Encoding: gzip"))
    stream_of(peer, desk).write(b"x" * 5_000)
    assert peer.sent.endswith(as_chunk(b"x" * 5_000))
    assert b"gzip" not in peer.sent


def test_a_lagged_stream_takes_nothing_until_its_buffer_is_empty():
    desk, told = Desk(), []
    peer = Peer(desk, LIMITS)
    peer.send(get("/watch"))
    stream = stream_of(peer, desk, told)
    peer.transport.stuck = True
    assert stream.write(b"12345678")
    assert stream.buffered == len(as_chunk(b"12345678")) == 13
    assert not stream.write(b"9012")
    assert stream.write(b"90")
    peer.transport.unstick()
    assert told == ["room"]
    assert stream.buffered == 0
    assert stream.write(b"more than the buffer, but it was empty")
    assert peer.sent.endswith(as_chunk(b"more than the buffer, but it was empty"))


def test_who_asks_for_room_in_vain_is_told_when_there_is_some():
    desk, told = Desk(), []
    peer = Peer(desk, LIMITS)
    peer.send(get("/watch"))
    stream = stream_of(peer, desk, told)
    assert stream.has_room()
    peer.transport.stuck = True
    stream.write(b"1")
    assert not stream.has_room()
    peer.transport.unstick()
    assert told == ["room"]
    assert stream.has_room()
    stream.close()
    assert not stream.has_room()


def test_room_is_told_only_to_those_who_were_refused():
    desk, told = Desk(), []
    peer = Peer(desk, LIMITS)
    peer.send(get("/watch"))
    stream = stream_of(peer, desk, told)
    peer.transport.stuck = True
    stream.write(b"1")
    peer.transport.unstick()
    assert told == []


def test_a_stream_waits_for_the_answers_before_it():
    desk, told = Desk(), []
    peer = Peer(desk, LIMITS, overlaps=all_overlap)
    peer.send(get("/first") + get("/watch") + get("/never"))
    stream = desk.exchanges[1].stream()
    stream.on_room = lambda: told.append("room")
    assert stream.write(b"early")
    assert stream.write(b"12345")
    assert not stream.write(b"too much")
    assert not peer.sent
    desk.exchanges[0].reply_json(b"1")
    peer.loop.run()
    assert peer.sent.endswith(as_chunk(b"early") + as_chunk(b"12345"))
    assert told == ["room"]
    assert desk.gone == ["/never"]


def test_a_stream_that_was_closed_before_its_turn_is_sent_whole():
    desk = Desk()
    peer = Peer(desk, overlaps=all_overlap)
    peer.send(get("/first") + get("/watch"))
    stream = desk.exchanges[1].stream()
    stream.write(b"all")
    stream.close()
    desk.exchanges[0].reply_json(b"1")
    assert peer.sent.endswith(as_chunk(b"all") + LAST)
    assert not peer.transport.closing


def test_a_watcher_that_goes_is_told_once_and_a_closed_stream_is_not():
    for closed, expected in ((False, ["gone"]), (True, [])):
        desk, told = Desk(), []
        peer = Peer(desk)
        peer.send(get("/watch"))
        stream = stream_of(peer, desk, told)
        if closed:
            stream.close()
        peer.go()
        assert told == expected
        assert not stream.write(b"nobody")
        assert peer.service.counters.streams_open == 0


def test_a_stream_for_head_is_a_head_only():
    desk, told = Desk(), []
    peer = Peer(desk)
    peer.send(b"HEAD /watch HTTP/1.1\r\nHost: a\r\n\r\n")
    stream = stream_of(peer, desk, told)
    stream.write(b"no body")
    peer.loop.run()
    assert peer.sent.endswith(b"chunked\r\n\r\n")
    assert told == ["gone"]
    assert not peer.transport.closing


def test_what_a_watcher_sends_waits_for_the_end_and_time_does_not_end_it():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/watch"))
    stream = stream_of(peer, desk)
    peer.send(get("/later"))
    peer.wait(1_000)
    assert len(desk.exchanges) == 1
    assert not peer.transport.closing
    stream.close()
    peer.loop.run()
    assert [each.request.path for each in desk.exchanges] == ["/watch", "/later"]


def test_a_watcher_that_sends_very_much_is_not_answered_after_the_stream():
    desk = Desk()
    peer = Peer(desk, TransportLimits(head_bytes_max=200))
    peer.send(get("/watch"))
    stream = stream_of(peer, desk)
    for _ in range(20):
        peer.send(get("/more"))
    assert not peer.transport.closing
    stream.close()
    assert peer.transport.closing
    assert len(desk.exchanges) == 1


def test_a_watcher_that_never_reads_the_end_is_cut_off():
    desk = Desk()
    peer = Peer(desk)
    peer.send(get("/watch"))
    stream = stream_of(peer, desk)
    peer.transport.stuck = True
    stream.write(b"1")
    stream.close()
    peer.wait(58)
    assert not peer.transport.aborted
    peer.wait(5)
    assert peer.transport.aborted


def test_a_watcher_that_takes_nothing_is_lagged_first_and_let_go_later():
    desk, told = Desk(), []
    peer = Peer(desk, TransportLimits(stream_buffer_bytes_max=20, stream_stall_s=100))
    peer.send(get("/watch"))
    stream = stream_of(peer, desk, told)
    peer.loop.run()
    peer.transport.stuck = True
    assert stream.write(b"12345678")
    assert not stream.write(b"9012")
    peer.wait(98)
    assert stream.write(b"9"), "what is added does not hide that nothing is taken"
    assert not peer.transport.closing
    peer.wait(5)
    assert peer.transport.aborted
    assert told == ["gone"]
    assert peer.service.counters.streams_open == 0


def test_a_watcher_that_reads_more_slowly_than_is_written_is_kept():
    desk = Desk()
    peer = Peer(desk, TransportLimits(stream_stall_s=10))
    peer.send(get("/watch"))
    stream = stream_of(peer, desk)
    peer.transport.stuck = True
    stream.write(b"x" * 100)
    for _ in range(50):
        del peer.transport.buffer[:3]
        assert stream.write(b"y" * 5)
        peer.wait(1)
    assert not peer.transport.closing
    peer.transport.unstick()
    peer.wait(50)
    assert not peer.transport.closing
