"""TVM's counters of arithmetic (0–15), in one execution of a store.

    entry = occurrences in the value, and in the indices of all its loads · iterations

Indices count as TVM's simplifier writes them. Where the value itself is not known as the simplifier leaves it, it is
counted as the model has it; then integers and booleans (7–14) have NaN if there are conditions, which the simplifier
writes anew for each tile; so have calls (5) where one is on a remainder.
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
"""Entries of integers and booleans."""

MATH = 5
"""The entry of calls, conditions among them."""

_PLACE = {
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
"""Entries 0 and 7 are fused multiply-adds, which TVM never counts."""

_IN_INDEX = {"Add": 8, "Sub": 8, "Mul": 9, "FloorDiv": 10, "FloorMod": 10, "Min": 11, "Max": 11}


def of_value(value: Any) -> list[float]:
    """The counters of a value of TVM's."""
    counts = [0.0] * ENTRIES
    for operation, count in count_operations(value, indices=True):
        counts[_PLACE[operation]] += count
    return counts


def of_store(store: Store, indices: Iterable[tuple[tuple[Written, ...], int]]) -> list[float]:
    """The counters of a store.  indices: of each load, and how often it occurs."""
    counts = [0.0] * ENTRIES
    for operation, count in store.operations:
        counts[_PLACE[operation]] += count
    found: Counter[int] = Counter()
    for index, times in indices:
        for node in index:
            _count(node, times, found)
    conditions = any(not operation.value.startswith("float") for operation, _ in store.operations)
    for entry in INTEGERS:
        counts[entry] = math.nan if conditions else float(found[entry])
    if " % " in store.text and any(operation is Operation.INT_CMP for operation, _ in store.operations):
        counts[MATH] = math.nan  # the simplifier may settle the condition for some tiles
    return counts


def _count(node: Written, times: int, counts: Counter[int]) -> None:
    if node.kind in _IN_INDEX:
        counts[_IN_INDEX[node.kind]] += times
    for arg in node.args:
        _count(arg, times, counts)
