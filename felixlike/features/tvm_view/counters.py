"""TVM's integer and boolean counters (7–14): the arithmetic of load indices.

    entry = occurrences in the indices of all loads · iterations

Conditions count too, but TVM's simplifier writes them anew for each tile, so stores with conditions have NaN;
so have those whose indices TVM may write in several ways.
Follows TVM's per_store_feature.cc (group 1).
"""

from __future__ import annotations

import math
from collections import Counter

from felixlike.features.tvm_view.lowered import LoweredStore
from felixlike.features.tvm_view.written import Written
from felixlike.symbolic.program import Operation

_ENTRIES = 8
_PLACE = {"Add": 1, "Sub": 1, "Mul": 2, "FloorDiv": 3, "FloorMod": 3, "Min": 4, "Max": 4}
"""Where an operator counts; place 0 is that of integer multiply-adds, which TVM never counts."""


def index_counters(store: LoweredStore) -> list[float]:
    """Entries 7 to 14."""
    if not store.certain or any(_not_on_floats(operation) for operation, _ in store.store.operations):
        return [math.nan] * _ENTRIES
    counts: Counter[int] = Counter()
    for load, times in zip(store.store.loads, store.store.repeats, strict=True):
        for index in store.indices[load]:
            _count(index, times, counts)
    return [math.log2(counts[place] * store.iterations + 1) for place in range(_ENTRIES)]


def _not_on_floats(operation: Operation) -> bool:
    return not operation.value.startswith("float")


def _count(node: Written, times: int, counts: Counter[int]) -> None:
    if node.kind in _PLACE:
        counts[_PLACE[node.kind]] += times
    for arg in node.args:
        _count(arg, times, counts)
