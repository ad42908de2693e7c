"""How many terms a task sums up: what an answer's rounding error grows with.

In: a PrimFunc with static shapes. Out: the largest product of reduction extents over its blocks, at least 1.
"""

from math import prod
from typing import Any


def reduction_length(func: Any) -> int:
    """Terms of the longest sum (or maximum) of one value; 1 where nothing is reduced."""
    from felixlike import tvmlib

    blocks = tvmlib.found(func.body, tvmlib.s_tir.SBlock)
    reduced = ([int(v.dom.extent) for v in block.iter_vars if tvmlib.is_reduction(v)] for block in blocks)
    return max(map(prod, reduced), default=1)
