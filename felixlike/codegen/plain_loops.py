"""Scheduled functions as plain loops, with the first of the passes that TVM's own pipeline runs."""

from __future__ import annotations

from felixlike import tvmlib
from felixlike.tvmlib.typing import Func


def without_blocks(func: Func) -> Func:
    """A scheduled PrimFunc for a CPU as plain loops: what TVM's own pipeline (tvm/s_tir/pipeline.py) starts with.

    The pipeline may follow; it then finds this done. A function that holds no blocks any more stays as it is."""
    if not tvmlib.found(func.body, tvmlib.s_tir.SBlock):
        return func
    t = tvmlib.s_tir.transform
    passes = [
        t.CanonicalizeLoop(),
        t.LowerInitBlock(),
        t.PlanAndUpdateBufferAllocationLocation(),
        t.ConvertBlocksToOpaque(),
        t.CompactBufferAllocation(),
        t.LowerMatchBuffer(),
        t.StmtSimplify(),
        t.LowerOpaqueBlock(),
    ]
    return tvmlib.transform.Sequential(passes)(tvmlib.IRModule({"main": func}))["main"]


def with_flat_buffers(func: Func) -> Func:
    """A PrimFunc of plain loops whose buffers have one dimension, indices simplified as they are now.

    TVM does so itself, but after it has simplified each index by itself: (i + 16) mod 14 then is (i + 2) mod 14, which
    no longer cancels out with (i + 16) div 14."""
    return tvmlib.tirx.transform.FlattenBuffer()(tvmlib.IRModule({"main": func}))["main"]
