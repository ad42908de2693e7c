"""Every size is covered exactly, by at most two uKernels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felixlike.dynamic.combine import Combination, combin_search, even, pair
from felixlike.dynamic.program import Program

_SIZES = st.integers(1, 5000)
_HEIGHTS = st.integers(1, 30)


def test_the_papers_example() -> None:
    assert Combination(8, 4, 7, 3) in combin_search(53, [7, 8])
    assert str(pair(53, 8, 7)) == "4 × 8 + 3 × 7"


@given(_SIZES, st.sets(_HEIGHTS, min_size=1, max_size=6))
def test_a_search_covers_exactly(size: int, heights: set[int]) -> None:
    found = combin_search(size, heights)
    for combination in found:
        assert combination.size == size
        assert {combination.large, combination.small} - {0} <= heights
        assert combination.many > 0 or combination.few > 0
    alone = {c.large for c in found if not c.few}
    assert alone >= {height for height in heights if size % height == 0}
    if 1 in heights:
        assert found


@given(_SIZES, _HEIGHTS, _HEIGHTS)
def test_a_pair_is_found_where_there_is_one(size: int, first: int, second: int) -> None:
    small, large = sorted((first, second))
    if small == large:
        return
    ways = [b for b in range(size // small + 1) if (size - b * small) % large == 0]
    found = pair(size, large, small)
    assert (found is None) == (not ways)
    if found is not None:
        assert (found.size, found.few) == (size, ways[0])


@given(_SIZES, _HEIGHTS)
def test_even_tiles_are_neighbours(size: int, highest: int) -> None:
    found = even(size, highest)
    assert found.size == size
    assert found.tiles == -(-size // highest)
    assert found.large <= highest
    assert not found.few or found.large - found.small == 1


@given(_SIZES, _HEIGHTS, _HEIGHTS)
def test_programs_cover_exactly_or_not_at_all(size: int, first: int, second: int) -> None:
    small, large = sorted((first, second))
    for program in (Program(large, small, 2), Program(large, 0, 2)):
        found = program.at(size)
        assert found is None or found.size == size
    assert Program(large, 0, 2).at(size) is not None


@pytest.mark.parametrize("program", [Program(8, 7, 2), Program(12, 8, 4), Program(5, 5, 1), Program(13, 0, 2)])
def test_a_code_says_all_that_covers(program: Program) -> None:
    large, small, vectors, divisor, inverse = (program.code >> 8 * i & 255 for i in range(5))
    assert (large, small, vectors) == (program.large, program.small, program.vectors)
    for size in range(1, 200):
        if small and size % divisor == 0:
            few = size // divisor * inverse % (large // divisor)
            found = program.at(size)
            assert (found is None) == (size < few * small)
            assert found is None or found.few == few
