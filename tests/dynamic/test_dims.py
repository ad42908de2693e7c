"""Test the sizes and weights of dimensions, and the errors for invalid ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

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
    assert fx.Dim("T", torch.tensor([1, 2])).sizes == fx.Dim("T", np.arange(1, 3)).sizes == (1, 2)


@pytest.mark.parametrize(
    ("name", "sizes", "weights", "words"),
    [
        ("", [1], None, "Dim: .*name, got ''"),
        (3, [1], None, "Dim: .*name, got 3"),
        ("T", [], None, "got none"),
        ("T", 7, None, "got 7"),
        ("T", "17", None, "got '17'"),
        ("T", [1, 0], None, "positive sizes, got 0"),
        ("T", [-4], None, "positive sizes, got -4"),
        ("T", [1.5], None, r"got 1\.5"),
        ("T", [True], None, "got True"),
        ("T", np.array([1.0, 2.0]), None, r"integers .*got .*1\.0"),
        ("T", torch.tensor([1.5, 2.0]), None, r"integers .*got .*1\.5"),
        ("T", np.ones((2, 2), int), None, "integers .*got array"),
        ("T", [2, 2], None, "size 2 .*twice"),
        ("T", range(1, 10**9), None, "at most 65536 sizes"),
        ("T", [1, 2], [1], "2 weights, got 1"),
        ("T", [1, 2], [1, -1], "weights .*got -1"),
        ("T", [1, 2], [1, float("nan")], "weights .*got nan"),
        ("T", [1, 2], [0, 0], "weights .*zero"),
        ("T", [1, 2], {3: 1.0}, "weight for 3"),
        ("T", [1, 2], "ab", "weight .*got 'ab'"),
    ],
)
def test_invalid_dimensions_raise(name: Any, sizes: Any, weights: Any, words: str) -> None:
    with pytest.raises(InvalidDim, match=words) as error:
        fx.Dim(name, sizes, weights=weights)
    assert error.value.where == ("Dim 'T'" if name == "T" else "Dim")


def test_invalid_lists_of_dimensions_raise() -> None:
    five = [fx.Dim(name, [1, 2]) for name in "ABCDE"]
    with pytest.raises(InvalidDim, match=r"dims: .*4.*5: A, B, C, D, E"):
        check_dims(five)
    with pytest.raises(InvalidDim, match=r"dims: .*'A'.*twice"):
        check_dims([five[0], five[0]])
    with pytest.raises(InvalidDim, match=r"dims: .*got none"):
        check_dims([])
    with pytest.raises(InvalidDim, match=r"dims: .*got 128"):
        check_dims(128)
    assert check_dims(five[0]) == (five[0],)


def test_a_size_out_of_range_raises() -> None:
    dim = fx.Dim("T", [4, 128])
    dim.check(77, where="x")
    for size in (0, 3, 129):
        with pytest.raises(InputMismatch, match=f"x: T is {size}, .*4 to 128"):
            dim.check(size, where="x")


def test_instances_include_the_ends_of_every_dimension() -> None:
    dims = [fx.Dim("A", range(1, 1001)), fx.Dim("B", range(10, 21))]
    sampled = instances(dims, most=64)
    assert len(sampled) <= 64
    assert {(sizes["A"], sizes["B"]) for sizes, _ in sampled} >= {(1, 10), (1, 20), (1000, 10), (1000, 20)}
    assert sum(weight for _, weight in sampled) == pytest.approx(1)
