"""How many terms a task sums up: what an answer's rounding error grows with.

In: a PrimFunc with static shapes. Out: the largest product of reduction extents over its blocks, at least 1.
"""

from itertools import product
from math import prod
from typing import Any

from felixlike import _tvm


def reduction_length(func: Any) -> int:
    """Terms of the longest sum (or maximum) of one value, at most, where windows differ in size; 1 where nothing is
    reduced."""
    variables = [v for block in _tvm.found(func.body, _tvm.s_tir.SBlock) for v in block.iter_vars]
    known = {v.var: int(v.dom.extent) for v in variables if isinstance(v.dom.extent, _tvm.tirx.IntImm)}
    blocks = _tvm.found(func.body, _tvm.s_tir.SBlock)
    reduced = ([_most(v.dom.extent, known) for v in block.iter_vars if _tvm.is_reduction(v)] for block in blocks)
    return max(map(prod, reduced), default=1)


def _most(extent: Any, known: dict[Any, int]) -> int:
    """The largest value of an extent that may depend on where in the output a window stands.

    known: the variables that it may depend on, with their extents."""
    used = [variable for variable in known if _tvm.uses(extent, variable)]
    places = product(*(range(known[variable]) for variable in used))
    sizes = (_tvm.simplify(_tvm.substituted(extent, dict(zip(used, place, strict=True)))) for place in places)
    return max(int(size) for size in sizes)
