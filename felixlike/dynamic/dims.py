"""A dimension whose size is known only when a model is called, and the sizes that it may have.

In: what a user writes, `Dim("T", range(1, 129), weights=…)`. Out: a checked `Dim`. The sizes are what DietCode calls
workload instances; a call may have any size between the smallest and the largest, listed or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike._util.wording import shown
from felixlike.errors import InputMismatch, InvalidDim

MOST_DIMS = 4
"""Dynamic axes of an operator at most, as in FTuner §VI-A."""

_MOST_SIZES = 2**16
"""Listed sizes of a dimension at most."""


@dataclass(frozen=True, slots=True, init=False)
class Dim:
    """name: tells dimensions apart; the same name is the same size.  sizes: ascending, each once.  weights: how much
    each counts where a choice serves some sizes better than others; they add up to one."""

    name: str
    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    def __init__(
        self, name: Any, sizes: Iterable[int], *, weights: Sequence[float] | Mapping[int, float] | None = None
    ):
        """sizes: a range, or any integers from 1 on.  weights: one for each size, in their order, or by size; at least
        zero, not all zero.  None: all count the same.  Raises InvalidDim."""
        if not (isinstance(name, str) and str.isidentifier(name)):
            raise InvalidDim(
                f"{shown(name)} is not a name", where="Dim", remedy='give one as in Dim("T", range(1, 129))'
            )
        given = _sizes(sizes, where=f"Dim {name!r}")
        counted = _weights(given, weights, where=f"Dim {name!r}")
        pairs = sorted(zip(given, counted, strict=True))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "sizes", tuple(size for size, _ in pairs))
        object.__setattr__(self, "weights", tuple(weight for _, weight in pairs))

    @property
    def least(self) -> int:
        """The smallest size of a call."""
        return self.sizes[0]

    @property
    def most(self) -> int:
        """The largest size of a call."""
        return self.sizes[-1]

    def check(self, size: int, *, where: str) -> None:
        """Raise InputMismatch for a size out of range."""
        if not self.least <= size <= self.most:
            raise InputMismatch(
                f"{self.name} is {size}, out of its range {self.least} to {self.most}",
                where=where,
                remedy=f"give a size in that range, or optimize for Dim({self.name!r}, …) with more sizes",
            )

    def __str__(self) -> str:
        return f"{self.name} in {self.least}…{self.most}"


def check_dims(dims: Any) -> tuple[Dim, ...]:
    """One Dim or several, each name once.  Raises InvalidDim."""
    given = (dims,) if isinstance(dims, Dim) else tuple(dims) if isinstance(dims, Iterable) else (dims,)
    for dim in given:
        if not isinstance(dim, Dim):
            raise InvalidDim(f"{shown(dim)} is not a Dim", where="dims", remedy='give fx.Dim("T", range(1, 129))')
    names = [dim.name for dim in given]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidDim(f"{twice[0]!r} is given twice", where="dims", remedy="give each dimension once")
    if not given:
        raise InvalidDim("there is none", where="dims", remedy='give fx.Dim("T", range(1, 129))')
    if len(given) > MOST_DIMS:
        raise InvalidDim(
            f"there are {len(given)}: {', '.join(names)}", where="dims", remedy=f"at most {MOST_DIMS} are supported"
        )
    return given


def instances(dims: Sequence[Dim], *, most: int) -> list[tuple[dict[str, int], float]]:
    """Sizes by name, and their joint weight, for all combinations; for some, spread evenly, where they are more than
    `most`.  The smallest and the largest of each dimension are always among them."""
    each = max(2, int(most ** (1 / len(dims))))
    chosen = [_spread(dim, each if len(dims) > 1 else most) for dim in dims]
    found = []
    for pairs in itertools.product(*chosen):
        sizes = {dim.name: size for dim, (size, _) in zip(dims, pairs, strict=True)}
        found.append((sizes, math.prod(weight for _, weight in pairs)))
    total = sum(weight for _, weight in found)
    return [(sizes, weight / total if total else 1 / len(found)) for sizes, weight in found]


def _spread(dim: Dim, most: int) -> list[tuple[int, float]]:
    """At most so many of a dimension's sizes with their weights, the first and the last among them."""
    count = len(dim.sizes)
    places = range(count) if count <= most else sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
    return [(dim.sizes[i], dim.weights[i]) for i in places]


def _sizes(sizes: Any, *, where: str) -> list[int]:
    how = "give a range or a list of integers from 1 on"
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        raise InvalidDim(f"{shown(sizes)} are no sizes", where=where, remedy=how)
    given = list(itertools.islice(sizes, _MOST_SIZES + 1))
    if not given:
        raise InvalidDim("it has no sizes", where=where, remedy=how)
    if len(given) > _MOST_SIZES:
        raise InvalidDim(
            f"it has more than {_MOST_SIZES} sizes", where=where, remedy="list fewer: all between are served"
        )
    for size in given:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise InvalidDim(f"{shown(size)} is not a size", where=where, remedy=how)
        if size < 1:
            raise InvalidDim(f"size {size} is not positive", where=where, remedy=how)
    numbers = [int(size.__index__()) for size in given]
    if len(set(numbers)) < len(numbers):
        twice = next(size for size in numbers if numbers.count(size) > 1)
        raise InvalidDim(f"size {twice} is given twice", where=where, remedy="give each size once")
    return numbers


def _weights(sizes: list[int], weights: Any, *, where: str) -> list[float]:
    if weights is None:
        return [1 / len(sizes)] * len(sizes)
    if isinstance(weights, Mapping):
        unknown = [size for size in weights if size not in sizes]
        if unknown:
            raise InvalidDim(f"there is a weight for {shown(unknown[0])}, which is no size", where=where)
        weights = [weights.get(size, 0.0) for size in sizes]
    if isinstance(weights, str | bytes) or not isinstance(weights, Iterable):
        raise InvalidDim(f"{shown(weights)} are no weights", where=where, remedy="give a number for each size")
    given = list(weights)
    if len(given) != len(sizes):
        raise InvalidDim(
            f"there are {len(given)} weights for {len(sizes)} sizes", where=where, remedy="give one for each"
        )
    for weight in given:
        number = not isinstance(weight, bool) and hasattr(weight, "__float__")
        if not number or not 0 <= float(weight) < math.inf:
            raise InvalidDim(f"weight {shown(weight)} is not a number from 0 on", where=where)
    total = math.fsum(map(float, given))
    if not 0 < total < math.inf:
        raise InvalidDim("all weights are zero", where=where, remedy="give one above zero")
    return [float(weight) / total for weight in given]
