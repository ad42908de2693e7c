"""Contents for a task's inputs: the same in every process, harmless as indices, as varied as the function allows.

In: the Arguments of a function. Out: numpy arrays.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from felixlike.frontend.signature.arguments import Argument

Array = np.ndarray[Any, np.dtype[Any]]

_SEED = 20
_SMALL = 8
_BFLOAT16 = 0xFFFF0000
"""The bits of a float32 that a bfloat16 has too."""


def contents(arguments: Iterable[Argument], *, positive: bool, terms: int = 1) -> tuple[Array | None, ...]:
    """One array per argument that has contents before the call, None for the others (outputs); of float32 for bfloat16,
    which numpy does not have.

    Floats are drawn from normal(0, σ) where σ⁴ = 1 / terms, so that sums of products are about 1: larger ones would
    saturate what is computed of them, and tanh(±20) is right in every schedule where it is not 1e-5 off.  Integers are
    drawn from 0 … 7, or from 0 to the end of the dimension they index; booleans are both.  terms: of the longest sum.
    positive: floats from 0.5 … 1.5 and integers from 1 … 7 instead, for functions that are not defined for others (a
    negative variance, a zero divisor).  An output that the function also reads has contents, since it may be updated in
    place."""
    random = np.random.default_rng(_SEED)
    deviation = terms**-0.25
    return tuple(
        _draw(random, argument, positive=positive, deviation=deviation)
        if argument.read or not argument.written
        else None
        for argument in arguments
    )


def _draw(random: np.random.Generator, argument: Argument, *, positive: bool, deviation: float) -> Array:
    if argument.dtype == "bfloat16":
        wide = _draw(random, replace(argument, dtype="float32"), positive=positive, deviation=deviation)
        return (wide.view(np.uint32) & np.uint32(_BFLOAT16)).view(np.float32)
    dtype = np.dtype(argument.dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, argument.shape).astype(dtype)
    if dtype.kind in "iu":
        low, high = (0, argument.below) if argument.below is not None else (int(positive), _SMALL)
        return random.integers(low, min(high, np.iinfo(dtype).max), argument.shape).astype(dtype)
    if positive:
        return (random.random(argument.shape, np.float32) + np.float32(0.5)).astype(dtype)
    return (np.float32(deviation) * random.standard_normal(argument.shape, np.float32)).astype(dtype)
