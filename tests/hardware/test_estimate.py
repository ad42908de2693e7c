"""The estimate ranks register tiles as processors do."""

import pytest

from felixlike.hardware import estimate
from felixlike.hardware.vectors import IN_FLIGHT


def _time_per_product(rows: int, vectors: int) -> float:
    return estimate.tile(rows, vectors) / (rows * vectors)


def test_no_tile_is_faster_than_its_multiplications() -> None:
    assert all(estimate.hindrance(rows, vectors) >= 1 for rows in range(1, 17) for vectors in range(1, 9))
    assert estimate.hindrance(4, 4) == 1
    assert estimate.hindrance(2, 2) == IN_FLIGHT / 4


def test_larger_and_squarer_tiles_take_less_time_per_product() -> None:
    assert _time_per_product(6, 4) < _time_per_product(4, 4) < _time_per_product(8, 2) < _time_per_product(16, 1)


def test_few_accumulators_are_bound_by_latency() -> None:
    assert estimate.busy(1, 1) == estimate.busy(2, 2) == IN_FLIGHT


def test_a_tile_of_one_row_is_bound_by_loads() -> None:
    assert estimate.busy(1, 8) == 9
    assert estimate.busy(4, 4) == 16


def test_a_tile_without_rows_takes_no_time() -> None:
    assert estimate.tile(0, 4) == 0.0


@pytest.mark.parametrize("count", [0.0, 4.0, 1e9])
def test_bytes_cost_more_than_operations(count: float) -> None:
    assert estimate.moved(count) >= count
    assert estimate.moved(2 * count) == 2 * estimate.moved(count)
