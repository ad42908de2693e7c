"""Generate the inputs of a task: equal in every process, valid as indices, and as varied as the function allows.

The input is the Arguments of a function, the output numpy arrays.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from felixlike.frontend.signature.arguments import Argument

Array = np.ndarray[Any, np.dtype[Any]]

_SEED = 20
"""Seed of all inputs."""
_SMALL = 8
"""Integers that are not indices are less than this number; chosen by hand."""
_PERIOD = 1_048_583
"""Most numbers that are drawn for an argument: larger ones repeat them, since drawing the weights of a large language
model takes seconds. A prime number, so that no dimension or tile of a layout is a multiple of it; chosen by hand.
"""
_BFLOAT16 = 0xFFFF0000
"""Mask of the bits that a float32 shares with a bfloat16."""


def contents(arguments: Iterable[Argument], *, positive: bool, terms: int = 1) -> tuple[Array | None, ...]:
    """Return the initial contents of each argument.

    Floats are drawn from normal(0, σ) with σ⁴ = 1 / terms, so that sums of products are about 1. Larger sums would
    saturate functions of them and hide errors: tanh(±20) is ±1 even for a wrong sum. Integers are drawn from 0 … 7, or
    from the valid indices of the dimension that they index. Booleans are drawn from both values.

    Args:
        arguments: The function's arguments.
        positive: Draw floats from 0.5 … 1.5 and integers from 1 … 7, for functions that are not defined for other
            values (a negative variance, a zero divisor).
        terms: Number of terms of the longest sum.

    Returns:
        An array for each argument, None for pure outputs. An output that the function also reads has contents, since it
        may be updated in place. bfloat16, which numpy lacks, is returned as float32.
    """
    random = np.random.default_rng(_SEED)
    deviation = terms**-0.25
    return tuple(
        _draw(random, argument, positive=positive, deviation=deviation)
        if argument.read or not argument.written
        else None
        for argument in arguments
    )


def _draw(random: np.random.Generator, argument: Argument, *, positive: bool, deviation: float) -> Array:
    """Draw the contents of one argument."""
    if argument.dtype == "bfloat16":
        wide = _draw(random, replace(argument, dtype="float32"), positive=positive, deviation=deviation)
        return (wide.view(np.uint32) & np.uint32(_BFLOAT16)).view(np.float32)
    dtype = np.dtype(argument.dtype)
    size = min(math.prod(argument.shape), _PERIOD)
    numbers: Array
    if dtype.kind == "b":
        numbers = random.integers(0, 2, size)
    elif dtype.kind in "iu":
        low, high = (0, argument.below) if argument.below is not None else (int(positive), _SMALL)
        numbers = random.integers(low, min(high, np.iinfo(dtype).max), size)
    elif positive:
        numbers = random.random(size, np.float32) + np.float32(0.5)
    else:
        numbers = np.float32(deviation) * random.standard_normal(size, np.float32)
    return np.resize(numbers.astype(dtype), argument.shape)
