"""How many terms a task sums up: what an answer's rounding error grows with.

In: a PrimFunc with static shapes. Out: the largest product of reduction extents over its blocks, at least 1.
"""

from itertools import product
from math import prod
from typing import Any

from felixlike import tvmlib


def reduction_length(func: Any) -> int:
    """Terms of the longest sum (or maximum) of one value, at most, where windows differ in size; 1 where nothing is
    reduced."""
    variables = [v for block in tvmlib.found(func.body, tvmlib.s_tir.SBlock) for v in block.iter_vars]
    known = {v.var: int(v.dom.extent) for v in variables if isinstance(v.dom.extent, tvmlib.tirx.IntImm)}
    blocks = tvmlib.found(func.body, tvmlib.s_tir.SBlock)
    reduced = ([_most(v.dom.extent, known) for v in block.iter_vars if tvmlib.is_reduction(v)] for block in blocks)
    return max(map(prod, reduced), default=1)


def _most(extent: Any, known: dict[Any, int]) -> int:
    """The largest value of an extent that may depend on where in the output a window stands.

    known: the variables that it may depend on, with their extents."""
    used = [variable for variable in known if tvmlib.uses(extent, variable)]
    places = product(*(range(known[variable]) for variable in used))
    sizes = (tvmlib.simplify(tvmlib.substituted(extent, dict(zip(used, place, strict=True)))) for place in places)
    return max(int(size) for size in sizes)
