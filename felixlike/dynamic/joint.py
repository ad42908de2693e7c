"""Joint sizes of several dimensions: DietCode's workload instances.

Input: tuples of sizes and their weights, as in `instances([(5, 5, 5), (10, 10, 10)], weights=[2, 1])`. Output:
`Instances`. Programs are chosen for these sizes instead of for all combinations of the sizes of each dimension. A call
may still have any size between the smallest and the largest of each dimension.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from felixlike._util import option_checks
from felixlike._util.wording import counted, shown
from felixlike.dynamic.dims import MOST_SIZES, Dim, check_size, normalized_weights
from felixlike.errors import InvalidDim

K = TypeVar("K")

_HOW = "give a list of tuples with a size for each Dim, as in fx.instances([(5, 5, 5), (10, 10, 10)])"


@dataclass(frozen=True, slots=True)
class Instances:
    """Joint sizes with weights; `instances` creates them.

    Attributes:
        sizes: One tuple per instance, with a size per dimension.
        weights: One per instance, with sum 1.
        names: Names of the dimensions, in the order of the tuples; empty until the dimensions are known.
    """

    sizes: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]
    names: tuple[str, ...] = ()

    def over(self, names: Sequence[str], most: int) -> list[tuple[tuple[int, ...], float]]:
        """Return the sizes of some of the dimensions with their total weights, ascending.

        Args:
            names: Names of these dimensions.
            most: Upper limit on the number of results. If there are more, some that are spread evenly, including the
                first and the last.
        """
        places = [self.names.index(name) for name in names]
        weight_of: dict[tuple[int, ...], float] = {}
        for sizes, weight in zip(self.sizes, self.weights, strict=True):
            key = tuple(sizes[place] for place in places)
            weight_of[key] = weight_of.get(key, 0.0) + weight
        pairs = sorted(weight_of.items())
        count = len(pairs)
        if count <= most:
            return pairs
        return [pairs[i] for i in sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)})]


def instances(
    sizes: Iterable[Sequence[int] | Mapping[str, int]],
    *,
    weights: Sequence[float] | Mapping[Any, float] | None = None,
) -> Instances:
    """List the joint sizes for which programs are chosen.

    Args:
        sizes: One tuple per instance, with a size for each dimension in the order in which the inputs first have them.
            Or one dict per instance from names of dimensions to sizes.
        weights: One weight per instance, in the order of `sizes`, or a mapping from tuples to weights. Weights are at
            least 0 and not all 0. None for equal weights.

    Returns:
        The instances, for `optimize(instances=…)` and `dynamic.compile(instances=…)`.

    Raises:
        InvalidDim: A size or a weight is invalid, an instance is given twice, or instances differ in their dimensions.

    Example:
        >>> m, n, k = (fx.Dim(name, range(1, 65)) for name in "MNK")
        >>> common = fx.instances([(5, 5, 5), (10, 10, 10)], weights=[2, 1])
        >>> fx.optimize(model, {"a": (m, k), "b": (k, n)}, instances=common)
    """
    if isinstance(sizes, str | bytes | Mapping) or not isinstance(sizes, Iterable):
        raise InvalidDim(f"expected a list of tuples of sizes, got {shown(sizes)}", where="instances", remedy=_HOW)
    listed = list(itertools.islice(sizes, MOST_SIZES + 1))
    if not 0 < len(listed) <= MOST_SIZES:
        got = "none" if not listed else "more"
        raise InvalidDim(f"expected 1 to {MOST_SIZES} instances, got {got}", where="instances", remedy=_HOW)
    names = _names(listed[0])
    tuples = [_instance(instance, names, len(listed[0])) for instance in listed]
    if len(set(tuples)) < len(tuples):
        twice = next(sizes for sizes in tuples if tuples.count(sizes) > 1)
        raise InvalidDim(f"instance {twice} is given twice", where="instances", remedy="give each instance once")
    normalized = normalized_weights(tuples, weights, where="instances", what="instance")
    return Instances(tuple(tuples), tuple(normalized), names)


def checked(joint: Any) -> Instances:
    """Return the value of an option `instances`. Raise InvalidOption if it is something else."""
    checked_joint: Instances = option_checks.of_kind(
        joint, Instances, "instances", where="instances", remedy="pass felixlike.instances([…])"
    )
    return checked_joint


def with_instances(dims: Mapping[K, Dim], joint: Instances) -> dict[K, Dim]:
    """Return dimensions for which programs are chosen at joint sizes only.

    Args:
        dims: The dimensions by any keys, in the order in which tuples of sizes have them.
        joint: The joint sizes.

    Raises:
        InvalidDim: A size is out of its dimension's range, or the instances have other dimensions.
    """
    by_name = {dim.name: dim for dim in dims.values()}
    names = joint.names or tuple(by_name)
    if len(joint.sizes[0]) != len(by_name) or set(names) != set(by_name):
        got = ", ".join(joint.names) or len(joint.sizes[0])
        raise InvalidDim(
            f"expected instances with {counted(len(by_name), 'size')}, one for each of {', '.join(by_name)}, got {got}",
            where="instances",
            remedy=_HOW,
        )
    for sizes in joint.sizes:
        for name, size in zip(names, sizes, strict=True):
            dim = by_name[name]
            if not dim.least <= size <= dim.most:
                raise InvalidDim(
                    f"{name} is {size} in instance {sizes}, out of its range {dim.least} to {dim.most}",
                    where="instances",
                    remedy=f"give a size in that range, or a Dim({name!r}, …) with more sizes",
                )
    bound = replace(joint, names=names)
    return {key: _bound(dim, bound) for key, dim in dims.items()}


def _bound(dim: Dim, joint: Instances) -> Dim:
    """Return a copy of a dimension with joint sizes."""
    bound = copy.copy(dim)
    object.__setattr__(bound, "joint", joint)
    return bound


def _names(first: Any) -> tuple[str, ...]:
    """Return the names of the dimensions that the first instance gives; empty for tuples. Raise InvalidDim."""
    if isinstance(first, str | bytes) or not isinstance(first, Sequence | Mapping) or not first:
        raise InvalidDim(f"expected a tuple of sizes, got {shown(first)}", where="instances", remedy=_HOW)
    return tuple(first) if isinstance(first, Mapping) else ()


def _instance(instance: Any, names: tuple[str, ...], count: int) -> tuple[int, ...]:
    """Return the checked sizes of an instance. Raise InvalidDim."""
    if names:
        right = isinstance(instance, Mapping) and set(instance) == set(names)
        sizes = [instance[name] for name in names] if right else None
    else:
        right = isinstance(instance, Sequence) and not isinstance(instance, str | bytes) and len(instance) == count
        sizes = list(instance) if right else None
    if sizes is None:
        expected = f"sizes of {', '.join(names)}" if names else counted(count, "size")
        raise InvalidDim(
            f"expected {expected} as in the first instance, got {shown(instance)}", where="instances", remedy=_HOW
        )
    return tuple(check_size(size, where="instances", remedy=_HOW) for size in sizes)
