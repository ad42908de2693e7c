"""Compute the number of terms of a task's longest sum, with which the rounding error of its output grows.

The input is a PrimFunc with static shapes. The output is the largest product of reduction extents of a block, at least
1.
"""

from itertools import product
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike.frontend.constants import TERMS


def reduction_length(func: Any) -> int:
    """Return the number of terms of the longest reduction of one value, 1 without reductions.

    If windows differ in size, this is an upper limit. An attribute states it for functions without blocks."""
    if func.attrs and TERMS in func.attrs:
        return int(func.attrs[TERMS])
    variables = [v for block in _tvm.found(func.body, _tvm.s_tir.SBlock) for v in block.iter_vars]
    known = {v.var: int(v.dom.extent) for v in variables if isinstance(v.dom.extent, _tvm.tirx.IntImm)}
    blocks = _tvm.found(func.body, _tvm.s_tir.SBlock)
    reduced = ([_most(v.dom.extent, known) for v in block.iter_vars if _tvm.is_reduction(v)] for block in blocks)
    return max(map(prod, reduced), default=1)


def _most(extent: Any, known: dict[Any, int]) -> int:
    """Return the largest value of an extent that may depend on a window's position in the output.

    `known` has the extents of the variables that it may depend on."""
    used = [variable for variable in known if _tvm.uses(extent, variable)]
    places = product(*(range(known[variable]) for variable in used))
    sizes = (_tvm.simplify(_tvm.substituted(extent, dict(zip(used, place, strict=True)))) for place in places)
    return max(int(size) for size in sizes)
