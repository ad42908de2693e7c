"""Evaluate an operator at concrete sizes, FTuner's workloads.

Input: an `Operator`, its dimensions. Output: `Workload`s, for all combinations of sizes or for some, evenly spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike.dynamic.dims import Dim, instances
from felixlike.dynamic.memory import size_at
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.ukernel import Workload


def workloads_of(operator: Operator, dims: Sequence[Dim], most: int) -> tuple[list[Workload], list[tuple[int, ...]]]:
    """Return the operator at some of its sizes, evenly spread, and these sizes, one per symbol."""
    workloads, sizes = [], []
    for values, weight in instances(dims, most=most):
        combination = tuple(values[dim.name] for dim in dims)
        workloads.append(workload_at(operator, combination, weight))
        sizes.append(combination)
    return workloads, sizes


def workload_at(operator: Operator, sizes: Sequence[int], weight: float = 1.0) -> Workload:
    """Return the operator at sizes, one per symbol. An axis without elements, as of T - 1 at T = 1, counts as one."""
    values = dict(zip(operator.symbols, sizes, strict=True))

    def at(extent: Any) -> int:
        return extent if isinstance(extent, int) else max(1, size_at(extent, values))

    batch, depth = 1, 1
    for axis in operator.others:
        batch *= at(axis.extent)
    for axis in operator.reduced:
        depth *= at(axis.extent)
    i, j = at(operator.rows.extent), at(operator.along.extent)
    return Workload(batch, i, j, depth, operator.item_bits // 8, weight)
