"""Test the sizes and weights of dimensions, and the errors for invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

import felixlike as fx
from felixlike.dynamic import check_dims
from felixlike.dynamic.dims import instances
from felixlike.errors import InputMismatch, InvalidDim


def test_sizes_are_ascending_and_weights_add_up() -> None:
    dim = fx.Dim("T", [5, 3, 9], weights=[1, 2, 1])
    assert dim.sizes == (3, 5, 9)
    assert dim.weights == (0.5, 0.25, 0.25)
    assert (dim.least, dim.most, str(dim)) == (3, 9, "T in 3…9")
    assert fx.Dim("T", range(1, 5)).weights == (0.25,) * 4
    assert fx.Dim("T", [1, 2], weights={2: 3.0}).weights == (0.0, 1.0)


@pytest.mark.parametrize(
    ("name", "sizes", "weights", "words"),
    [
        ("", [1], None, "'' is not a name"),
        (3, [1], None, "3 is not a name"),
        ("T", [], None, "has no sizes"),
        ("T", 7, None, "7 are no sizes"),
        ("T", "17", None, "are no sizes"),
        ("T", [1, 0], None, "size 0 is not positive"),
        ("T", [-4], None, "size -4 is not positive"),
        ("T", [1.5], None, "1.5 is not a size"),
        ("T", [True], None, "True is not a size"),
        ("T", [2, 2], None, "size 2 is given twice"),
        ("T", range(1, 10**9), None, "more than 65536 sizes"),
        ("T", [1, 2], [1], "1 weights for 2 sizes"),
        ("T", [1, 2], [1, -1], "weight -1 is not"),
        ("T", [1, 2], [1, float("nan")], "weight nan is not"),
        ("T", [1, 2], [0, 0], "all weights are zero"),
        ("T", [1, 2], {3: 1.0}, "weight for 3"),
        ("T", [1, 2], "ab", "are no weights"),
    ],
)
def test_invalid_dimensions_raise(name: Any, sizes: Any, weights: Any, words: str) -> None:
    with pytest.raises(InvalidDim, match=words):
        fx.Dim(name, sizes, weights=weights)


def test_invalid_lists_of_dimensions_raise() -> None:
    five = [fx.Dim(name, [1, 2]) for name in "ABCDE"]
    with pytest.raises(InvalidDim, match=r"there are 5: A, B, C, D, E\. at most 4"):
        check_dims(five)
    with pytest.raises(InvalidDim, match="'A' is given twice"):
        check_dims([five[0], five[0]])
    with pytest.raises(InvalidDim, match="there is none"):
        check_dims([])
    with pytest.raises(InvalidDim, match="128 is not a Dim"):
        check_dims(128)
    assert check_dims(five[0]) == (five[0],)


def test_a_size_out_of_range_raises() -> None:
    dim = fx.Dim("T", [4, 128])
    dim.check(77, where="x")
    for size in (0, 3, 129):
        with pytest.raises(InputMismatch, match=f"T is {size}, out of its range 4 to 128"):
            dim.check(size, where="x")


def test_instances_include_the_ends_of_every_dimension() -> None:
    dims = [fx.Dim("A", range(1, 1001)), fx.Dim("B", range(10, 21))]
    sampled = instances(dims, most=64)
    assert len(sampled) <= 64
    assert {(sizes["A"], sizes["B"]) for sizes, _ in sampled} >= {(1, 10), (1, 20), (1000, 10), (1000, 20)}
    assert sum(weight for _, weight in sampled) == pytest.approx(1)
