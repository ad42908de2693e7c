"""An operator at sizes: what FTuner calls its workloads.

In: an `Operator`, its dimensions. Out: `Workload`s, for all combinations of sizes or for some, spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike.dynamic.dims import Dim, instances
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.ukernel import Workload


def workloads_of(operator: Operator, dims: Sequence[Dim], most: int) -> tuple[list[Workload], list[tuple[int, ...]]]:
    """The operator at some of its sizes, spread evenly; and these sizes, one for each symbol."""
    found, sizes = [], []
    for values, weight in instances(dims, most=most):
        own = tuple(values[dim.name] for dim in dims)
        found.append(workload_at(operator, own, weight))
        sizes.append(own)
    return found, sizes


def workload_at(operator: Operator, sizes: Sequence[int], weight: float = 1.0) -> Workload:
    """The operator at sizes, one for each symbol."""
    values = dict(zip(operator.symbols, sizes, strict=True))

    def at(extent: Any) -> int:
        return extent if isinstance(extent, int) else int(_tvm.simplify(_tvm.substituted(extent, values)))

    batch, depth = 1, 1
    for axis in operator.others:
        batch *= at(axis.extent)
    for axis in operator.reduced:
        depth *= at(axis.extent)
    i, j = at(operator.rows.extent), at(operator.along.extent)
    return Workload(batch, i, j, depth, operator.item_bits // 8, weight)
