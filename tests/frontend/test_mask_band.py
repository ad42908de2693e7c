"""Constant masks of attention are recognized by their values: bands of distances between keys and queries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from felixlike.frontend.rewrites.mask_band import Band, band_of

_LOWEST = float(np.finfo(np.float32).min)


def _mask(rows: int, columns: int, first: int, last: int) -> np.ndarray:
    distances = np.arange(columns) - np.arange(rows)[:, None]
    return (first <= distances) & (distances <= last)


def _equals(band: Band, mask: np.ndarray) -> bool:
    rows, columns = mask.shape[-2:]
    first = -rows if band.first is None else band.first
    last = columns if band.last is None else band.last
    return bool(np.array_equal(np.where(_mask(rows, columns, first, last), band.inside, band.outside), mask))


@pytest.mark.parametrize(
    ("mask", "band"),
    [
        (_mask(5, 5, -5, 0), Band(None, 0, True, False)),
        (_mask(5, 9, -5, 4), Band(None, 4, True, False)),
        (_mask(9, 5, -9, -4), Band(None, -4, True, False)),
        (_mask(6, 6, -2, 0), Band(-2, 0, True, False)),
        (~_mask(6, 6, -2, 1), Band(-2, 1, False, True)),
        (np.ones((4, 4), bool), Band(None, None, True, True)),
        (np.where(_mask(4, 4, -4, 0), 0, -math.inf), Band(None, 0, 0.0, -math.inf)),
        (np.where(_mask(4, 4, 0, 4), 0, -math.inf), Band(0, None, 0.0, -math.inf)),
        (np.where(_mask(4, 4, -4, 0), 0, _LOWEST), Band(None, 0, 0.0, _LOWEST)),
        (np.broadcast_to(_mask(4, 6, -1, 2), (2, 3, 4, 6)), Band(-1, 2, True, False)),
    ],
)
def test_bands(mask: np.ndarray, band: Band) -> None:
    assert band_of(mask) == band


def test_every_band_is_found_and_no_mask_with_another_element() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        rows, columns = rng.integers(2, 9, 2)
        first, last = np.sort(rng.integers(-rows, columns, 2))
        mask = np.where(_mask(rows, columns, first, last), 0, -math.inf)
        band = band_of(mask)
        assert band is not None
        assert _equals(band, mask)
        mask[tuple(rng.integers(0, (rows, columns)))] = -1.5
        other = band_of(mask)
        assert other is None or _equals(other, mask)


@pytest.mark.parametrize(
    "mask",
    [
        np.eye(4, dtype=np.int64),
        np.zeros((1, 4), bool),
        np.zeros((0, 4, 4), bool),
        np.zeros(4, bool),
        np.array([[True, False], [False, True], [True, True]]),
        np.stack([_mask(4, 4, -4, 0), _mask(4, 4, -4, 1)]),
        np.where(_mask(4, 4, -4, 0), 0, math.nan),
        np.triu(np.arange(16.0).reshape(4, 4)),
    ],
)
def test_other_masks(mask: np.ndarray) -> None:
    assert band_of(mask) is None
