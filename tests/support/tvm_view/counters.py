"""TVM's counters of arithmetic (0–15), for one execution of a store.

    entry = occurrences in the value and in the indices of all loads · iterations

Indices are counted as TVM's simplifier writes them. If the simplified value is not known, the value is counted as in
the model. Then integers and booleans (7–14) are NaN for stores with conditions, which the simplifier rewrites for each
tile, and calls (5) are NaN for stores with a condition on a remainder.
Follows TVM's per_store_feature.cc (group 1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from felixlike.symbolic.program import Operation, Store
from felixlike.symbolic.replay.operations import count_operations
from support.tvm_view.written import Written

ENTRIES = 16
INTEGERS = range(7, 15)
"""Entries of integer and boolean operations."""

MATH = 5
"""Entry of calls, which include conditions."""

_ENTRY = {
    Operation.FLOAT_ADD_SUB: 1,
    Operation.FLOAT_MUL: 2,
    Operation.FLOAT_DIV_MOD: 3,
    Operation.FLOAT_CMP: 4,
    Operation.FLOAT_MATH_FUNC: MATH,
    Operation.FLOAT_OTHER_FUNC: 6,
    Operation.INT_ADD_SUB: 8,
    Operation.INT_MUL: 9,
    Operation.INT_DIV_MOD: 10,
    Operation.INT_CMP: 11,
    Operation.INT_MATH_FUNC: 12,
    Operation.INT_OTHER_FUNC: 13,
    Operation.BOOL_OP: 14,
    Operation.SELECT_OP: 15,
}
"""Entry of each operation. Entries 0 and 7 are fused multiply-adds, which TVM never counts."""

_IN_INDEX = {"Add": 8, "Sub": 8, "Mul": 9, "FloorDiv": 10, "FloorMod": 10, "Min": 11, "Max": 11}


def of_value(value: Any) -> list[float]:
    """Return the counters of a TVM expression."""
    counts = [0.0] * ENTRIES
    for operation, count in count_operations(value, indices=True):
        counts[_ENTRY[operation]] += count
    return counts


def of_store(store: Store, indices: Iterable[tuple[tuple[Written, ...], int]]) -> list[float]:
    """Return the counters of a store.

    Args:
        store: the store.
        indices: the indices of each load, and how often the load occurs."""
    counts = [0.0] * ENTRIES
    for operation, count in store.operations:
        counts[_ENTRY[operation]] += count
    index_counts: Counter[int] = Counter()
    for index, times in indices:
        for node in index:
            _count(node, times, index_counts)
    conditions = any(not operation.value.startswith("float") for operation, _ in store.operations)
    for entry in INTEGERS:
        counts[entry] = math.nan if conditions else float(index_counts[entry])
    if " % " in store.text and any(operation is Operation.INT_CMP for operation, _ in store.operations):
        counts[MATH] = math.nan  # for some tiles, the simplifier may resolve the condition
    return counts


def _count(node: Written, times: int, counts: Counter[int]) -> None:
    if node.kind in _IN_INDEX:
        counts[_IN_INDEX[node.kind]] += times
    for arg in node.args:
        _count(arg, times, counts)
