"""Hints for schedules are checked where they are given."""

from __future__ import annotations

import pytest

import felixlike as fx
from felixlike.errors import InvalidOption


def test_hints_add_up() -> None:
    options = fx.tc.Options().tile(32, 8).unroll(4).map_to_blocks(16).map_to_threads(8, 8).fuse("Min")
    assert (options.tiles, options.unrolled, options.blocks, options.threads) == ((32, 8), 4, (16,), (8, 8))
    assert not options.fuses


def test_wrong_hints_are_named() -> None:
    with pytest.raises(InvalidOption, match="tile: 0 is no positive integer"):
        fx.tc.Options().tile(32, 0)
    with pytest.raises(InvalidOption, match="map_to_threads: 4 numbers are given"):
        fx.tc.Options().map_to_threads(1, 2, 3, 4)
    with pytest.raises(InvalidOption, match=r"unroll: 2\.5 is no positive integer"):
        fx.tc.Options().unroll(2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="fuse: 'Most' is no strategy of fusion"):
        fx.tc.Options().fuse("Most")
