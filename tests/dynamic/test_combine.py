"""Test that at most two uKernels cover every size exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felixlike.dynamic.combine import Combination, combin_search, even, pair
from felixlike.dynamic.program import Program

_SIZES = st.integers(1, 5000)
_HEIGHTS = st.integers(1, 30)


def test_the_example_of_the_paper_is_covered() -> None:
    assert Combination(8, 4, 7, 3) in combin_search(53, [7, 8])
    assert str(pair(53, 8, 7)) == "4 × 8 + 3 × 7"


@given(_SIZES, st.sets(_HEIGHTS, min_size=1, max_size=6))
def test_a_search_covers_exactly(size: int, heights: set[int]) -> None:
    combinations = combin_search(size, heights)
    for combination in combinations:
        assert combination.size == size
        assert {combination.large, combination.small} - {0} <= heights
        assert combination.many > 0
    single_heights = {c.large for c in combinations if not c.few}
    assert single_heights >= {height for height in heights if size % height == 0}
    if 1 in heights:
        assert combinations


@given(_SIZES, _HEIGHTS, _HEIGHTS)
def test_pair_returns_a_combination_exactly_when_one_exists(size: int, first: int, second: int) -> None:
    small, large = sorted((first, second))
    if small == large:
        return
    small_counts = [b for b in range(size // small + 1) if (size - b * small) % large == 0]
    combination = pair(size, large, small)
    assert (combination is None) == (not small_counts)
    if combination is not None:
        assert (combination.size, combination.few) == (size, small_counts[0])


@given(_SIZES, _HEIGHTS)
def test_heights_of_even_tiles_differ_by_at_most_one(size: int, highest: int) -> None:
    combination = even(size, highest)
    assert combination.size == size
    assert combination.tiles == -(-size // highest)
    assert combination.large <= highest
    assert not combination.few or combination.large - combination.small == 1


@given(_SIZES, _HEIGHTS, _HEIGHTS)
def test_programs_cover_exactly_or_not_at_all(size: int, first: int, second: int) -> None:
    small, large = sorted((first, second))
    for program in (Program(large, small, 2), Program(large, 0, 2)):
        combination = program.at(size)
        assert combination is None or combination.size == size
    assert Program(large, 0, 2).at(size) is not None


@pytest.mark.parametrize("program", [Program(8, 7, 2), Program(12, 8, 4), Program(5, 5, 1), Program(13, 0, 2)])
def test_a_program_code_contains_all_that_is_needed_to_cover_a_size(program: Program) -> None:
    large, small, vectors, divisor, inverse = (program.code >> 8 * i & 255 for i in range(5))
    assert (large, small, vectors) == (program.large, program.small, program.vectors)
    for size in range(1, 200):
        if small and size % divisor == 0:
            few = size // divisor * inverse % (large // divisor)
            combination = program.at(size)
            assert (combination is None) == (size < few * small)
            assert combination is None or combination.few == few
