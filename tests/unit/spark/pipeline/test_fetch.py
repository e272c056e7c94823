from __future__ import annotations

from penstock.spark.pipeline.fetch import SeenMessages


def test_what_was_seen_is_forgotten_beyond_the_horizon_and_bounded() -> None:
    seen = SeenMessages(horizon=100)
    assert all(seen.is_new(seq, "d", str(seq)) for seq in range(1, 10_000))
    assert not seen.is_new(10_000, "d", "9950")
    assert seen.is_new(10_001, "d", "9")
    assert len(seen._last) < 2_000
    assert seen.is_new(10_002, None, "9")
    assert seen.is_new(10_003, None, "9")
