"""Dynamic dimensions: a name, the sizes of a dimension and their weights.

Input: arguments of the user, as in `Dim("T", range(1, 129), weights=…)`. Output: a checked `Dim`. DietCode calls the
sizes workload instances. A call may have any size between the smallest and the largest, listed or not.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from felixlike._util.wording import counted, shown
from felixlike.errors import InputMismatch, InvalidDim

MOST_DIMS = 4
"""Upper limit on dynamic axes of an operator, as in FTuner §VI-A."""

MOST_SIZES = 2**16
"""Upper limit on listed sizes of a dimension. Chosen by hand."""


class JointSizes(Protocol):
    """Sizes of several dimensions together, see `joint.Instances`."""

    def over(self, names: Sequence[str], most: int) -> list[tuple[tuple[int, ...], float]]:
        """Return at most `most` sizes of some of the dimensions with their weights."""


@dataclass(frozen=True, slots=True, init=False)
class Dim:
    """A dimension whose size is known only at the call.

    Attributes:
        name: Identifies the dimension. Dimensions with the same name have the same size.
        sizes: The sizes, ascending and unique. A call may also have any size between the smallest and the largest.
        weights: One per size, with sum 1. A higher weight counts more when a choice favours some sizes over others.
        joint: Sizes together with other dimensions, for which programs are chosen (`felixlike.instances`). None for all
            combinations of the sizes of each dimension.

    Example:
        length = fx.Dim("T", range(1, 129))
    """

    name: str
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    joint: JointSizes | None = field(compare=False, repr=False)

    def __init__(
        self, name: Any, sizes: Iterable[int], *, weights: Sequence[float] | Mapping[int, float] | None = None
    ):
        """Create a dimension.

        Args:
            name: A Python identifier.
            sizes: A range or an iterable of unique integers from 1 on, at most 65536.
            weights: One weight per size, in the order of `sizes`, or a mapping from sizes to weights, 0 for sizes not
                in it. Weights are at least 0 and not all 0. None for equal weights.

        Raises:
            InvalidDim: The name, a size or a weight is invalid.
        """
        if not (isinstance(name, str) and str.isidentifier(name)):
            raise InvalidDim(
                f"expected a Python identifier as the name, got {shown(name)}",
                where="Dim",
                remedy='give a name as in Dim("T", range(1, 129))',
            )
        numbers = _sizes(sizes, where=f"Dim {name!r}")
        normalized = normalized_weights(numbers, weights, where=f"Dim {name!r}", what="size")
        pairs = sorted(zip(numbers, normalized, strict=True))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "sizes", tuple(size for size, _ in pairs))
        object.__setattr__(self, "weights", tuple(weight for _, weight in pairs))
        object.__setattr__(self, "joint", None)

    @property
    def least(self) -> int:
        """The smallest size of a call."""
        return self.sizes[0]

    @property
    def most(self) -> int:
        """The largest size of a call."""
        return self.sizes[-1]

    def check(self, size: int, *, where: str) -> None:
        """Check that a size is in range.

        Args:
            size: The size of a call.
            where: The place that the error message names.

        Raises:
            InputMismatch: The size is out of range.
        """
        if not self.least <= size <= self.most:
            raise InputMismatch(
                f"{self.name} is {size}, out of its range {self.least} to {self.most}",
                where=where,
                remedy=f"give a size in that range, or optimize for Dim({self.name!r}, …) with more sizes",
            )

    def __str__(self) -> str:
        return f"{self.name} in {self.least}…{self.most}"


def check_dims(dims: Any) -> tuple[Dim, ...]:
    """Check one or several dimensions.

    Args:
        dims: A Dim, or an iterable of one to four Dims with different names.

    Returns:
        The dimensions.

    Raises:
        InvalidDim: An element is not a Dim, a name occurs twice, or there are none or too many.
    """
    checked = (dims,) if isinstance(dims, Dim) else tuple(dims) if isinstance(dims, Iterable) else (dims,)
    for dim in checked:
        if not isinstance(dim, Dim):
            raise InvalidDim(
                f"expected a Dim, got {shown(dim)}", where="dims", remedy='give fx.Dim("T", range(1, 129))'
            )
    names = [dim.name for dim in checked]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidDim(f"{twice[0]!r} is given twice", where="dims", remedy="give each dimension once")
    if not checked:
        raise InvalidDim("expected at least one Dim, got none", where="dims", remedy='give fx.Dim("T", range(1, 129))')
    if len(checked) > MOST_DIMS:
        raise InvalidDim(
            f"expected at most {MOST_DIMS} dimensions, got {len(checked)}: {', '.join(names)}",
            where="dims",
            remedy="make fewer sizes dynamic",
        )
    return checked


def instances(dims: Sequence[Dim], *, most: int) -> list[tuple[dict[str, int], float]]:
    """Return combinations of sizes by name with their joint weights; the weights add up to 1.

    If there are more than `most` combinations, return some that are spread evenly. They always include the smallest and
    the largest size of each dimension. With joint sizes (`felixlike.instances`), return those instead.
    """
    if dims[0].joint is not None:
        names = [dim.name for dim in dims]
        listed = [(dict(zip(names, sizes, strict=True)), weight) for sizes, weight in dims[0].joint.over(names, most)]
        return _normalized(listed)
    per_dim = max(2, int(most ** (1 / len(dims))))
    chosen = [_spread(dim, per_dim if len(dims) > 1 else most) for dim in dims]
    combinations = []
    for pairs in itertools.product(*chosen):
        sizes = {dim.name: size for dim, (size, _) in zip(dims, pairs, strict=True)}
        combinations.append((sizes, math.prod(weight for _, weight in pairs)))
    return _normalized(combinations)


def _normalized(combinations: list[tuple[dict[str, int], float]]) -> list[tuple[dict[str, int], float]]:
    """Scale weights to sum 1; equal ones if all are 0."""
    total = sum(weight for _, weight in combinations)
    return [(sizes, weight / total if total else 1 / len(combinations)) for sizes, weight in combinations]


def _spread(dim: Dim, most: int) -> list[tuple[int, float]]:
    """Return at most `most` sizes of a dimension with their weights, including the first and the last."""
    count = len(dim.sizes)
    indices = range(count) if count <= most else sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
    return [(dim.sizes[i], dim.weights[i]) for i in indices]


def _sizes(sizes: Any, *, where: str) -> list[int]:
    """Return checked sizes in the given order. Raise InvalidDim."""
    how = "give a range or a list of positive integers"
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        raise InvalidDim(f"expected a range or a list of sizes, got {shown(sizes)}", where=where, remedy=how)
    listed = list(itertools.islice(sizes, MOST_SIZES + 1))
    if not listed:
        raise InvalidDim("expected at least one size, got none", where=where, remedy=how)
    if len(listed) > MOST_SIZES:
        raise InvalidDim(
            f"expected at most {MOST_SIZES} sizes, got more",
            where=where,
            remedy="list fewer sizes: those between them are supported too",
        )
    numbers = [check_size(size, where=where, remedy=how) for size in listed]
    if len(set(numbers)) < len(numbers):
        twice = next(size for size in numbers if numbers.count(size) > 1)
        raise InvalidDim(f"size {twice} is given twice", where=where, remedy="give each size once")
    return numbers


def check_size(size: Any, *, where: str, remedy: str) -> int:
    """Return a size as an int. Raise InvalidDim."""
    try:
        number = None if isinstance(size, bool) else operator.index(size)
    except TypeError:  # such as an array of floats, which has `__index__`
        number = None
    if number is None:
        raise InvalidDim(f"expected integers as sizes, got {shown(size)}", where=where, remedy=remedy)
    if number < 1:
        raise InvalidDim(f"expected positive sizes, got {number}", where=where, remedy=remedy)
    return number


def normalized_weights(sizes: Sequence[Any], weights: Any, *, where: str, what: str) -> list[float]:
    """Return checked weights with sum 1, one for each of `sizes`. Raise InvalidDim.

    what: What a weight belongs to, for messages.
    """
    if weights is None:
        return [1 / len(sizes)] * len(sizes)
    if isinstance(weights, Mapping):
        unknown = [size for size in weights if size not in sizes]
        if unknown:
            raise InvalidDim(f"got a weight for {shown(unknown[0])}, which is not among the {what}s", where=where)
        weights = [weights.get(size, 0.0) for size in sizes]
    if isinstance(weights, str | bytes) or not isinstance(weights, Iterable):
        raise InvalidDim(
            f"expected a weight for each {what}, got {shown(weights)}",
            where=where,
            remedy=f"give a number for each {what}",
        )
    listed = list(weights)
    if len(listed) != len(sizes):
        raise InvalidDim(
            f"expected {counted(len(sizes), 'weight')}, got {len(listed)}",
            where=where,
            remedy=f"give one weight for each {what}",
        )
    for weight in listed:
        number = not isinstance(weight, bool) and hasattr(weight, "__float__")
        if not number or not 0 <= float(weight) < math.inf:
            raise InvalidDim(f"expected weights of at least 0, got {shown(weight)}", where=where)
    total = math.fsum(map(float, listed))
    if not 0 < total < math.inf:
        raise InvalidDim("all weights are zero", where=where, remedy="give at least one weight above 0")
    return [float(weight) / total for weight in listed]
